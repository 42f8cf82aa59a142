"""Who may do what: users, their passwords, and what each may configure, write and read.

The package has no connections. Other packages import its modules. storage.user_store has the file.
"""
