"""A crash at every operation of the disk while the topology changes: all of a change, or nothing.

The script declares, binds, changes and deletes, each step answered before the next. Whatever the
crash leaves, the vhost that opens has the topology after the last step that was answered, or after
the one under way: never a part of a step, such as a queue without its bindings, or bindings of a
queue that is gone.
"""

import random
from collections.abc import Callable

import pytest

from penstock.broker.vhost import VHost
from penstock.errors import AMQPError
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_engine import PATH
from tests.helpers.vhost_rig import VHostRig, classic

Facts = tuple[dict[str, object], dict[str, object], set[object]]
Step = Callable[[VHostRig], int]


def durable_facts(vhost: VHost) -> Facts:
    """What should come back of this vhost: queues, exchanges, bindings, messages."""
    queues: dict[str, object] = {}
    kept: set[str] = set()
    for name in vhost.table.names():
        queue = vhost.table.find(name)
        assert queue is not None
        if classic(queue).amq.is_durable:
            kept.add(name)
            queues[name] = (
                queue.is_auto_delete, repr(sorted(queue.arguments.items())), queue.len(),
                classic(queue).amq.delayed(),
            )  # fmt: skip
    exchanges: dict[str, object] = {
        name: (x.type, x.auto_delete, x.internal, repr(sorted(x.arguments.items())))
        for name, x in vhost.exchanges.items()
        if x.durable
    }
    bindings: set[object] = {
        (b.source, b.kind, b.destination, b.key, repr(sorted(b.arguments.items())))
        for b in vhost.router.bindings()
        if b.source in exchanges and b.destination in (kept if b.kind == "q" else exchanges)
    }
    return queues, exchanges, bindings


def declared(name: str, **how: object) -> Step:
    def step(rig: VHostRig) -> int:
        given: dict[str, object] = {"durable": True, **how}
        return rig.vhost.declare_queue(name, **given)[1]  # type: ignore[arg-type]

    return step


def exchange(name: str, **how: object) -> Step:
    def step(rig: VHostRig) -> int:
        return rig.vhost.topology.declare_exchange(name, "topic", durable=True, **how)  # type: ignore[arg-type]

    return step


def bound(queue: str, source: str, key: str = "k") -> Step:
    return lambda rig: rig.vhost.bind_queue(queue, source, key, {"a": [1, b"\xff"]})


def published(queue: str, **how: int) -> Step:
    def step(rig: VHostRig) -> int:
        return classic(rig.vhost.table.find_queue(queue)).amq.publish(
            b"", b"x" * 150, rig.vhost.mode, **how
        )

    return step


def deleted(queue: str) -> Step:
    return lambda rig: rig.vhost.delete_queue(rig.vhost.table.find_queue(queue))[1]


def checkpointed(rig: VHostRig) -> int:
    rig.vhost.engine.checkpoint()
    return rig.vhost.engine.log.last_lsn


STEPS: list[Step] = [
    declared("plain", arguments={"x-mine": b"\xff"}),
    declared("prio", arguments={"x-max-priority": 2}, auto_delete=True),
    exchange("x", auto_delete=True, arguments={"alternate-exchange": "amq.fanout"}),
    exchange("y", auto_delete=True, internal=True),
    bound("plain", "amq.direct"),
    bound("prio", "x"),
    bound("prio", "x", "#"),
    lambda rig: rig.vhost.topology.bind_exchange("x", "y", "k"),
    published("prio", priority=1),
    published("prio", delay_ms=60_000),
    checkpointed,
    lambda rig: rig.vhost.unbind_queue("prio", "x", "k", {"a": [1, b"\xff"]}),
    deleted("prio"),  # and with it x, and with that y
    declared("prio", arguments={"x-max-priority": 2}, auto_delete=True),
    exchange("x"),
    bound("plain", "x"),
    lambda rig: rig.vhost.topology.delete_exchange("x"),
    deleted("plain"),
    published("prio"),
    lambda rig: rig.vhost.purge_queue(rig.vhost.table.find_queue("prio"))[1],
]


def lived(fs: FaultyFileSystem) -> tuple[VHostRig, list[Facts]]:
    """Run the script; the facts after each step, the first before any. Answers are noted."""
    rig = VHostRig(fs)
    facts = [durable_facts(rig.vhost)]
    assert fs.journal is not None
    fs.journal.note(0)
    for n, step in enumerate(STEPS, 1):
        rig.answered(step(rig))
        facts.append(durable_facts(rig.vhost))
        fs.journal.note(n)
    return rig, facts


@pytest.mark.parametrize("mode", ["lost", "kept", "killed", "subset"])
def test_a_crash_at_every_operation(mode: str) -> None:
    fs = FaultyFileSystem(seed=3, journal=True)
    _, facts = lived(fs)
    journal = fs.journal
    assert journal is not None
    first = next(at for at, note in journal.notes if note == 0)
    seen: set[int] = set()
    for number, image in journal.images(first):
        answered = max(note for note in journal.noted(number) if isinstance(note, int))
        rig = VHostRig(image.crash(mode, random.Random(number)))
        found = durable_facts(rig.vhost)
        allowed = facts[answered : answered + 2]
        assert found in allowed, (number, answered, found, allowed)
        seen.add(answered)
        rig.vhost.abandon()
    assert seen == set(range(len(STEPS) + 1))


def random_step(rng: random.Random) -> Step:
    """Anything that changes the topology; what is refused changes nothing."""
    queue, other = rng.choice("pqr"), rng.choice("pqr")
    source, target = rng.choice(("a", "b", "c", "amq.topic")), rng.choice("abc")
    key = rng.choice(("k", "#"))
    durable, auto_delete = rng.random() < 0.8, rng.random() < 0.5
    priorities = rng.choice((0, 2))
    what = rng.randrange(11)

    def step(rig: VHostRig) -> int:
        vhost = rig.vhost
        if what in (0, 1):
            arguments: dict[str, object] = {"x-max-priority": priorities} if priorities else {}
            return vhost.declare_queue(queue, durable=durable, arguments=arguments)[1]
        if what == 2:
            return vhost.delete_queue(vhost.table.find_queue(queue))[1]
        if what == 3:
            return vhost.topology.declare_exchange(
                target, "topic", durable=durable, auto_delete=auto_delete
            )
        if what == 4:
            return vhost.topology.delete_exchange(target)
        if what in (5, 6):
            return vhost.bind_queue(queue, source, key)
        if what == 7:
            return vhost.unbind_queue(queue, source, key)
        if what == 8:
            return vhost.topology.bind_exchange(target, source, key)
        if what == 9:
            return vhost.topology.unbind_exchange(target, source, key)
        return classic(vhost.table.find_queue(other)).amq.publish(b"", b"x" * 140, vhost.mode)

    return step


@pytest.mark.parametrize("seed", range(25))
def test_random_lives(seed: int) -> None:
    """Random steps, a crash somewhere, and on with what is left; four times."""
    rng = random.Random(seed)
    fs = FaultyFileSystem(seed=seed)
    for _ in range(4):
        fs.start_journal()
        rig = VHostRig(fs)
        facts = [durable_facts(rig.vhost)]
        assert fs.journal is not None
        fs.journal.note(0)
        for n in range(1, 25):
            try:
                rig.answered(random_step(rng)(rig))
            except AMQPError:
                pass
            facts.append(durable_facts(rig.vhost))
            fs.journal.note(n)
        stored = rig.vhost.engine.state.routing
        assert len(stored.bindings) == len(facts[-1][2])  # none of what is gone
        at = rng.randint(fs.journal.notes[0][0], fs.journal.last)
        answered = max(note for note in fs.journal.noted(at) if isinstance(note, int))
        fs = fs.journal.image(at).crash(rng.choice(("lost", "kept", "subset")), rng)
        again = VHostRig(fs)
        found = durable_facts(again.vhost)
        assert found in facts[answered : answered + 2], (at, answered, found)
        again.vhost.abandon()


def test_the_script_survives_an_orderly_stop() -> None:
    rig, facts = lived(FaultyFileSystem(seed=3, journal=True))
    rig.restart()
    assert durable_facts(rig.vhost) == facts[-1]
    assert rig.fs.exists(PATH)
