"""mypyc_attr: mypyc's class decorator, without the compiler's library.

mypyc reads the decorator `mypy_extensions.mypyc_attr` when it compiles and removes it. Uncompiled
code needs the name, too, but should not require mypy_extensions for a decorator that does nothing.
This module is never compiled.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):
        """Return a decorator that does nothing. Its arguments: docs of mypyc, "Native classes"."""
        return lambda cls: cls


__all__ = ["mypyc_attr"]
