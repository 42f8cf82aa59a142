"""A batch that is committed is visible: when a commit is answered, a reader sees all rows of it."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import background_tasks, operations
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.exactly_once.batches import WAIT_S, batch_manager
from tests.helpers.staged_rig import QUERY, StagedRig, Token, header

STREAM = {"x-queue-type": "stream"}
LARGE = 4 << 20


@pytest.fixture
def rig() -> StagedRig:
    rig = StagedRig()
    rig.result("declare_queue", queue="q")
    rig.result("declare_queue", queue="s", arguments=STREAM)
    rig.result("declare_queue", queue="p", arguments={**STREAM, "x-partitions": 3})
    for queue in ("q", "s", "p"):
        rig.result("bind_queue", queue=queue, exchange="amq.topic", routing_key="#")
    return rig


def ready(rig: StagedRig, name: str) -> int:
    """How many messages of a queue or a stream a new reader would get."""
    queue = rig.vhost.table.usable(name)
    if isinstance(queue, BrokerStream):
        return sum([part.head_offset - part.first_offset for part in queue.parts])
    assert queue is not None
    return queue.amq.len() if queue.amq.held() is None else -1


class Commit:
    """A commit; `seen` are the messages that a reader would get when its answer comes."""

    def __init__(
        self, rig: StagedRig, tokens: list[Token], names: tuple[str, ...], batch: int = 0
    ) -> None:
        self.answer: Any = None
        self.seen: list[int] = []
        self.turns = 0
        self._rig = rig
        is_one = len(names) == 1
        target = {"queue": names[0]} if is_one else {"exchanges": ["amq.topic"]}

        def answered(answer: Any) -> None:
            assert self.answer is None
            self.answer = answer
            self.seen = [ready(rig, name) for name in names]

        args = {"query": QUERY, "batch": batch, "pages": tokens, "mandatory_keys": None}
        operations.call(rig.vhost, None, "commit_batch", {**args, "target": target}, answered)

    def until(self, is_over: Callable[[], bool]) -> "Commit":
        """Turns, until this is so."""
        while not is_over():
            self.turns += 1
            assert self.turns < 3000
            self._rig.vhost.turn()
            self._rig.vhost.completed()
        return self

    def until_answered(self) -> "Commit":
        return self.until(lambda: self.answer is not None)


def rows(count: int, size: int = 10) -> list[tuple[bytes, bytes]]:
    return [(header("k", "amq.topic"), b"%d".ljust(size) % i) for i in range(count)]


@pytest.mark.parametrize("names", [("q",), ("s",), ("p",), ("q", "s", "p")], ids="-".join)
@pytest.mark.parametrize("pages", [[1], [3000, 1, 1200]], ids=["one row", "many slices"])
def test_all_rows_are_there_when_a_commit_is_answered(
    rig: StagedRig, names: tuple[str, ...], pages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """STEPS_MAX: a slow vhost, which moves a slice in a turn."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    tokens = rig.stage(0, *[rows(count) for count in pages])
    commit = Commit(rig, tokens, names).until_answered()
    assert commit.answer == {"status": "committed", "batch": 0}
    assert commit.seen == [sum(pages)] * len(names)


def test_pages_that_a_stream_adopts_are_there(rig: StagedRig) -> None:
    """Their files are placed by a worker, after the move."""
    tokens = rig.stage(0, rows(50, 100_000), rows(50, 100_000), rows(1))
    assert int(str(tokens[0]["bytes"])) > LARGE
    commit = Commit(rig, tokens, ("s",)).until_answered()
    assert commit.seen == [101]


def test_a_batch_without_rows_is_answered(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, rows(1)))
    assert rig.committed(1, [], previous=0)["status"] == "committed"


@pytest.mark.parametrize("name", ["q", "s", "p"])
def test_the_vhost_dies_between_the_decision_and_the_move(rig: StagedRig, name: str) -> None:
    """The commit that Spark repeats waits for the rest of the move."""
    tokens = rig.stage(0, rows(2000), rows(2000))
    for turns in (0, 3):  # before the first slice, and after some
        commit = Commit(rig, tokens, (name,))
        commit.until(lambda: bool(list(batch_manager(rig.vhost).all())))
        most = commit.turns + turns
        commit.until(lambda commit=commit, most=most: commit.turns >= most)  # type: ignore[misc]
        assert commit.answer is None
        rig.restart()
        ready(rig, name)  # the first look at a queue logs a record
        rig.vhost.turn()
        rig.vhost.completed()
    commit = Commit(rig, tokens, (name,)).until_answered()
    assert commit.answer == {"status": "already done", "batch": 0}
    assert commit.seen == [4000]


def test_a_batch_that_takes_too_long_says_how_far_it_is(rig: StagedRig) -> None:
    """Publishers are blocked, so the batch is decided and not moved."""
    rig.vhost.monitor.disk_alarm(True)
    rig.vhost.update_alarms()
    tokens = rig.stage(0, rows(10))
    commit = Commit(rig, tokens, ("s",))
    rig.roll()
    assert commit.answer is None
    rig.tick(WAIT_S)
    assert commit.answer.code == 506
    assert commit.answer.text == (
        "RESOURCE_ERROR - batch 0 of query 'query-1' is decided, and cannot be read yet: batch 0 "
        "is at page 0 of 1, and waits: publishing is blocked, short of disk"
    )
    again = Commit(rig, tokens, ("s",))
    rig.roll()
    assert again.answer is None
    rig.vhost.monitor.disk_alarm(False)
    rig.vhost.update_alarms()
    rig.tick(2)
    again.until_answered()
    assert again.answer == {"status": "already done", "batch": 0}
    assert again.seen == [10]


def test_a_stream_that_is_deleted_holds_up_no_commit(rig: StagedRig) -> None:
    """While its head has not moved: there is nothing to see any more."""
    commit = Commit(rig, rig.stage(0, rows(50, 100_000)), ("s",))
    manager = batch_manager(rig.vhost)
    commit.until(lambda: any(one["is_done"] for one in manager.all()))
    if commit.answer is None:
        rig.vhost.delete_queue(rig.vhost.table.find_queue("s"))
        rig.tick(2)
        rig.roll()
    assert commit.answer == {"status": "committed", "batch": 0}
