"""RoutingTable: a snapshot rebuilds it, a capture is as of the cut, garbage changes nothing."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.index.queue_index import Ticks
from penstock.storage.index.routing_table import (
    UNBIND,
    DurableBinding,
    DurableExchange,
    DurableQueue,
    RoutingTable,
    clear_parameter,
    delete_exchange,
    set_parameter,
)

names = st.sampled_from([b"", b"a", b"b", "ü€".encode(), b"n" * 300])
blobs = st.binary(max_size=12)
bindings = st.builds(DurableBinding, names, st.sampled_from([b"q", b"e"]), names, names, blobs)

records = st.one_of(
    st.builds(DurableExchange, names, names, st.integers(0, 255), blobs).map(lambda e: e.record()),
    st.builds(DurableQueue, names, st.integers(0, 9), st.integers(0, 255), blobs).map(
        lambda q: q.record()
    ),
    bindings.map(lambda b: b.record()),
    bindings.map(lambda b: b.record(UNBIND)),
    names.map(delete_exchange),
    st.builds(set_parameter, names, names, blobs),
    st.builds(clear_parameter, names, names),
)
changes = st.lists(st.one_of(records, st.integers(0, 9)), max_size=25)  # a number: delete_queue


def change(table: RoutingTable, what: bytes | int) -> None:
    if isinstance(what, int):
        table.delete_queue(what)
    else:
        table.apply(what)


def content(table: RoutingTable) -> tuple[object, ...]:
    return (
        dict(table.exchanges), dict(table.queues), list(table.bindings), dict(table.parameters),
    )  # fmt: skip


def rebuilt(snapshot: list[bytes]) -> RoutingTable:
    table = RoutingTable(Ticks())
    for record in snapshot:
        table.apply(record)
    return table


@given(changes)
def test_a_snapshot_rebuilds_the_table(done: list[bytes | int]) -> None:
    table = RoutingTable(Ticks())
    for what in done:
        change(table, what)
    assert content(rebuilt(table.snapshot())) == content(table)


@given(changes, changes)
def test_a_capture_is_as_of_the_cut(before: list[bytes | int], after: list[bytes | int]) -> None:
    ticks = Ticks()
    table = RoutingTable(ticks)
    for what in before:
        change(table, what)
    then = content(table)
    ticks.epoch += 1
    for what in after:
        change(table, what)
    assert content(rebuilt(table.capture())) == then


@given(changes, records, st.data())
def test_a_record_cut_off_or_too_long_is_refused_and_changes_nothing(
    before: list[bytes | int], record: bytes, data: st.DataObject
) -> None:
    table = RoutingTable(Ticks())
    for what in before:
        change(table, what)
    then = content(table)
    cut = data.draw(st.integers(0, len(record) - 1))
    for bad in (record[:cut], record + b"x"):
        try:
            table.apply(bad)
        except ValueError:
            assert content(table) == then
        else:
            raise AssertionError(f"{bad!r} was taken")


@given(st.binary(max_size=40))
def test_no_bytes_make_it_fail_in_another_way(data: bytes) -> None:
    table = RoutingTable(Ticks())
    with contextlib.suppress(ValueError):
        table.apply(data)
