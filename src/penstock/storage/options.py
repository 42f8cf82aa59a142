"""StorageOptions: the options of a storage engine.

Names are RabbitMQ's where it has one (`queue_index_embed_msgs_below`, `msg_store_file_size_limit`).
The object is frozen and validated when it is made; an unknown name is an error that suggests the
right one.
"""

from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Final

from penstock.errors import OptionError

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
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type is str:
                check_directory(f.name, value)
                continue
            if type(value) is not int and not (f.type is float and type(value) is float):
                kind = "a number" if f.type is float else "a whole number"
                raise OptionError(f.name, value, kind)
        slots = self.segment_slots
        if not 4 <= slots <= 4096 or slots & (slots - 1):
            raise OptionError("segment_slots", str(slots), "a power of two from 4 to 4096")
        for name, low in _LOWEST.items():
            if getattr(self, name) < low:
                raise OptionError(name, getattr(self, name), f"at least {low}")
        if self.transient_inline_below > TRANSIENT_INLINE_MAX:
            raise OptionError(
                "transient_inline_below", self.transient_inline_below,
                f"at most {TRANSIENT_INLINE_MAX}: positions in a .qs file have 4 bytes",
            )  # fmt: skip
        if self.wal_segment_bytes_max < self.wal_segment_bytes_min:
            raise OptionError(
                "wal_segment_bytes_max", str(self.wal_segment_bytes_max),
                f"at least wal_segment_bytes_min, {self.wal_segment_bytes_min}",
            )  # fmt: skip

    @classmethod
    def of(cls, values: dict[str, object]) -> "StorageOptions":
        """Make options from names and values. An unknown name is an OptionError that suggests the
        right one."""
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                raise OptionError(name, values[name], names)
        texts = {k: str(v) if isinstance(v, PurePath) else v for k, v in values.items()}
        return cls(**texts)  # type: ignore[arg-type]  # checked by __post_init__


def check_directory(name: str, value: object) -> None:
    """Raise OptionError unless the value is "" or an absolute path."""
    if value == "" and isinstance(value, str):
        return
    expected = "an absolute path of a directory"
    if not isinstance(value, str) or not value.startswith("/") or not value.strip("/"):
        raise OptionError(name, value, expected)
    if any(ord(character) < 32 for character in value) or "/../" in f"{value}/":
        raise OptionError(name, value, f"{expected}, without line breaks and '..'")


_LOWEST = {
    "queue_index_embed_msgs_below": 0,
    "wal_inline_below": 0,
    "transient_inline_below": 0,
    "wal_segment_bytes_min": 1024,
    "group_bytes_max": 1024,
    "msg_store_file_size_limit": 256,
    "own_file_from": 1,
    "tx_spool_bytes": 0,
    "tx_part_bytes": 1,
    "tx_record_bytes": 64,
    "tx_bytes_max": 64,
    "checkpoint_log_bytes": 1024,
    "checkpoint_store_bytes": 1024,
    "checkpoint_records": 1,
    "small_queue_entries": 0,
    "small_queue_bytes": 0,
    "small_queues_bytes_max": 0,
    "checkpoint_seconds": 0,
    "slice_ms": 0,
    "slice_entries": 1,
    "interval_ms": 1,
    "disk_free_limit": 0,
    "replay_ram_bytes": 0,
}
