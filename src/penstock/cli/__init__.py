"""The commands of `penstock`, one module for each group.

`main` holds the table of groups and turns errors into exit codes; a group's module, and whatever
it imports, is loaded when one of its commands is used, so that `penstock --version` stays quick.
"""
