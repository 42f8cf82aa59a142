"""What this copy of Penstock is: its version, compiled or not, its name, and what compiled classes
need.

mypyc reads the decorator `mypy_extensions.mypyc_attr` when it compiles, and removes it. The same
source also runs uncompiled, without an installed mypy_extensions, so `mypyc_attr` here does
nothing. This module is not compiled and imports nothing of Penstock.
"""

import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):
        """Return the class unchanged. For the compiler: mypyc's documentation, "Native classes"."""
        return lambda cls: cls


__all__ = ["VERSION", "build_kind", "mypyc_attr", "node_name"]

VERSION: Final = "0.1.0"


def build_kind() -> str:
    """Return how this penstock was installed: "compiled" (the hot modules by mypyc) or "pure".

    Looks at the file that `penstock.storage.log.record` would be loaded from, and does not load it.
    """
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec

    spec = find_spec("penstock.storage.log.record")
    origin = "" if spec is None or spec.origin is None else spec.origin
    return "compiled" if origin.endswith(tuple(EXTENSION_SUFFIXES)) else "pure"


@functools.cache  # each row of a list has it
def node_name() -> str:
    """Return "penstock@" and the name of this machine: RabbitMQ's is "rabbit@" and that, and
    clients put it into addresses. Nothing is connected by it."""
    import platform

    return f"penstock@{platform.node()}"
