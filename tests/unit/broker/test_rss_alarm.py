"""RssAlarm: it begins, ends, gives up, and is what publishers wait for."""

from penstock.broker.vhost import PATIENCE_S, STEP_BYTES, RssAlarm
from tests.helpers.vhost_rig import VHostRig

MIB = 1 << 20
BUDGET = 64 * MIB
SLACK = 96 * MIB
LIMIT = BUDGET + SLACK


class Process:
    """Its RSS, and how much of it a trim gives back."""

    def __init__(self, slack: int = SLACK) -> None:
        self.rss = 50 * MIB
        self.spare = 0
        self.trims = 0
        self.events: list[str] = []
        self.alarm = RssAlarm(lambda: self.rss, self.trim, slack, self.tell, self.forget)
        self.forgotten = 0

    def trim(self) -> None:
        self.trims += 1
        self.rss -= self.spare
        self.spare = 0

    def forget(self) -> None:
        self.forgotten += 1

    def tell(self, kind: str, text: str) -> None:
        self.events.append(f"{kind}: {text}")

    def look(self, rss: int, counted: int = 0, now_s: float = 0.0) -> bool:
        self.rss = rss
        self.alarm.look(BUDGET, counted, now_s)
        return self.alarm.is_alarmed


def test_it_begins_above_the_limit_and_ends_well_below() -> None:
    process = Process()
    assert not process.look(LIMIT)
    assert process.forgotten == 0
    assert not process.look(LIMIT + 1)  # free memory may be all that it is
    assert process.forgotten == 1
    assert process.look(LIMIT + 1)
    assert process.look(LIMIT)
    assert process.look(LIMIT - 16 * MIB + 1)
    assert not process.look(LIMIT - 16 * MIB)
    assert process.events == [
        "memory_alarm: memory: the process's RSS of 160 MiB is above the limit of 160 MiB",
        "memory_free: memory: the process's RSS of 144 MiB is below the limit of 160 MiB",
    ]


def test_free_memory_is_given_back_before_the_limit_is_reached() -> None:
    process = Process()
    assert not process.look(LIMIT - 16 * MIB)
    assert process.trims == 0
    process.spare = 20 * MIB
    assert not process.look(LIMIT - 10 * MIB)
    assert (process.trims, process.forgotten, process.rss) == (1, 0, LIMIT - 30 * MIB)
    assert not process.look(LIMIT + 1)
    assert (process.trims, process.forgotten) == (2, 1)


def test_memory_that_only_the_allocator_keeps_is_no_alarm() -> None:
    process = Process()
    for _ in range(3):
        process.spare = 100 * MIB
        assert not process.look(LIMIT + 50 * MIB)
        assert not process.look(process.rss)
    assert (process.trims, process.events) == (3, [])


def test_it_gives_up_when_waiting_cannot_help_and_comes_again_when_it_grows() -> None:
    process = Process()
    high = LIMIT + 40 * MIB
    assert not process.look(high)
    assert process.look(high, BUDGET // 2, 0)
    assert process.look(high, BUDGET // 2, PATIENCE_S)  # messages take it: they will go
    assert process.look(high, BUDGET // 2 - 1, PATIENCE_S - 1)
    assert not process.look(high, BUDGET // 2 - 1, PATIENCE_S)
    assert "publishers go on" in process.events[-1]
    assert not process.look(high + STEP_BYTES)
    assert not process.look(high + STEP_BYTES + 1)
    assert process.look(high + STEP_BYTES + 1)


def test_what_was_usual_is_forgotten_when_memory_falls() -> None:
    process = Process()
    process.look(LIMIT + 40 * MIB)
    assert process.look(LIMIT + 40 * MIB)
    assert not process.look(LIMIT + 40 * MIB, 0, PATIENCE_S)
    assert not process.look(60 * MIB)
    assert not process.look(LIMIT + 1)
    assert process.look(LIMIT + 1)


def test_publishers_of_a_vhost_wait_for_it() -> None:
    rig = VHostRig(memory_bytes=BUDGET)
    process = Process()
    rig.vhost.watch_rss(lambda: process.rss, process.trim)
    process.rss = LIMIT + 200 * MIB
    rig.tick(3)
    assert rig.vhost.blocked_reason == ""
    rig.tick(3)
    assert rig.vhost.blocked_reason == "memory"
    assert [kind for kind, _ in rig.events if kind.startswith("memory")] == [
        "memory_alarm", "memory_holders"
    ]  # fmt: skip
    process.rss = 70 * MIB
    rig.tick(3)
    assert rig.vhost.blocked_reason == ""
    assert [kind for kind, _ in rig.events[-2:]] == ["memory_free", "unblocked"]
