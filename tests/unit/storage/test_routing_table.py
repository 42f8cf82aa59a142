"""RoutingTable: the durable topology, changed by records alone."""

import pytest

from penstock.storage.index.queue_index import Ticks
from penstock.storage.index.routing_table import (
    SLICE,
    UNBIND,
    DurableBinding,
    DurableExchange,
    DurableQueue,
    RoutingTable,
    clear_parameter,
    delete_exchange,
    queue_key,
    set_parameter,
)
from tests.helpers.golden import golden, hexdump

LOGS = DurableExchange(b"logs", b"topic", 3, b"args")
QUEUE = DurableQueue(b"orders", 7, 1, b"max-length")
BINDING = DurableBinding(b"logs", b"q", b"orders", b"a.*", b"x")


def table(*records: bytes) -> RoutingTable:
    made = RoutingTable(Ticks())
    for record in records:
        made.apply(record)
    return made


def test_golden_records() -> None:
    records = [
        LOGS.record(), delete_exchange(b"logs"), QUEUE.record(), BINDING.record(),
        BINDING.record(UNBIND), set_parameter(b"policy", b"ttl", b"{}"),
        clear_parameter(b"policy", b"ttl"),
    ]  # fmt: skip
    golden("topology", "\n\n".join(hexdump(record) for record in records))


def test_what_is_declared_is_there() -> None:
    made = table(LOGS.record(), QUEUE.record(), BINDING.record())
    assert made.exchanges == {b"logs": LOGS}
    assert made.queues == {b"orders": QUEUE}
    assert list(made.bindings) == [BINDING]


def test_a_second_declaration_replaces_the_first() -> None:
    other = DurableExchange(b"logs", b"direct")
    assert table(LOGS.record(), other.record()).exchanges == {b"logs": other}


def test_binding_twice_is_binding_once_and_other_arguments_are_another_binding() -> None:
    other = DurableBinding(b"logs", b"q", b"orders", b"a.*", b"y")
    made = table(BINDING.record(), BINDING.record(), other.record())
    assert list(made.bindings) == [BINDING, other]


def test_unbind_takes_that_binding_alone_and_may_find_none() -> None:
    other = DurableBinding(b"logs", b"q", b"orders", b"b")
    made = table(BINDING.record(), other.record(), BINDING.record(UNBIND), BINDING.record(UNBIND))
    assert list(made.bindings) == [other]


def test_deleting_an_exchange_takes_the_bindings_from_and_to_it() -> None:
    into = DurableBinding(b"all", b"e", b"logs")
    same_name = DurableBinding(b"all", b"q", b"logs")
    made = table(
        LOGS.record(), BINDING.record(), into.record(), same_name.record(),
        delete_exchange(b"logs"), delete_exchange(b"logs"),
    )  # fmt: skip
    assert made.exchanges == {}
    assert list(made.bindings) == [same_name]


def test_deleting_a_queue_takes_its_bindings_and_not_those_of_its_name() -> None:
    same_name = DurableBinding(b"logs", b"e", b"orders")
    made = table(QUEUE.record(), BINDING.record(), same_name.record())
    made.delete_queue(8)
    assert made.queues
    made.delete_queue(7)
    assert made.queues == {}
    assert list(made.bindings) == [same_name]


def test_parameters_are_set_and_cleared() -> None:
    made = table(
        set_parameter(b"policy", b"a", b"1"),
        set_parameter(b"policy", b"a", b"2"),
        set_parameter(b"limit", b"a", b"3"),
        clear_parameter(b"limit", b"a"),
        clear_parameter(b"limit", b"b"),
    )
    assert made.parameters == {(b"policy", b"a"): b"2"}


def test_parameter_records_are_those_of_parameters_alone() -> None:
    made = table(LOGS.record(), set_parameter(b"policy", b"a", b"1"))
    assert made.parameter_records() == [set_parameter(b"policy", b"a", b"1")]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x63", b"\x02\x00", b"\x02\x00\x01ab"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"topology|unknown"):
        table(data)


def test_a_name_too_long_is_refused_before_it_is_logged() -> None:
    with pytest.raises(ValueError, match="at most 65535"):
        delete_exchange(bytes(65536))


def test_the_snapshot_is_the_shortest_run_of_records() -> None:
    made = table(
        LOGS.record(), LOGS.record(), QUEUE.record(), BINDING.record(), BINDING.record(UNBIND),
        set_parameter(b"c", b"n", b"1"), set_parameter(b"c", b"n", b"2"),
    )  # fmt: skip
    assert made.snapshot() == [LOGS.record(), QUEUE.record(), set_parameter(b"c", b"n", b"2")]


@pytest.mark.parametrize("changes_at", [0, 1, 2, 3, 4, 5])
def test_a_capture_in_slices_is_that_of_the_cut(changes_at: int) -> None:
    ticks = Ticks()
    made = RoutingTable(ticks)
    for n in range(2 * SLICE):
        made.apply(DurableQueue(b"q%d" % n, n).record())
        made.apply(set_parameter(b"creator", queue_key(b"q%d" % n), b"guest"))
    made.apply(set_parameter(b"c", b"n", b"1"))
    ticks.epoch += 1
    before = made.snapshot()
    for n, _ in enumerate(made.capture_in_slices()):
        if n == changes_at:
            made.delete_queue(2 * SLICE - 1)
    assert made.capture() == before


def test_the_capture_is_taken_at_the_first_change_after_a_cut() -> None:
    ticks = Ticks()
    made = RoutingTable(ticks)
    made.apply(LOGS.record())
    ticks.epoch += 1
    made.apply(QUEUE.record())
    made.delete_queue(7)
    made.apply(delete_exchange(b"logs"))
    assert made.capture() == [LOGS.record()]
    ticks.epoch += 1
    assert made.capture() == []
