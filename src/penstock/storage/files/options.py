"""StorageOptions: the options of a storage engine.

Names are RabbitMQ's where it has one (`queue_index_embed_msgs_below`, `msg_store_file_size_limit`).
The object is frozen and validated when it is made; an unknown name is an error that suggests the
right one. STORAGE_OPTIONS says what each is and may be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from penstock.errors import OptionError
from penstock.options import (
    Kind,
    Option,
    WrongValueError,
    by_name,
    check_known,
    checked,
    number_from,
    number_in,
    size,
    value_of,
    whole_from,
)

MIB = 1 << 20
# With smaller transient bodies a .qs file of a whole segment has 2 GiB at most.
TRANSIENT_INLINE_MAX: Final = 512 << 10


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """All sizes in bytes, times in seconds unless the name says ms. OptionError if out of range.

    segment_slots is fixed when the store is made; when it is opened with another value, the store's
    counts. log_directory and spill_directory are where the log and what leaves RAM are: "" for
    wherever they are; others than the store's are refused (data_directory.py).
    """

    segment_slots: int = 4096
    queue_index_embed_msgs_below: int = 4096
    wal_inline_below: int = 32 << 10
    transient_inline_below: int = TRANSIENT_INLINE_MAX
    wal_segment_bytes_min: int = 1 * MIB
    wal_segment_bytes_max: int = 64 * MIB
    group_bytes_max: int = 8 * MIB
    msg_store_file_size_limit: int = 16 * MIB
    own_file_from: int = 4 * MIB
    tx_spool_bytes: int = 1 * MIB
    tx_part_bytes: int = 1 * MIB
    tx_record_bytes: int = 8 * MIB
    tx_bytes_max: int = 256 * MIB
    checkpoint_log_bytes: int = 64 * MIB
    checkpoint_store_bytes: int = 256 * MIB
    checkpoint_seconds: float = 30.0
    checkpoint_records: int = 1_000_000
    small_queue_entries: int = 64
    small_queue_bytes: int = 64 << 10
    small_queues_bytes_max: int = 16 * MIB
    slice_ms: float = 2.0
    slice_entries: int = 32768
    interval_ms: int = 200
    disk_free_limit: int = 50 * MIB
    replay_ram_bytes: int = 8 * MIB
    log_directory: str = ""
    spill_directory: str = ""

    def __post_init__(self) -> None:
        for option in STORAGE_OPTIONS:
            checked(option.kind, option.name, getattr(self, option.name))
        if self.wal_segment_bytes_max < self.wal_segment_bytes_min:
            raise OptionError(
                "wal_segment_bytes_max", str(self.wal_segment_bytes_max),
                f"at least wal_segment_bytes_min, {self.wal_segment_bytes_min}",
            )  # fmt: skip

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "StorageOptions":
        """Make options from names and values. An unknown name is an OptionError that suggests the
        right one."""
        found = {}
        for name, value in values.items():
            check_known(name, value, _BY_NAME)
            given = str(value) if isinstance(value, PurePath) else value
            found[name] = checked(_BY_NAME[name].kind, name, given)
        return cls(**found)


# ---- the table -----------------------------------------------------------------------------------


def _slots() -> Kind:
    def check(value: object) -> int:
        if type(value) is not int:
            raise WrongValueError("a whole number")
        if not 4 <= value <= 4096 or value & (value - 1):
            raise WrongValueError("a power of two from 4 to 4096")
        return value

    return Kind("power of two from 4 to 4096", check, number_in)


def _transient_below() -> Kind:
    least = whole_from(0)

    def check(value: object) -> int:
        number: int = least.check(value)
        if number > TRANSIENT_INLINE_MAX:
            expected = f"at most {TRANSIENT_INLINE_MAX}: positions in a .qs file have 4 bytes"
            raise WrongValueError(expected)
        return number

    return Kind(f"whole number from 0 to {TRANSIENT_INLINE_MAX}", check, number_in, low=0)


def directory() -> Kind:
    """An absolute path of a directory, or "" for none."""
    expected = "an absolute path of a directory"

    def check(value: object) -> str:
        if not isinstance(value, str) or (value and not value.startswith("/")):
            raise WrongValueError(expected)
        if value and not value.strip("/"):
            raise WrongValueError(expected)
        if any(ord(character) < 32 for character in value) or "/../" in f"{value}/":
            raise WrongValueError(f"{expected}, without line breaks and '..'")
        return value

    return Kind("absolute path of a directory", check)


STORAGE_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "segment_slots", _slots(),
        "messages of a segment of a queue's index; fixed when the store is made",
    ),
    Option(
        "queue_index_embed_msgs_below", whole_from(0),
        "bytes: smaller persistent messages stand in the queue's index when they leave the log",
    ),
    Option(
        "wal_inline_below", whole_from(0),
        "bytes: smaller persistent messages are written into the log, larger ones into the message "
        "store, where many queues share them",
    ),
    Option(
        "transient_inline_below", _transient_below(),
        "bytes: smaller transient messages that leave RAM stand in the queue's own files, larger "
        "ones in the message store",
    ),
    Option("wal_segment_bytes_min", whole_from(1024), "bytes of a segment of the log, at least"),
    Option("wal_segment_bytes_max", whole_from(1024), "and at most; a busy log has longer ones"),
    Option("group_bytes_max", whole_from(1024), "bytes that are written to the log at once"),
    Option("msg_store_file_size_limit", whole_from(256), "bytes of a file of the message store"),
    Option(
        "own_file_from", whole_from(1),
        "bytes: larger messages have a file of their own in the message store; at most 16 MiB",
    ),
    Option(
        "tx_spool_bytes", whole_from(0),
        "bytes of a transaction's messages that are kept in RAM; further ones are written to the "
        "message store before the commit",
    ),
    Option("tx_part_bytes", whole_from(1), "bytes of a part of a large commit in the log"),
    Option("tx_record_bytes", whole_from(64), "bytes: larger commits are written in parts"),
    Option("tx_bytes_max", whole_from(64), "bytes of the log that one commit may take"),
    Option(
        "checkpoint_log_bytes", whole_from(1024),
        "bytes written to the log after which a checkpoint begins; what a start has to read",
    ),
    Option(
        "checkpoint_store_bytes", whole_from(1024),
        "bytes written to the message store after which a checkpoint begins",
    ),
    Option(
        "checkpoint_seconds", number_from(0), "seconds of change after which a checkpoint begins"
    ),
    Option(
        "checkpoint_records", whole_from(1),
        "records written to the log after which a checkpoint begins",
    ),
    Option(
        "small_queue_entries", whole_from(0),
        "a queue with fewer messages than this is kept in the checkpoint and has no files",
    ),
    Option("small_queue_bytes", whole_from(0), "and with fewer bytes than this"),
    Option("small_queues_bytes_max", whole_from(0), "bytes of all such queues in a checkpoint"),
    Option(
        "slice_ms", number_from(0),
        "milliseconds that a checkpoint works at a time before clients are served again",
    ),
    Option("slice_entries", whole_from(1), "messages that it goes through at a time"),
    Option(
        "interval_ms", whole_from(1),
        "milliseconds between two syncs with `durability = \"interval\"`",
    ),
    Option(
        "disk_free_limit", size(0),
        "bytes that stay free on each disk; publishers wait until there is more", is_live=True,
    ),
    Option(
        "replay_ram_bytes", whole_from(0),
        "bytes of the log that a start keeps in RAM while it reads it; beyond, it uses the disk",
    ),
    Option("log_directory", directory(), "where the log is; by default in the data directory"),
    Option(
        "spill_directory", directory(),
        "where messages that leave RAM are; by default in the data directory",
    ),
)  # fmt: skip
_BY_NAME: Final = by_name(STORAGE_OPTIONS)


def check_directory(name: str, value: object) -> None:
    """Raise OptionError unless the value is "" or an absolute path."""
    value_of(directory(), name, value)
