"""The engine that crash tests use: options as small as they may be, in a simulated directory.

So a few operations cross every border: segments of 4 slots, log files of 2 KiB, store files that
are sealed at 512 bytes, transactions in parts from 400 bytes on. Three variants, because a small
queue lives in sections of the checkpoint and a large one in files, and a store without either is
another one.
"""

import random
from dataclasses import replace

from penstock.clock import ManualClock
from penstock.storage.engine import StorageEngine
from penstock.storage.files.options import StorageOptions
from tests.helpers.faulty_filesystem import FaultyFileSystem

PATH = "/vhost"
VHOST = b"test"

OPTIONS = StorageOptions(
    segment_slots=4,
    queue_index_embed_msgs_below=64,
    wal_inline_below=128,
    transient_inline_below=128,
    wal_segment_bytes_min=2048,
    wal_segment_bytes_max=2048,
    group_bytes_max=4096,
    msg_store_file_size_limit=512,
    own_file_from=900,
    small_queue_entries=4,
    slice_entries=2,
    small_queue_bytes=4096,
    small_queues_bytes_max=4096,
    disk_free_limit=0,
    tx_spool_bytes=300,
    tx_part_bytes=120,
    tx_record_bytes=400,
    replay_ram_bytes=600,
)
# All queues get files of their own, whatever their size; nothing is spilled in replay; and segments
# of the log double.
FILES_ONLY = replace(
    OPTIONS, small_queue_entries=0, replay_ram_bytes=0, wal_segment_bytes_max=8192
)  # fmt: skip
# Most queues stay in sections of the checkpoint.
SECTIONS = replace(OPTIONS, small_queue_entries=24, small_queues_bytes_max=1 << 20)
VARIANTS = (OPTIONS, FILES_ONLY, SECTIONS)

# Sizes of bodies, from and to, by where they are placed.
SMALL, MIDDLE, STORED, OWN = (0, 40), (64, 127), (130, 400), (900, 1400)


def make_vhost(fs: FaultyFileSystem) -> None:
    """The vhost's directory with its name in it, durable."""
    fs.mkdir(PATH)
    file = fs.open(PATH + "/.vhost", create=True)
    file.pwrite(VHOST + b"\n", 0)
    file.close()
    fs.sync_all()


def open_engine(
    fs: FaultyFileSystem, seed: int, options: StorageOptions, clock: ManualClock | None = None,
    events: list[tuple[str, str]] | None = None, path: str = PATH,
) -> StorageEngine:  # fmt: skip
    """The engine of the one vhost that tests use."""

    def on_event(kind: str, text: str) -> None:
        if events is not None:
            events.append((kind, text))

    return StorageEngine(
        fs, path, VHOST, clock=clock or ManualClock(), rng=random.Random(seed), options=options,
        on_event=on_event,
    )  # fmt: skip
