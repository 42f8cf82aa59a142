"""Exchanges of RabbitMQ's plugins, used by somebody who wants to do harm: RAM and turns."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock.access.permissions import Identity, everything
from penstock.broker import background_tasks
from penstock.codec.method import Method
from penstock.codec.spec import (
    ChannelClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueUnbind,
    QueueUnbindOk,
)
from penstock.routing.exchange_types import Asked as Asking
from penstock.routing.exchange_types import Binding, ExchangeType, make_exchange_type
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import Asked, OperationRig
from tests.helpers.steps import cost_of

MIB = 1 << 20


def history(c: RigClient, name: str, length: int = 1 << 30) -> None:
    c.call(
        1, ExchangeDeclare(exchange=name, type="x-recent-history",
                           arguments={"x-recent-history-length": length}),
        ExchangeDeclareOk,
    )  # fmt: skip


def kept(rig: BrokerRig, name: str) -> list[bytes]:
    found = rig.vhost.router.history_of(name)
    assert found is not None
    return [one.body for one in found.kept]


# ---- RAM of histories ----------------------------------------------------------------------------


def test_histories_of_one_user_leave_room_for_those_of_others() -> None:
    rig = BrokerRig(memory_bytes=64 * MIB)
    eve, ada = rig.client(everything("eve")).open(), rig.client(everything("ada")).open()
    before = rig.vhost.topology_bytes
    for n in range(64):
        history(eve, f"h{n}")
        for _ in range(10):
            eve.publish(1, f"h{n}", "", bytes(100_000))
        rig.turn()
    assert rig.vhost.topology_bytes - before < 64 * MIB // 32 + MIB  # not 64 MiB
    history(ada, "ada's")
    ada.publish(1, "ada's", "", b"mine")
    rig.turn()
    assert kept(rig, "ada's") == [b"mine"]


def test_a_history_without_room_has_the_last_messages_that_fit() -> None:
    rig = BrokerRig(memory_bytes=8 * MIB)
    eve = rig.client(everything("eve")).open()
    for name in ("a", "b"):
        history(eve, name)
        for n in range(10):
            eve.publish(1, name, "", b"%d" % n + bytes(50_000))
        rig.turn()
    first, second = kept(rig, "a"), kept(rig, "b")
    assert [body[:1] for body in first] == [b"5", b"6", b"7", b"8", b"9"]
    assert second == []
    eve.publish(1, "b", "", b"small")
    rig.turn()
    assert kept(rig, "b") == [b"small"]


def test_what_a_deleted_history_took_is_free_again() -> None:
    rig = OperationRig(memory_bytes=8 * MIB)
    eve = rig.client(everything("eve")).open()
    before = rig.vhost.topology_bytes
    history(eve, "a")
    eve.publish(1, "a", "", bytes(200_000))
    rig.turn()
    assert len(kept(rig, "a")) == 1
    rig.result("delete_exchange", exchange="a")
    assert rig.vhost.topology_bytes == before
    history(eve, "b")
    eve.publish(1, "b", "", bytes(200_000))
    rig.turn()
    assert len(kept(rig, "b")) == 1


# ---- RAM of keys ---------------------------------------------------------------------------------

ONCE = {"x-message-deduplication": True, "x-cache-size": 20_000}  # 5 MiB


def declare_until_refused(c: RigClient, method: Callable[[int], Method], kind: type[Method]) -> int:
    """How many of these the user may declare."""
    for n in range(50):
        c.send(1, method(n))
        c.rig.turn()
        if not c.methods(kind):
            (close,) = c.methods(ChannelClose)
            assert close.reply_code == 406
            assert "x-cache-size takes 5 MiB" in close.reply_text
            return n
    raise AssertionError("any number")


@pytest.mark.parametrize("what", ["queues", "exchanges"])
def test_keys_that_one_user_may_keep_leave_room_for_the_others(what: str) -> None:
    rig = BrokerRig(memory_bytes=64 * MIB)
    eve, ada = (
        rig.client(Identity(name, frozenset(), ".*", ".*", ".*")) for name in ("eve", "ada")
    )
    queue, exchange = (
        lambda n: QueueDeclare(queue=f"q{n}", arguments=ONCE),
        lambda n: ExchangeDeclare(exchange=f"x{n}", type="direct", arguments=ONCE),
    )
    method, kind = (queue, QueueDeclareOk) if what == "queues" else (exchange, ExchangeDeclareOk)
    assert 3 <= declare_until_refused(eve.open(), method, kind) <= 5  # of 32 MiB
    ada.open().call(1, method(100), kind)
    rig.tick(3)
    assert rig.vhost.blocked_reason == ""
    assert rig.vhost.monitor.other_bytes < 32 * MIB


def test_keys_of_a_deleted_queue_are_room_again() -> None:
    rig = OperationRig(memory_bytes=64 * MIB)
    before = rig.vhost.topology_bytes
    for _ in range(20):
        rig.result("declare_queue", queue="q", arguments=ONCE)
        rig.result("declare_exchange", exchange="x", type="fanout", arguments=ONCE)
        assert rig.vhost.topology_bytes > before + 7 * MIB
        rig.result("delete_queue", queue="q")
        rig.result("delete_exchange", exchange="x")
    assert rig.vhost.topology_bytes == before


# ---- turns ---------------------------------------------------------------------------------------


@pytest.fixture
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that time does not end a turn."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)


@pure_only
@pytest.mark.usefixtures("one_step_a_turn")
@pytest.mark.parametrize("way", ["exchange.bind", "bind_queue"])
def test_a_long_history_is_sent_to_a_new_binding_in_slices(way: str) -> None:
    rig = OperationRig()
    c = rig.client().open()
    history(c, "h")
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    c.call(1, ExchangeDeclare(exchange="x", type="fanout"), ExchangeDeclareOk)
    c.call(1, QueueBind(queue="q", exchange="x"), QueueBindOk)
    for n in range(2000):
        c.publish(1, "h", "", b"%d" % n, headers={"n": n})
    rig.turn()
    assert len(kept(rig, "h")) == 2000
    asked: list[Asked] = []
    queue = rig.vhost.table.served["q"]
    if way == "exchange.bind":
        c.send(1, ExchangeBind(destination="x", source="h"))
    else:
        asked.append(rig.ask("bind_queue", queue="q", exchange="h"))
    depths = [queue.len()]
    while depths[-1] < 2000:
        assert not c.methods(ExchangeBindOk)
        assert not (asked and asked[0].has_come)
        rig.vhost.turn()
        depths.append(queue.len())
    assert max(after - before for before, after in pairwise([0, *depths])) <= 600
    rig.turn()
    assert len(c.methods(ExchangeBindOk)) + len(asked) == 1
    assert not asked or asked[0].result


def test_a_history_is_sent_to_the_end_if_the_channel_is_closed_meanwhile() -> None:
    rig = OperationRig()
    c = rig.client().open()
    history(c, "h")
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for n in range(2000):
        c.publish(1, "h", "", b"%d" % n)
    rig.turn()
    c.send(1, QueueBind(queue="q", exchange="h"))
    queue = rig.vhost.table.served["q"]
    assert queue.len() < 2000
    c.lose()
    rig.turn()
    assert queue.len() == 2000


# ---- selecting -----------------------------------------------------------------------------------


def hashed(*targets: str, **arguments: object) -> ExchangeType:
    found = make_exchange_type("x-consistent-hash", arguments)
    for name in targets:
        found.bind(Binding("x", "q", name, "1", {}))
    return found


def selected(exchange: ExchangeType, key: str, steps: int) -> tuple[str, int]:
    """The target of a key, and how many slices of so many steps it took."""
    asked, found = Asking([key], None, steps), dict[str, int]()
    rest, slices = exchange.select(asked, found), 1
    while rest is not None:
        asked.steps = steps
        rest, slices = rest.go_on(asked, found), slices + 1
    (target,) = found
    return target, slices


def test_a_consistent_hash_of_many_targets_selects_in_slices_what_it_selects_at_once() -> None:
    exchange = hashed(*[f"q{n}" for n in range(1000)])
    for n in range(20):
        target, slices = selected(exchange, f"k{n}", 16)
        assert slices > 10
        assert (target, 1) == selected(exchange, f"k{n}", 100_000)


def test_a_target_that_goes_between_two_slices_is_not_selected() -> None:
    names = [f"q{n}" for n in range(40)]
    exchange = hashed(*names)
    found_first = {key: selected(exchange, key, 100_000)[0] for key in map(str, range(100))}
    key, target = next((k, t) for k, t in found_first.items() if t[1:] in names[20:])
    asked, found = Asking([key], None, 0), dict[str, int]()
    rest = exchange.select(asked, found)
    assert rest is not None
    exchange.unbind(Binding("x", "q", target[1:], "1", {}))
    while rest is not None:
        asked.steps = 1
        rest = rest.go_on(asked, found)
    assert list(found) != [target]


@pure_only
def test_a_chain_of_hashes_reads_a_large_header_once() -> None:
    exchanges = [hashed("a", **{"hash-header": "h"}) for _ in range(50)]
    headers: dict[str, object] = {"h": [[n] for n in range(1000)]}

    def cost(given: list[ExchangeType]) -> int:
        asked = Asking(["k"], headers, 1 << 20)
        return cost_of(lambda: [one.select(asked, {}) for one in given]).lines

    assert cost(exchanges) < 2 * cost(exchanges[:1])


@pure_only
@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash"])
def test_a_binding_among_many_costs_what_one_among_few_does(
    kind: str,
) -> None:
    exchange = make_exchange_type(kind, {})
    compared = 0

    class Counted(str):
        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str.__lt__(self, other)

        __hash__ = str.__hash__

    for n in range(1000):
        binding = Binding("x", "q", f"q{n * 7919 % 1000}", "", {})
        binding.target = Counted(binding.target)
        exchange.bind(binding)
    assert compared < 1000 * 12  # not of all others each time


# ---- what is audited -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "headers", "x-random", "x-recent-history"])
def test_a_binding_of_any_exchange_is_audited(kind: str) -> None:
    rig = BrokerRig()
    entries: list[str] = []
    rig.vhost.on_audit = lambda op, _user, _place, _args: entries.append(op)
    c = rig.client().open()
    c.call(1, ExchangeDeclare(exchange="x", type=kind), ExchangeDeclareOk)
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for _ in range(2):  # the second one changes nothing
        c.call(1, QueueBind(queue="q", exchange="x"), QueueBindOk)
    for _ in range(2):
        c.call(1, QueueUnbind(queue="q", exchange="x"), QueueUnbindOk)
    assert entries == ["declare_exchange", "declare_queue", "bind_queue", "unbind_queue"]
