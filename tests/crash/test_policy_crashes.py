"""Policies and parameters that come and go, with a crash after each operation of the disk.

What was answered is there again, what was not is there whole or not at all, and a queue has what
the policies say that are there.
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.broker.policies import KEYS, least
from tests.crash.broker_life import MODES, NEVER
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.journal import Journal
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic

pytestmark = pytest.mark.crash

CHANGES = 10
MAX_LENGTH = KEYS["max-length"]


@dataclass
class Change:
    """One: the limit that a policy has then, None if it is cleared. began_at, told_at: the disk
    operation that was last when it was asked for and answered."""

    kind: str
    value: int | None
    began_at: int
    told_at: int = NEVER


def life(seed: int) -> tuple[list[Change], Journal]:
    """Changes of one policy, one operator policy and one parameter."""
    rng = random.Random(seed)
    rig = OperationRig(fs=FaultyFileSystem(seed=seed))
    rig.result("declare_queue", queue="q")
    journal = rig.fs.start_journal()
    changes: list[Change] = []
    for n in range(CHANGES):
        kind = rng.choice(("policy", "operator_policy", "parameter"))
        is_there = [one for one in changes if one.kind == kind and one.value is not None]
        last = next((one for one in reversed(changes) if one.kind == kind), None)
        is_cleared = bool(is_there) and last is is_there[-1] and rng.random() < 0.4
        change = Change(kind, None if is_cleared else n + 1, journal.last)
        changes.append(change)
        where: dict[str, Any] = {"component": "shovel"} if kind == "parameter" else {}
        if is_cleared:
            asked = rig.ask(f"clear_{kind}", name="p", **where)
        elif kind == "parameter":
            asked = rig.ask("set_parameter", name="p", value=n + 1, **where)
        else:
            definition = {"max-length": n + 1}
            asked = rig.ask(f"set_{kind}", name="p", pattern="", definition=definition)
        if rng.random() < 0.3:
            rig.vhost.turn()
        else:
            rig.turn()
        if rng.random() < 0.2:
            rig.tick(40.0)  # a checkpoint
        if asked.has_come:
            assert asked.result is not None
            change.told_at = journal.last
    rig.turn()
    rig.fs.journal = None
    return changes, journal


def judge(changes: list[Change], fs: FaultyFileSystem, at: int) -> list[str]:
    """What is wrong with what a crash after this operation left."""
    rig = OperationRig(fs=fs)
    there: dict[str, int | None] = {"policy": None, "operator_policy": None, "parameter": None}
    for kind in ("policy", "operator_policy"):
        for row in rig.result(f"list_{kind.removesuffix('y')}ies"):
            there[kind] = row["definition"]["max-length"]
    for row in rig.result("list_parameters"):
        there["parameter"] = row["value"]
    wrong = []
    for kind, value in there.items():
        own = [change for change in changes if change.kind == kind and change.began_at <= at]
        told = [n for n, change in enumerate(own) if change.told_at <= at]
        allowed = [change.value for change in own[told[-1] if told else 0 :]]
        if not told:
            allowed.append(None)
        if value not in allowed:
            wrong.append(f"{kind} is {value}, expected one of {allowed}")
    limits = [there[kind] for kind in ("policy", "operator_policy") if there[kind] is not None]
    expected = None if not limits else limits[0]
    if len(limits) == 2:
        expected = least(MAX_LENGTH, *limits)  # type: ignore[assignment]
    queue = rig.vhost.table.find("q")
    if queue is not None and classic(queue).amq.options.max_length != expected:
        wrong.append(f"the queue has {classic(queue).amq.options.max_length}, not {expected}")
    rig.vhost.close()
    return wrong


def test_a_crash_after_each_operation(crash_images: int) -> None:
    wrong = []
    for seed in range(max(crash_images // 400, 5)):
        changes, journal = life(seed)
        for at in range(journal.first, journal.last + 1):
            mode = MODES[at % len(MODES)]
            fs = journal.image(at).crash(mode, random.Random(at))
            where = f"seed {seed}, operation {at} of {journal.last}, {mode}"
            wrong += [f"{where}: {text}" for text in judge(changes, fs, at)]
    assert not wrong, "\n".join(wrong[:20])


def test_the_judge_sees_what_is_lost() -> None:
    changes, journal = life(1)
    fs = journal.image(journal.first).crash("lost", random.Random(1))
    assert any("expected one of" in text for text in judge(changes, fs, journal.last))
