"""What tests of the engine's modules share: an engine on a FaultyFileSystem, opened and reopened.

`restart` is a stop in order, `crash` is not; both open the engine again on what is left. Options
are small, so that a few messages cross every border: segments of 4 slots, log files of 4 KiB; all
queues get files of their own unless a test asks for sections (`sections=True`).
"""

import random
from dataclasses import replace
from typing import Any

from penstock.clock import ManualClock
from penstock.message import Entry, QueuedMessage
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import vhost_number
from penstock.storage.files.durability import DISK, OS
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import DictHolder, QueueIndex
from penstock.storage.index.queue_segment import Handles, SegmentFiles
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.tiny_engine import PATH, VHOST, make_vhost

NUMBER = vhost_number(VHOST)
STORED = 200  # bytes of a body that goes to the store
STEPS_MAX = 1000  # of waiting for one thing: more is a hang

OPTIONS = StorageOptions(
    segment_slots=4,
    queue_index_embed_msgs_below=64,
    wal_inline_below=128,
    transient_inline_below=128,
    wal_segment_bytes_min=4096,
    wal_segment_bytes_max=4096,
    small_queue_entries=0,
    slice_entries=2,
    disk_free_limit=0,
    checkpoint_seconds=1e9,
)


class EngineRig:
    """A file system, a clock, and an open engine that tells its events."""

    def __init__(
        self, fs: FaultyFileSystem | None = None, *, sections: bool = False, **options: Any
    ) -> None:
        self.fs = FaultyFileSystem(seed=1) if fs is None else fs
        if not self.fs.exists(PATH):
            make_vhost(self.fs)
        self.clock = ManualClock()
        self.events: list[tuple[str, str]] = []
        self.seed = 1
        if sections:
            options = {"small_queue_entries": 64, **options}
        self.options = replace(OPTIONS, **options)
        self.engine = self._open()

    def _open(self) -> StorageEngine:
        self.seed += 1
        return StorageEngine(
            self.fs, PATH, VHOST, clock=self.clock, rng=random.Random(self.seed),
            options=self.options, on_event=lambda kind, text: self.events.append((kind, text)),
        )  # fmt: skip

    def restart(self) -> StorageEngine:
        """Stop in order, verify what is there, and open again."""
        self.stop()
        self.engine = self._open()
        return self.engine

    def stop(self) -> None:
        """Stop in order. `verify` finds nothing wrong."""
        self.engine.close()
        report = verify(self.fs, PATH)
        assert report.is_fine, [
            f"{p.path}: at byte {p.position}: {p.text}" for p in report.problems
        ]

    def crash(self, mode: str = "lost") -> StorageEngine:
        """The process or the machine dies; open what is left."""
        self.fs = self.fs.crash(mode, random.Random(self.seed))
        self.engine = self._open()
        return self.engine

    def told(self, kind: str) -> list[str]:
        """The texts of the events of that kind."""
        return [text for k, text in self.events if k == kind]

    # ---- queues and messages -------------------------------------------------------------------

    def declare(self, *names: bytes) -> list[QueueIndex]:
        """New queues, durable."""
        queues = [self.engine.declare_queue(name) for name in names]
        self.engine.sync()
        return queues

    def queue(self, name: bytes = b"q") -> QueueIndex:
        """The queue of that name, declared when it is missing."""
        if name not in self.engine.state.routing.queues:
            self.declare(name)
        return self.engine.queue(name)

    def put(self, queue: QueueIndex, *bodies: bytes, header: bytes = b"") -> list[QueuedMessage]:
        """Publish, and wait until it is durable."""
        made = [self.engine.publish([queue], header, body, DISK) for body in bodies]
        self.engine.sync()
        return made

    def entries(self, queue: QueueIndex, *seqs: int) -> list[Entry]:
        """Live entries with their bodies."""
        return [self.engine.entry(queue, seq) for seq in seqs]

    def ack(self, queue: QueueIndex, *seqs: int, mode: int = OS) -> int:
        """Acknowledge; nothing is waited for."""
        return self.engine.dequeue(queue, self.entries(queue, *seqs), mode)

    def bodies(self, queue: QueueIndex) -> dict[int, bytes]:
        """seq -> body of all that lives."""
        found: dict[int, bytes] = {}
        for seq in live_seqs(queue):
            body = self.engine.entry(queue, seq).message.body
            assert body is not None
            found[seq] = body
        return found

    def forget(self, queue: QueueIndex) -> None:
        """All that is on its slot has left RAM already; from here on nothing is held at all."""
        holder = queue.holder
        assert isinstance(holder, DictHolder)
        assert all(queue.section.get(seq) for seq in holder.entries), "it would be lost"
        queue.holder = DictHolder()

    # ---- files ---------------------------------------------------------------------------------

    def files_of(self, queue: QueueIndex) -> list[str]:
        """Names in the queue's directory but its stub; [] if there is none."""
        if not self.fs.exists(queue.path):
            return []
        return [name for name in self.fs.list(queue.path) if name != ".queue_name"]

    def is_on_slot(self, queue: QueueIndex, seq: int) -> bool:
        """Whether a slot of this seq verifies, alive or not."""
        number = seq // queue.slots
        path = f"{queue.path}/{number}"
        files = SegmentFiles(
            self.fs, path, queue.vhost, queue.number, number, queue.slots, Handles()
        )
        if not self.fs.exists(path + ".qi"):
            return False
        try:
            return bool(files.slots([seq]))
        except Exception:  # whatever it is, it is no slot
            return False
        finally:
            files.close()

    def store_names(self, ending: str = ".rdq") -> list[str]:
        """Names of the store's append files."""
        names = self.fs.list(PATH + "/msg_store_persistent")
        return [name for name in names if name.endswith(ending)]

    # ---- checkpoints ---------------------------------------------------------------------------

    def finish_checkpoint(self) -> None:
        """Go on with the checkpoint that is in progress until it is done or given up."""
        engine = self.engine
        for _ in range(STEPS_MAX):
            if engine.checkpoints.phase == IDLE:
                return
            if engine.checkpoints.phase == SLICES:
                engine.upkeep.step_checkpoint(float("inf"))
            else:
                engine.flush()
                engine.poll(wait=True)
        raise AssertionError(f"the checkpoint hangs in {engine.checkpoints.phase}")

    def settle(self) -> None:
        """Ticks until nothing is under way."""
        for _ in range(STEPS_MAX):
            self.engine.tick()
            self.engine.flush()
            self.engine.poll(wait=True)
            idle = self.engine.checkpoints.phase == IDLE and not self.engine.state.reaping
            if idle and not self.engine.journal.has_pending:
                return
        raise AssertionError("it never comes to rest")
