"""Who may do what: users, their passwords, and what each may configure, write and read.

Nothing here knows a connection. Users of this package import its modules: permissions < users; the
file that both rest on is storage.user_store.
"""
