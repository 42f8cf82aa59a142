"""The commands of `penstock`, in modules by what an operator looks for.

`main` has the table of commands and turns errors into exit codes. The module of a command, and what
it imports, is loaded when the command is used, so that `penstock --version` stays quick.
"""
