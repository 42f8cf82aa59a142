"""What consumers of streams ask for: what is refused, and where they begin."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from penstock.broker.dispatch import TURN_SLICE
from penstock.codec.spec import BasicConsume, BasicQos
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.stream_steps import (
    ack,
    bodies,
    consume,
    numbers,
    publish,
    qos,
    records,
    refused,
)

# ---- what is refused -----------------------------------------------------------------------------


def test_a_consumer_without_prefetch(c: RigClient) -> None:
    assert refused(c) == (
        406,
        "PRECONDITION_FAILED - consumer prefetch count is not set for 'queue 's' in vhost '/''",
    )


def test_a_consumer_without_acknowledgements(c: RigClient) -> None:
    qos(c)
    code, text = refused(c, no_ack=True)
    assert code == 540
    assert text.endswith(
        "automatic acknowledgement not supported by stream queues queue 's' in vhost '/'"
    )


def test_a_limit_of_the_whole_channel(c: RigClient) -> None:
    qos(c)
    c.send(1, BasicQos(prefetch_count=5, global_=True))
    code, text = refused(c)
    assert (code, text) == (
        540, "NOT_IMPLEMENTED - queue 's' in vhost '/' does not support global qos",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-priority", 5), ("x-stream-offset", "1X"), ("x-stream-offset", ""),
        ("x-stream-offset", "foo"), ("x-stream-offset", -(1 << 53)), ("x-stream-offset", True),
        ("x-stream-filter", 5), ("x-stream-filter", []), ("x-stream-filter", ["a", 1]),
        ("x-stream-filter", ["a"] * 256), ("x-stream-match-unfiltered", "true"),
        ("x-stream-offset", 1.5), ("x-stream-offset", ["first"]), ("x-stream-offset", None),
        ("x-stream-offset", 1 << 60), ("x-stream-reader", ""), ("x-stream-reader", 5),
        ("x-stream-reader", "r" * 256), ("x-stream-partition", 1), ("x-stream-partition", -1),
        ("x-stream-partition", "0"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense(c: RigClient, name: str, value: object) -> None:
    qos(c)
    code, text = refused(c, arguments={name: value})
    assert code == 406
    assert f"invalid arg '{name}' for queue 's' in vhost '/'" in text


def test_a_consumer_that_was_refused_is_none(rig: BrokerRig, c: RigClient) -> None:
    qos(c)
    refused(c, arguments={"x-stream-offset": "soon"})
    assert rig.vhost.table.find_queue("s").consumers.count == 0


def test_unknown_arguments_are_passed_over(c: RigClient) -> None:
    consume(c, offset="first", other="a")
    publish(c, b"1")
    assert bodies(c) == [b"1"]


# ---- what it filters by --------------------------------------------------------------------------


def filtered(c: RigClient, values: object, *, unfiltered: bool | None = None) -> list[bytes]:
    """What a consumer with this filter gets of six records."""
    for body, value in (
        (b"1", "a"),
        (b"2", "b"),
        (b"3", None),
        (b"4", "a"),
        (b"5", 7),
        (b"6", "c"),
    ):
        headers = {"other": "x-stream-filter-value"}
        if value is not None:
            headers["x-stream-filter-value"] = value  # type: ignore[assignment]
        publish(c, body, headers=headers)
    more: dict[str, object] = {} if unfiltered is None else {"match-unfiltered": unfiltered}
    consume(c, offset="first", filter=values, **more)  # type: ignore[arg-type]
    return bodies(c)


@pytest.mark.parametrize(
    ("values", "unfiltered", "expected"),
    [
        ("a", None, [b"1", b"4"]), (["a", "b"], False, [b"1", b"2", b"4"]),
        ("b", True, [b"2", b"3", b"5"]), ("none", None, []), (["none"], True, [b"3", b"5"]),
    ],
)  # fmt: skip
def test_a_filter_takes_its_values_and_perhaps_records_without_one(
    c: RigClient, values: object, unfiltered: bool | None, expected: list[bytes]
) -> None:
    assert filtered(c, values, unfiltered=unfiltered) == expected


def test_what_a_filter_skips_takes_no_prefetch_and_is_done_for_a_named_reader(
    rig: BrokerRig, c: RigClient
) -> None:
    for n in range(3000):
        c.publish(1, "", "s", b"%d" % n, headers={"x-stream-filter-value": "ab"[n == 2500]})
    rig.turn()
    consume(c, offset="first", filter="b", reader="r", prefetch=1)
    (found,) = records(c)
    assert (found.offset, found.gap) == (2500, 0)
    ack(c, found)
    rig.turn()
    assert rig.vhost.table.find_queue("s").parts[0].readers["r"].offset == 3000  # type: ignore[attr-defined]


@pytest.mark.parametrize(("back", "expected"), [(-1, [b"4"]), (-3, [b"2", b"3", b"4"]), (-9, 5)])
def test_a_negative_offset_is_that_many_records_before_the_end(
    c: RigClient, back: int, expected: object
) -> None:
    publish(c, *numbers(5))
    consume(c, offset=back)
    assert bodies(c) == (numbers(5) if expected == 5 else expected)


# ---- where it begins -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", [b"0", b"1", b"2", b"3"]),
        ("last", [b"2", b"3"]),
        ("next", [b"3"]),
        (None, [b"3"]),
        (0, [b"0", b"1", b"2", b"3"]),
        (1, [b"1", b"2", b"3"]),
        (3, [b"3"]),
        (4, []),
        (1000, []),
        ("1Y", [b"0", b"1", b"2", b"3"]),
    ],
)
def test_offsets(c: RigClient, offset: object, expected: list[bytes]) -> None:
    publish(c, *numbers(3))
    consume(c, offset=offset)
    publish(c, b"3")
    assert bodies(c) == expected


@pytest.mark.parametrize("offset", ["first", "last", "next", 0, "1h"])
def test_an_empty_stream_begins_with_what_comes(c: RigClient, offset: object) -> None:
    consume(c, offset=offset)
    publish(c, b"1")
    assert bodies(c) == [b"1"]


def test_a_time_and_an_interval(rig: BrokerRig, c: RigClient) -> None:
    times = []
    for i in range(5):
        times.append(rig.clock.wall_ms())
        publish(c, b"%d" % i)
        rig.tick(60)
    at = datetime.fromtimestamp(times[2] // 1000, UTC)
    for tag, offset, first in (
        ("at", at, 2),
        ("interval", "3m", 2),
        ("long", "1D", 0),
        ("now", datetime.fromtimestamp(rig.clock.wall_ms() // 1000 + 10, UTC), 5),
    ):
        consume(c, tag=tag, offset=offset)
        found = records(c)
        assert [r.body for r in found] == numbers(5 - first, first), tag
    publish(c, b"5")
    assert len(records(c)) == 4


def test_records_that_are_skipped_count_for_the_turn(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *[b"x"] * 2000)
    qos(c)
    for n in range(20):
        arguments = {"x-stream-offset": "first", "x-stream-filter": f"none {n}"}
        consume = BasicConsume(queue="s", consumer_tag=str(n), arguments=arguments, nowait=True)
        c.send(1, consume)
    counts = rig.vhost.counts
    read = [counts.stream_records]
    while read[-1] < 20 * 2000:
        rig.vhost.turn()
        rig.vhost.completed()
        read.append(counts.stream_records)
    looked_at = [after - before for before, after in pairwise(read)]
    assert max(looked_at) < 3 * TURN_SLICE  # whole pieces of the stream are read
