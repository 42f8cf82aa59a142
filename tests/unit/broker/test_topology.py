"""Exchanges and bindings of a vhost: refusals, auto-delete, what a restart brings back."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import topology
from penstock.broker.topology import SYSTEM
from penstock.errors import AMQPConnectionError, AMQPError, ChannelError
from penstock.routing import exchange_types
from penstock.storage.files.durability import DISK
from penstock.storage.index.routing_table import DurableExchange as StoredExchange
from tests.helpers.builds import pure_only
from tests.helpers.routed import route
from tests.helpers.vhost_rig import VHostRig


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def refused(call: object, *given: object, **how: object) -> AMQPError:
    """The error that the call ends in."""
    assert callable(call)
    try:
        call(*given, **how)
    except AMQPError as error:
        return error
    raise AssertionError("it was not refused")


# --- declaring ---


def test_a_vhost_has_the_exchanges_that_all_have(rig: VHostRig) -> None:
    found = {name: (x.type, x.internal) for name, x in rig.vhost.exchanges.items()}
    assert found == SYSTEM
    assert all(exchange.durable for exchange in rig.vhost.exchanges.values())
    assert rig.vhost.topology.is_internal("amq.rabbitmq.trace")
    assert not rig.vhost.engine.state.routing.exchanges


def test_only_what_is_durable_has_an_lsn_and_survives(rig: VHostRig) -> None:
    vhost = rig.vhost
    lsn = vhost.topology.declare_exchange(
        "kept", "topic", durable=True, auto_delete=True, internal=True,
        arguments={"alternate-exchange": "amq.fanout", "x": [1, b"\xff"]},
    )  # fmt: skip
    assert lsn == vhost.engine.log.last_lsn
    assert vhost.topology.declare_exchange("gone", "direct") == 0
    rig.answered(lsn)
    kept = rig.crash().exchanges["kept"]
    assert (kept.type, kept.durable, kept.auto_delete, kept.internal) == ("topic", True, True, True)
    assert kept.arguments == {"alternate-exchange": "amq.fanout", "x": [1, b"\xff"]}
    assert "gone" not in rig.vhost.exchanges


def test_declaring_again_must_be_the_same(rig: VHostRig) -> None:
    arguments: dict[str, object] = {"alternate-exchange": "ae", "x-mine": 1}
    rig.vhost.topology.declare_exchange("x", "direct", durable=True, arguments=arguments)
    assert (
        rig.vhost.topology.declare_exchange("x", "direct", durable=True, arguments=arguments) == 0
    )
    for change, name, text in (
        ({"type_name": "fanout"}, "type", "received 'fanout' but current is 'direct'"),
        ({"durable": False}, "durable", "received 'false' but current is 'true'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"internal": True}, "internal", "received 'true' but current is 'false'"),
        (
            {"arguments": {"x-mine": 1}}, "alternate-exchange",
            "received none but current is the value 'ae' of type 'longstr'",
        ),
    ):  # fmt: skip
        given = {"type_name": "direct", "durable": True, "arguments": arguments, **change}
        error = refused(rig.vhost.topology.declare_exchange, "x", **given)
        assert error.code == 406
        what = f"inequivalent arg '{name}' for exchange 'x' in vhost 'test'"
        assert error.text == f"PRECONDITION_FAILED - {what}: {text}"
    assert rig.vhost.topology.declare_exchange("amq.direct", "direct", durable=True) == 0


@pytest.mark.parametrize(
    ("name", "type_name", "arguments", "code", "text"),
    [
        ("x", "magic", {}, 503, "COMMAND_INVALID - unknown exchange type 'magic'"),
        ("", "direct", {}, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (
            "amq.mine", "direct", {}, 403,
            "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (
            "x", "direct", {"alternate-exchange": 5}, 406,
            "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in "
            "exchange 'x' in vhost 'test'",
        ),
        (
            "x", "direct", {"alternate-exchange": None}, 406,
            "PRECONDITION_FAILED - invalid type 'void' for arg 'alternate-exchange' in "
            "exchange 'x' in vhost 'test'",
        ),
        ("x", "", {}, 503, "COMMAND_INVALID - invalid exchange type ''"),
    ],
)  # fmt: skip
def test_what_cannot_be_declared(
    rig: VHostRig, name: str, type_name: str, arguments: dict[str, object], code: int, text: str
) -> None:
    error = refused(
        rig.vhost.topology.declare_exchange, name, type_name, durable=True, arguments=arguments
    )
    assert (error.code, error.text) == (code, text)
    assert isinstance(error, AMQPConnectionError) == (code == 503)
    assert set(rig.vhost.exchanges) == set(SYSTEM)


def test_a_delayed_exchange_needs_a_type(rig: VHostRig) -> None:
    error = refused(rig.vhost.topology.declare_exchange, "d", "x-delayed-message", durable=True)
    assert error.code == 406
    assert "d" not in rig.vhost.exchanges
    lsn = rig.vhost.topology.declare_exchange(
        "d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"}
    )
    rig.answered(lsn)
    assert rig.crash().router.delayed("d")


def test_passive_declare(rig: VHostRig) -> None:
    assert rig.vhost.topology.check_exchange("amq.topic").type == "topic"
    error = refused(rig.vhost.topology.check_exchange, "x")
    assert error.text == "NOT_FOUND - no exchange 'x' in vhost 'test'"
    assert refused(rig.vhost.topology.check_exchange, "").code == 403


# --- deleting ---


def test_deleting_takes_the_bindings_along(rig: VHostRig) -> None:
    vhost = rig.vhost
    rig.queue()
    vhost.topology.declare_exchange("a", "fanout", durable=True)
    vhost.topology.declare_exchange("b", "fanout", durable=True)
    vhost.topology.bind_exchange("b", "a", "")
    rig.answered(vhost.bind_queue("q", "b", ""))
    assert route(vhost.router, "a", "") == ["q"]
    error = refused(vhost.topology.delete_exchange, "b", if_unused=True)
    assert error.text == "PRECONDITION_FAILED - exchange 'b' in vhost 'test' in use"
    rig.answered(vhost.topology.delete_exchange("b"))
    assert route(vhost.router, "a", "") == []
    vhost = rig.crash()
    assert "b" not in vhost.exchanges
    assert not vhost.engine.state.routing.bindings
    assert vhost.topology.delete_exchange("b") == 0  # which is not there
    rig.answered(vhost.topology.delete_exchange("a", if_unused=True))
    assert not rig.crash().engine.state.routing.exchanges


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "operation not permitted on the default exchange"),
        ("amq.direct", "deletion of system exchange 'amq.direct' in vhost 'test' not allowed"),
    ],
)
def test_nobody_deletes_what_is_always_there(rig: VHostRig, name: str, text: str) -> None:
    assert refused(rig.vhost.topology.delete_exchange, name).text == f"ACCESS_REFUSED - {text}"


# --- bindings ---


def test_a_binding_is_as_durable_as_both_its_ends(rig: VHostRig) -> None:
    vhost = rig.vhost
    rig.queue("durable")
    rig.queue("passing", durable=False)
    vhost.topology.declare_exchange("d", "direct", durable=True)
    vhost.topology.declare_exchange("t", "direct")
    lsns = [
        vhost.bind_queue("durable", "d", "k"),
        vhost.bind_queue("durable", "amq.direct", "k"),
        vhost.bind_queue("durable", "t", "k"),
        vhost.bind_queue("passing", "d", "k"),
        vhost.topology.bind_exchange("d", "t", "k"),
        vhost.topology.bind_exchange("d", "amq.topic", "#"),
    ]
    assert [bool(lsn) for lsn in lsns] == [True, True, False, False, False, True]
    rig.answered(max(lsns))
    router = rig.crash().router
    assert route(router, "d", "k") == ["durable"]
    assert route(router, "amq.direct", "k") == ["durable"]
    assert route(router, "amq.topic", "k") == ["durable"]
    assert sum(1 for _ in router.bindings()) == 3


def test_binding_twice_is_one_binding(rig: VHostRig) -> None:
    rig.queue()
    arguments = {"x-match": "any", "a": 1, "b": {"c": 2, "d": 3}}
    assert rig.vhost.bind_queue("q", "amq.headers", "k", arguments)
    other_order = {"b": {"d": 3, "c": 2}, "a": 1, "x-match": "any"}
    assert rig.vhost.bind_queue("q", "amq.headers", "k", other_order) == 0
    rig.answered(rig.vhost.unbind_queue("q", "amq.headers", "k", other_order))
    assert not rig.crash().engine.state.routing.bindings


def test_unbinding_after_a_restart(rig: VHostRig) -> None:
    rig.queue()
    arguments = {"x": [1.5, b"\xff", None], "y": 1 << 40}
    rig.vhost.bind_queue("q", "amq.topic", "a.*", arguments)
    vhost = rig.restart()
    assert route(vhost.router, "amq.topic", "a.b") == ["q"]
    assert vhost.unbind_queue("q", "amq.topic", "a.b", arguments) == 0  # another key
    rig.answered(vhost.unbind_queue("q", "amq.topic", "a.*", arguments))
    assert route(vhost.router, "amq.topic", "a.b") == []
    assert not rig.crash().engine.state.routing.bindings


def test_what_cannot_be_bound(rig: VHostRig) -> None:
    vhost = rig.vhost
    rig.queue()
    vhost.declare_queue("mine", exclusive=True, owner="me")
    no_x = "NOT_FOUND - no exchange 'x' in vhost 'test'"
    default = "ACCESS_REFUSED - operation not permitted on the default exchange"
    no_queue = "NOT_FOUND - no queue 'r' in vhost 'test'"
    for call, text in (
        (lambda: vhost.bind_queue("q", "x", "k"), no_x),
        (lambda: vhost.bind_queue("r", "amq.topic", "k"), no_queue),
        (lambda: vhost.bind_queue("q", "", "k"), default),
        (lambda: vhost.unbind_queue("q", "", "k"), default),
        (lambda: vhost.topology.bind_exchange("", "amq.topic", "k"), default),
        (lambda: vhost.topology.unbind_exchange("", "amq.topic", "k"), default),
        (lambda: vhost.topology.bind_exchange("x", "amq.topic", "k"), no_x),
        (lambda: vhost.topology.bind_exchange("amq.topic", "x", "k"), no_x),
    ):
        assert refused(call).text == text
    for call in (
        lambda: vhost.bind_queue("mine", "amq.topic", "k", {}, "you"),
        lambda: vhost.unbind_queue("mine", "amq.topic", "k", {}, "you"),
    ):
        assert refused(call).code == 405
    with pytest.raises(ChannelError, match="x-match"):
        vhost.bind_queue("q", "amq.headers", "", {"x-match": "some"})
    assert not list(vhost.router.bindings())


def test_unbinding_what_is_not_there_succeeds(rig: VHostRig) -> None:
    assert rig.vhost.unbind_queue("q", "amq.topic", "k") == 0
    assert rig.vhost.unbind_queue("q", "x", "k") == 0
    assert rig.vhost.topology.unbind_exchange("y", "x", "k") == 0


# --- auto-delete ---


def test_an_auto_delete_exchange_goes_with_its_last_binding(rig: VHostRig) -> None:
    vhost = rig.vhost
    rig.queue()
    vhost.topology.declare_exchange("x", "direct", durable=True, auto_delete=True)
    vhost.bind_queue("q", "x", "a")
    vhost.bind_queue("q", "x", "b")
    vhost.unbind_queue("q", "x", "a")
    assert "x" in vhost.exchanges
    rig.answered(vhost.unbind_queue("q", "x", "b"))
    assert "x" not in vhost.exchanges
    assert "x" not in rig.crash().exchanges


def test_it_takes_others_along(rig: VHostRig) -> None:
    """outer -> middle -> inner -> q: with the queue go all of them, and `other` does not."""
    vhost = rig.vhost
    rig.queue()
    rig.queue("r")
    for name in ("outer", "middle", "inner", "other"):
        vhost.topology.declare_exchange(name, "fanout", durable=name != "middle", auto_delete=True)
    vhost.bind_queue("q", "inner", "")
    vhost.bind_queue("q", "inner", "again")
    vhost.topology.bind_exchange("inner", "middle", "")
    vhost.topology.bind_exchange("middle", "outer", "")
    vhost.topology.bind_exchange("inner", "other", "")
    rig.answered(vhost.bind_queue("r", "other", ""))
    queue = vhost.table.find_queue("q")
    assert route(vhost.router, "outer", "") == ["q"]
    _, lsn = vhost.delete_queue(queue)
    assert set(vhost.exchanges) - set(SYSTEM) == {"other"}
    rig.answered(lsn)
    assert set(rig.crash().exchanges) - set(SYSTEM) == {"other"}
    assert route(rig.vhost.router, "other", "") == ["r"]


def test_deleting_an_exchange_takes_auto_delete_ones_along(rig: VHostRig) -> None:
    vhost = rig.vhost
    vhost.topology.declare_exchange("a", "fanout", durable=True, auto_delete=True)
    vhost.topology.declare_exchange("b", "fanout", durable=True)
    vhost.topology.bind_exchange("b", "a", "")
    rig.answered(vhost.topology.delete_exchange("b"))
    assert set(rig.crash().exchanges) == set(SYSTEM)


def test_a_cycle_of_auto_delete_exchanges_ends(rig: VHostRig) -> None:
    vhost = rig.vhost
    rig.queue()
    for name in "abc":
        vhost.topology.declare_exchange(name, "fanout", durable=True, auto_delete=True)
    vhost.topology.bind_exchange("b", "a", "")
    vhost.topology.bind_exchange("c", "b", "")
    vhost.topology.bind_exchange("a", "c", "")
    vhost.bind_queue("q", "a", "")
    assert route(vhost.router, "b", "") == ["q"]
    rig.answered(vhost.topology.delete_exchange("b"))
    # b was all that a led to beside the queue, and c led to a alone.
    assert set(rig.crash().exchanges) - set(SYSTEM) == {"a", "c"}


@pure_only
def test_recovery_decodes_the_arguments_of_a_binding_once(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.queue()
    for i in range(20):
        rig.vhost.bind_queue("q", "amq.headers", "", {"x-match": "any", "n": i, "list": [b"a"] * 9})
    calls: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*given: Any) -> Any:
            calls.append(name)
            return call(*given)

        return count

    for module in (topology, exchange_types):
        for name in ("decode_table", "encode_table"):
            monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    vhost = rig.restart()
    assert calls == ["decode_table"] * 20
    assert route(vhost.router, "amq.headers", "", {"n": 7}) == ["q"]
    bound = vhost.router.bindings_of("amq.headers")
    assert [one.arguments["n"] for one in bound] == list(range(20))
    assert len(calls) == 40  # what is kept is encoded


# --- what recovery cannot use ---


def test_an_exchange_of_an_unknown_type_is_left_out(rig: VHostRig) -> None:
    rig.queue()
    rig.vhost.engine.apply_topology(StoredExchange(b"odd", b"x-odd").record())
    rig.answered(rig.vhost.bind_queue("q", "amq.direct", "k"))
    vhost = rig.restart()
    assert "odd" not in vhost.exchanges
    assert "odd" in rig.told("warning")[0]
    assert route(vhost.router, "amq.direct", "k") == ["q"]


def test_bindings_of_a_queue_that_the_library_deleted_are_forgotten(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-max-priority": 2})
    rig.vhost.bind_queue("q", "amq.direct", "k")
    queue.amq.delete(DISK)  # as the library does
    del rig.vhost.queues["q"]
    assert len(rig.restart().engine.state.routing.bindings) == 0
    rig.queue(arguments={"x-max-priority": 2})
    assert route(rig.restart().router, "amq.direct", "k") == []


def test_names_need_not_be_utf_8(rig: VHostRig) -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    rig.queue(name)
    rig.vhost.topology.declare_exchange(name, "direct", durable=True)
    rig.answered(rig.vhost.bind_queue(name, name, name))
    assert route(rig.crash().router, name, name) == [name]
