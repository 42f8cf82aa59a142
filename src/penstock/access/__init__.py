"""Who may do what: users, their passwords, and what each may configure, write and read.

The package has no connections and no loop. Other packages import its modules: known_users checks,
users changes and stores, permissions and patterns decide about names, limits has the limits. The
file is storage.user_store's.
"""
