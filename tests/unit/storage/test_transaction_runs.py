"""Runs of a transaction: many messages with one header for one queue, as one step."""

from typing import Any

import pytest

from penstock.errors import UnknownQueueError
from penstock.storage.files.durability import DISK, OS
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED
STOPS = ["restart", "lost", "kept", "killed"]


def stop(rig: EngineRig, how: str) -> None:
    rig.restart() if how == "restart" else rig.crash(how)


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("expiry_ms", [0, 1 << 45])
@pytest.mark.parametrize("limits", [{}, {"tx_record_bytes": 400, "tx_part_bytes": 120}])
def test_a_run_is_as_many_publishes(how: str, expiry_ms: int, limits: dict[str, Any]) -> None:
    found: list[Any] = []
    for is_run in (True, False):
        rig = EngineRig(**limits)
        queue, other = rig.declare(b"q", b"other")
        rig.put(queue, b"before")
        tx = rig.engine.begin()
        tx.publish([queue, other], b"", b"first")
        if is_run:
            run = tx.publish_run(queue, b"h", [b"1", b"", b"333"], expiry_ms)
            assert run is not None
            assert run.first_seq == -1
        else:
            for body in (b"1", b"", b"333"):
                tx.publish([queue], b"h", body, expiry_ms)
        tx.publish([queue], b"", b"last")
        sizes = tx.log_bytes, tx.body_bytes
        tx.dequeue(queue, rig.entries(queue, 0))
        rig.engine.wait(tx.commit(DISK), DISK)
        if is_run:
            assert run is not None
            assert (run.first_seq, run.born) == (2, [])
        log = rig.engine.log
        measures = (sizes, log.last_lsn, log.appended_bytes, queue.count, queue.bytes)
        stop(rig, how)
        queue = rig.queue(b"q")
        entries = [rig.engine.entry(queue, seq) for seq in live_seqs(queue)]
        messages = [(e.seq, e.message.id, e.message.header, e.message.expiry_ms) for e in entries]
        found.append((measures, messages, rig.bodies(queue)))
    assert found[0] == found[1]
    assert list(found[0][2].values()) == [b"first", b"1", b"", b"333", b"last"]


def test_a_run_is_refused_if_a_body_belongs_elsewhere() -> None:
    rig = EngineRig(tx_spool_bytes=STORED + 100)
    queue = rig.queue()
    tx = rig.engine.begin()
    assert tx.publish_run(queue, b"", [b"0", BIG]) is None, "the store"
    assert tx.publish_run(queue, b"", [b"0" * 60] * ((STORED + 100) // 60 + 1)) is None, "spooled"
    assert (tx.publishes, tx.body_bytes, tx.log_bytes) == ([], 0, 0)
    assert tx.publish_run(queue, b"", [b"0"]) is not None
    tx.commit(DISK)
    assert rig.bodies(queue) == {0: b"0"}


def test_a_run_for_a_queue_that_goes_is_gone_with_it() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    tx = rig.engine.begin()
    gone = tx.publish_run(a, b"", [b"1", b"2"])
    tx.publish([b], b"", b"3")
    rig.engine.delete_queues([a], OS)
    tx.commit(DISK)
    assert gone is not None
    assert gone.first_seq == -1
    assert rig.bodies(b) == {0: b"3"}
    tx = rig.engine.begin()
    tx.publish_run(b, b"", [b"4"])
    tx.rollback()
    assert rig.bodies(b) == {0: b"3"}
    with pytest.raises(UnknownQueueError):
        rig.engine.begin().publish_run(a, b"", [b"1"])
