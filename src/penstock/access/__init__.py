"""Who may do what: users, their passwords, and what each may configure, write and read.

The package has no connections and no loop. Other packages import its modules: users checks and
changes, permissions decides about names, limits has the limits. storage.user_store has the file.
"""
