"""A crash at every operation of the disk while messages move: each is in one queue, once.

`move_messages` moves the messages of "from", some to "to" and, as dead letters, some back to where
they died. After each operation, in each way that a disk may be left, a new broker must find

    M1  every message in one of the queues, once
    M2  what was reported as moved at its target
    M3  the order of the messages that moved, and of those that did not
"""

import random
from typing import Any

import pytest

from penstock.broker import operations
from tests.crash.broker_life import MODES, drain
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.faulty_filesystem import FaultyFileSystem

pytestmark = pytest.mark.crash

SIZES = (0, 40, 400, 5_000, 100_000, 7, 200_000, 60)
BODIES = [b"%d " % n + b"x" * size for n, size in enumerate(SIZES)]
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "from"}


def result(rig: BrokerRig, op: str, **args: object) -> Any:
    replies: list[Any] = []
    operations.call(rig.vhost, None, op, args, replies.append)
    rig.turn()
    (reply,) = replies
    assert not isinstance(reply, BaseException), reply
    return reply


def told_rig(*, is_replay: bool) -> BrokerRig:
    """A broker with all messages in "from"; of a replay, half of them died in "to"."""
    rig = BrokerRig(fs=FaultyFileSystem(seed=1))
    result(rig, "declare_queue", queue="from")
    result(rig, "declare_queue", queue="to", arguments=DEAD if is_replay else {})
    for n, body in enumerate(BODIES):
        queue = "to" if is_replay and n % 2 else "from"
        result(rig, "publish", routing_key=queue, bodies=[body], properties={"delivery_mode": 2})
        if queue == "to":
            amq = rig.vhost.table.find_messages("to", None, "").amq
            delivery = amq.fetch()
            assert delivery is not None
            amq.reject(delivery.tag)
            rig.turn()
    return rig


@pytest.mark.parametrize("is_replay", [False, True], ids=["move", "replay"])
def test_no_crash_loses_or_doubles_what_moves(is_replay: bool) -> None:
    rig = told_rig(is_replay=is_replay)
    rig.restart()  # what came before is on disk, the deaths too
    journal = rig.fs.start_journal()
    moved = 0
    for _ in range(len(BODIES)):
        found = result(rig, "move_messages", queue="from", to=None if is_replay else "to", count=3)
        moved += found["moved"]
        journal.note(moved)
        if not found["moved"]:
            break
    rig.fs.journal = None
    wanted = BODIES[1::2] if is_replay else BODIES
    assert moved == len(wanted)
    chance = random.Random(1)
    images = 0
    for at, fs in journal.images():
        reported = [int(str(one)) for one in journal.noted(at)]
        for mode in MODES:
            images += 1
            where = f"operation {at} of {journal.last}, {mode}"
            check(fs.with_disk(fs.disk.copy()).crash(mode, chance), wanted, reported, where)
    assert images > 5 * len(MODES)


def check(fs: FaultyFileSystem, wanted: list[bytes], reported: list[int], where: str) -> None:
    rig = BrokerRig(fs=fs)
    client = rig.client().open()
    there = [message.body for message in drain(client, "to")]
    rest = [message.body for message in drain(client, "from")]
    assert sorted(there + rest) == sorted(BODIES), where
    assert there == wanted[: len(there)], where
    assert len(there) >= max(reported, default=0), where
    assert rest == [body for body in BODIES if body not in there], where
    rig.vhost.close()
