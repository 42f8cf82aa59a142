"""A MemoryMonitor with queues that say what a test told them to, and a clock moved by hand."""

import math

from penstock.clock import ManualClock
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.memory_monitor import SHARED_PART, MemoryMonitor

MIB = 1 << 20
BUDGET = 100 * MIB
SHARED = int(BUDGET * SHARED_PART)  # what is divided into shares


class FakeQueue(BackingQueue):
    """Says what the test told it to say; notes what it was told, in `log` if one is given."""

    def __init__(
        self, name: str = "q", ram: int = 0, depth: int = 0, duration: float = math.inf,
        log: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.ram = ram
        self.bytes = depth
        self.ready = 10 if depth else 0
        self.unacked = 0
        self.duration = duration
        self.out = 0.0
        self.elsewhere = 0
        self.log = log if log is not None else []
        self.shares: list[int] = []
        self.targets: list[float] = []

    def ram_duration(self) -> float:
        return self.duration

    def out_bytes_per_s(self) -> float:
        return self.out

    def ram_bytes(self) -> int:
        return self.ram

    def elsewhere_bytes(self) -> int:
        return self.elsewhere

    def body_bytes(self) -> int:
        return self.bytes

    def leased_count(self) -> int:
        return 0

    def len(self) -> int:
        return self.ready

    def depth(self) -> int:
        return self.ready + self.unacked

    def set_share(self, share_bytes: int) -> None:
        self.log.append(self.name)
        self.shares.append(share_bytes)

    def set_ram_duration_target(self, seconds: float) -> None:
        self.targets.append(seconds)

    @property
    def share(self) -> int:
        return self.shares[-1]


# The rest of the contract is not the monitor's business.
FakeQueue.__abstractmethods__ = frozenset()


class Monitored:
    """A monitor, its queues and its clock."""

    def __init__(self, *queues: FakeQueue, budget: int = BUDGET, watermark: float = 1.0) -> None:
        self.clock = ManualClock()
        self.events: list[tuple[str, str]] = []
        self.monitor = MemoryMonitor(
            budget,
            self.clock,
            watermark=watermark,
            on_event=lambda k, t: self.events.append((k, t)),
        )
        self.queues = queues
        for queue in queues:
            self.monitor.register(queue)

    def round(self) -> None:
        """The next round, whole."""
        self.clock.advance(2.5)
        assert not self.monitor.tick(self.clock.monotonic())

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


def queue(
    name: str = "q", *, ram: int = 0, depth: int = 0, duration: float = math.inf,
    log: list[str] | None = None,
) -> FakeQueue:  # fmt: skip
    return FakeQueue(name, ram, depth, duration, log)  # type: ignore[abstract]
