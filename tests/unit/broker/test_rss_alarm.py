"""RssAlarm: it begins, ends, gives up, and is what publishers wait for."""

from penstock.broker.vhost import (
    CALM_BYTES,
    EARLY_BYTES,
    PATIENCE_S,
    RELIEF_S,
    STEP_BYTES,
    RssAlarm,
)
from tests.helpers.vhost_rig import VHostRig

MIB = 1 << 20
BUDGET = 64 * MIB
SLACK = 96 * MIB
LIMIT = BUDGET + SLACK
BEGIN = LIMIT - EARLY_BYTES
END = BEGIN - CALM_BYTES


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


def test_it_begins_below_the_limit_and_ends_well_below_that() -> None:
    """What comes in while publishers are told to wait has room below the limit."""
    process = Process()
    assert not process.look(BEGIN)
    assert process.forgotten == 0
    assert not process.look(BEGIN + 1)  # free memory may be all that it is
    assert process.forgotten == 1
    assert process.look(BEGIN + 1)
    assert process.look(BEGIN)
    assert process.look(END + 1)
    assert not process.look(END)
    assert process.events == [
        "memory_alarm: memory: the process's RSS of 156 MiB is above 156 MiB, with a limit of "
        "160 MiB",
        "memory_free: memory: the process's RSS of 140 MiB is below 156 MiB, with a limit of "
        "160 MiB",
    ]


def test_free_memory_is_given_back_before_it_begins() -> None:
    process = Process()
    assert not process.look(END)
    assert process.trims == 0
    process.spare = 20 * MIB
    assert not process.look(END + MIB)
    assert (process.trims, process.forgotten, process.rss) == (1, 0, END - 19 * MIB)
    assert not process.look(BEGIN + 1)
    assert (process.trims, process.forgotten) == (2, 1)


def test_free_memory_is_given_back_between_two_looks() -> None:
    """What requests have freed is resident again within seconds."""
    rig = VHostRig(memory_bytes=BUDGET)
    process = Process()
    rig.vhost.watch_rss(lambda: process.rss, process.trim)
    rounds = rig.vhost.monitor.rounds
    while rig.vhost.monitor.rounds < rounds + 2:  # they are 2.5 s apart
        rig.tick(RELIEF_S)
    for rss, trims in ((END, 0), (END + 1, 1), (END + 1, 2), (END, 2)):
        process.rss = rss
        rig.tick(RELIEF_S)
        assert rig.vhost.monitor.rounds == rounds + 2
        assert process.trims == trims


def test_queues_give_ram_back_before_publishers_wait() -> None:
    process = Process()
    process.look(END, BUDGET)
    assert process.alarm.excess_bytes == 0
    process.look(END + 5 * MIB, BUDGET)
    assert process.alarm.excess_bytes == 5 * MIB
    process.look(END + 5 * MIB, BUDGET + MIB)
    assert process.alarm.excess_bytes == 5 * MIB
    process.look(END - MIB, BUDGET)
    assert process.alarm.excess_bytes == 0


def test_queues_leave_room_for_what_the_process_has_beyond_what_is_counted() -> None:
    """It had 40 MiB of arenas without a message more than the slack allows, and filled the budget
    with large bodies within a second."""
    process = Process()
    process.look(END - 20 * MIB, BUDGET - 20 * MIB)
    assert process.alarm.excess_bytes == 0
    process.look(END - 20 * MIB, BUDGET - 30 * MIB)
    assert process.alarm.excess_bytes == 10 * MIB
    assert (process.trims, process.events) == (0, [])
    process.look(END - BUDGET)
    assert process.alarm.excess_bytes == 0
    process.look(0)  # it is not known
    assert process.alarm.excess_bytes == 0


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
    assert process.alarm.excess_bytes == 0
    again = high + STEP_BYTES - EARLY_BYTES
    assert not process.look(again)
    assert not process.look(again + 1)
    assert process.look(again + 1)


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
    counted = rig.vhost.monitor.counted_bytes
    assert rig.vhost.monitor.excess_bytes == process.rss + BUDGET - counted - END
    rig.tick(3)
    assert rig.vhost.blocked_reason == "memory"
    assert [kind for kind, _ in rig.events if kind.startswith("memory")] == [
        "memory_alarm", "memory_holders"
    ]  # fmt: skip
    process.rss = 70 * MIB
    rig.tick(3)
    assert (rig.vhost.blocked_reason, rig.vhost.monitor.excess_bytes) == ("", 0)
    assert [kind for kind, _ in rig.events[-2:]] == ["memory_free", "unblocked"]
