"""mypyc_attr: what the compiler is to know of a class, where nothing may be installed to say it.

mypyc reads the decorator `mypy_extensions.mypyc_attr` when it compiles and takes it away. Whoever
runs the same source uncompiled needs the name all the same, and should not have to install the
compiler's own library for a decorator that does nothing: this one does nothing. This module itself
is never compiled.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):
        """What mypyc makes of it when it compiles: docs of mypyc, "Native classes"."""
        return lambda cls: cls


__all__ = ["mypyc_attr"]
