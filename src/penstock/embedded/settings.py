"""Settings of a box in a directory, checked, from what a caller of `open` gave.

Each option is checked under the name that the caller gave, and an unknown one suggests the right
name. A URL of a broker is refused here: `penstock.open` opens it, and calls this for directories
only.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from penstock.embedded.core import Settings
from penstock.embedded.option_parsing import URLS, box_durability, size_bytes
from penstock.errors import OptionError
from penstock.queues.budget import machine_memory
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.options import StorageOptions

# All options of `open`, of which it suggests one when a name is wrong.
NAMES = (
    "durability", "memory", "strict", "on_event", "on_alert",
    *(field.name for field in fields(StorageOptions)),
)  # fmt: skip


def settings_of(
    path: object, durability: object, memory: object, strict: object, storage: Mapping[str, object]
) -> tuple[str, Settings]:
    """Return the directory and the settings. OptionError; TypeError if this is not a path."""
    if isinstance(path, str) and path.startswith(URLS):
        raise OptionError(
            "path", path, "a directory: what opens the box of a broker is penstock.open"
        )
    # Absolute, for the program may change its directory. TypeError for what is no path.
    directory = str(Path(path).absolute())  # type: ignore[arg-type]
    if not isinstance(strict, bool):
        raise OptionError("strict", strict, "True or False")
    for name in storage:
        if name not in NAMES:
            raise OptionError(name, storage[name], NAMES)
    mode = box_durability(durability)
    options = StorageOptions.of(dict(storage))
    if mode.interval_ms:
        options = replace(options, interval_ms=mode.interval_ms)
    memory_bytes = size_bytes("memory", memory, machine_memory(OsFileSystem(0))[0])
    return directory, Settings(mode.mode, memory_bytes, strict, options)
