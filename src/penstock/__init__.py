"""Penstock: a durable message broker in Python.

Importing this package loads nothing else: `penstock.storage` is the storage engine,
`penstock.cli` the commands.
"""

from typing import Final

__version__: Final = "0.1.0"


def build_kind() -> str:
    """How this penstock was installed: "compiled" (the hot modules by mypyc) or "pure".

    Looks at the file that `penstock.storage.record` would be loaded from, and does not load it.
    """
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec

    spec = find_spec("penstock.storage.record")
    origin = "" if spec is None or spec.origin is None else spec.origin
    return "compiled" if origin.endswith(tuple(EXTENSION_SUFFIXES)) else "pure"
