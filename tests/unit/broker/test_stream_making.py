"""A stream is declared: its files are made in a worker, and nobody waits for their syncs."""

import errno
from collections.abc import Callable

import pytest

from penstock.broker import operations
from penstock.codec.spec import (
    ChannelClose,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.errors import StoppedError
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.faulty_filesystem import CrashNow

PARTITIONS = 16
STREAMS = "/streams"


def declare(partitions: int = PARTITIONS, *, name: str = "s", nowait: bool = False) -> QueueDeclare:
    arguments: dict[str, object] = {"x-queue-type": "stream", "x-partitions": partitions}
    return QueueDeclare(queue=name, durable=True, nowait=nowait, arguments=arguments)


class Syncs:
    """Counts the syncs of streams' directories: those of submitted operations, and the others."""

    def __init__(self, rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_loop = 0
        self.in_worker = 0
        self._is_in_worker = False
        self._submit = rig.fs.submit
        monkeypatch.setattr(rig.fs, "submit", self._counting)
        rig.fs.before_operation = self._look

    def _counting(self, op: Callable[[], object]) -> int:
        def run() -> object:
            self._is_in_worker = True
            try:
                return op()
            finally:
                self._is_in_worker = False

        return self._submit(run)

    def _look(self, _: int, kind: str, path: str) -> None:
        if kind in ("sync", "sync_dir") and STREAMS in path:
            if self._is_in_worker:
                self.in_worker += 1
            else:
                self.on_loop += 1


def directories(rig: BrokerRig) -> list[str]:
    assert rig.data is not None
    return rig.fs.list(rig.data.vhost_path(b"/") + STREAMS)


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_no_sync_of_a_new_stream_is_done_on_the_loop(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    c = rig.client().open()
    syncs = Syncs(rig, monkeypatch)
    c.call(1, declare(partitions), QueueDeclareOk)
    assert syncs.on_loop == 0
    assert syncs.in_worker == 3 * partitions + 1
    assert len(directories(rig)) == partitions


def test_operations_wait_for_no_sync_either(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(rig, monkeypatch)
    replies: list[object] = []
    arguments = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
    args: dict[str, object] = {"queue": "s", "arguments": arguments}
    operations.call(rig.vhost, None, "declare_queue", args, replies.append)
    assert not replies
    rig.turn()
    assert replies == [{"queue": "s", "messages": 0, "consumers": 0, "is_new": True}]
    assert syncs.on_loop == 0


def test_it_is_answered_once_all_of_it_is_durable(rig: BrokerRig) -> None:
    c = rig.client().open()
    c.send(1, declare())
    turns = 0
    while not c.methods(QueueDeclareOk):
        rig.vhost.turn()
        rig.vhost.completed()
        turns += 1
        assert turns < 200
    assert turns > PARTITIONS  # one directory for each operation: others have their turn
    rig.fs = rig.fs.crash("lost")
    rig.clients = []
    rig.start()
    assert len(rig.vhost.table.find_queue("s", None).parts) == PARTITIONS  # type: ignore[attr-defined]


def test_what_comes_behind_a_declare_waits_for_it_and_other_channels_do_not(
    rig: BrokerRig,
) -> None:
    c = rig.client().open(1).open(2)
    c.send(1, declare(nowait=True))
    c.send(1, QueueBind(queue="s", exchange="amq.fanout"))
    c.send(2, QueueDeclare(queue="q"))
    rig.vhost.turn()
    assert [told.queue for told in c.methods(QueueDeclareOk)] == ["q"]
    assert not c.methods(QueueBindOk)
    rig.turn()
    assert len(c.methods(QueueBindOk)) == 1


def test_two_who_declare_the_same_stream_have_it_made_once(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(rig, monkeypatch)
    first, second = rig.client().open(), rig.client().open()
    first.send(1, declare())
    second.send(1, declare())
    rig.turn()
    assert len(first.methods(QueueDeclareOk)) == len(second.methods(QueueDeclareOk)) == 1
    assert syncs.in_worker == 3 * PARTITIONS + 1


def test_a_name_that_another_took_meanwhile_is_refused_and_the_files_go(rig: BrokerRig) -> None:
    first, second = rig.client().open(), rig.client().open()
    first.send(1, declare())
    second.send(1, QueueDeclare(queue="s", durable=True))
    rig.turn()
    assert len(second.methods(QueueDeclareOk)) == 1
    (refused,) = first.methods(ChannelClose)
    assert refused.reply_code == 406
    assert directories(rig) == []


def test_another_number_of_partitions_is_refused_by_the_stream_that_was_first(
    rig: BrokerRig,
) -> None:
    first, second = rig.client().open(), rig.client().open()
    first.send(1, declare(2))
    second.send(1, declare(3))
    rig.turn()
    assert len(first.methods(QueueDeclareOk)) == 1
    assert len(second.methods(ChannelClose)) == 1
    assert len(directories(rig)) == 2


def test_the_files_of_a_declare_that_nobody_waits_for_any_more_go(rig: BrokerRig) -> None:
    c, other = rig.client().open(), rig.client().open()
    c.send(1, declare())
    other.send(1, declare(3))
    other.send(1, QueueBind(queue="s", exchange="amq.fanout"))
    c.outlet.is_closed = True
    c.handler.lost()
    rig.turn()
    assert len(other.methods(QueueDeclareOk)) == len(other.methods(QueueBindOk)) == 1
    assert len(directories(rig)) == 3


def test_streams_are_made_one_after_the_other(rig: BrokerRig) -> None:
    c = rig.client()
    for channel in range(1, 5):
        c.open(channel)
    for channel in range(1, 5):
        c.send(channel, declare(2, name=f"s{channel}"))
    rig.turn()
    assert [told.queue for told in c.methods(QueueDeclareOk)] == ["s1", "s2", "s3", "s4"]
    numbers = [part.number for part in rig.vhost.engine.streams.by_number.values()]
    assert len(set(numbers)) == 8


def test_a_full_disk_refuses_it_and_the_next_one_goes_on(rig: BrokerRig) -> None:
    c = rig.client().open(1).open(2)
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite"}, path="allMeta")
    c.send(1, declare(2))
    c.send(2, declare(2, name="other"))
    rig.turn()
    (refused,) = c.methods(ChannelClose)
    assert "no space for queue 's'" in refused.reply_text
    assert [told.queue for told in c.methods(QueueDeclareOk)] == ["other"]
    assert len(directories(rig)) == 2


def test_a_failed_sync_stops_the_vhost_and_nothing_is_answered(rig: BrokerRig) -> None:
    c = rig.client().open()
    rig.fs.fail(errno.EIO, kinds={"sync"}, path=STREAMS)
    c.send(1, declare(2))
    with pytest.raises(StoppedError):
        rig.turn()
    assert not c.methods(QueueDeclareOk)


def test_a_stop_in_between_leaves_no_stream(rig: BrokerRig) -> None:
    c = rig.client().open()
    c.send(1, declare())
    for _ in range(5):
        rig.vhost.completed()
    rig.restart()
    assert not rig.vhost.table.has("s")
    assert directories(rig) == []
    rig.client().open().call(1, declare(), QueueDeclareOk)


def test_a_crash_at_every_operation_leaves_no_stream_or_the_whole() -> None:
    at, is_over = 1, False
    seen: set[int] = set()
    while not is_over:
        rig = BrokerRig()
        c = rig.client().open()
        rig.fs.crash_at = rig.fs.operations + at
        is_answered = False
        try:
            c.send(1, declare(3))
            rig.turn()
            is_over = True
        except CrashNow:
            pass
        c.pump()
        is_answered = bool(c.methods(QueueDeclareOk))
        for mode in ("lost", "kept"):
            found = BrokerRig(fs=rig.fs.crash(mode))
            count = len(found.vhost.engine.streams.by_number)
            assert count in (0, 3)
            assert count == len(directories(found))
            assert count == 3 or not is_answered
            seen.add(count)
        at += 1
    assert seen == {0, 3}
    assert at > 30
