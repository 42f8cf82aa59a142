"""What every stream of a box must do, whoever stands behind it: a directory, used by threads or by
asyncio, or a broker. A test class inherits ``StreamContract`` and ``StreamLifeContract``
(``stream_life``) and gives the fixture ``opens``, as for queues (``box``).

Here is what is appended and read; there readers, retention, transactions and what outlives a box.
"""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import penstock
from penstock.errors import OptionError, UnknownQueueError
from tests.contracts.box import Aside, Opens, until

SMALL_PAGE = 4096


def bodies(records: Any) -> list[bytes]:
    return [record.body for record in records]


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def numbers(n: int, first: int = 0) -> list[bytes]:
    """n bodies that tell their places."""
    return [b"%d" % i for i in range(first, first + n)]


class StreamContract:
    """Appending and reading."""

    @pytest.fixture
    def box(self, opens: Opens) -> Any:
        return opens()

    # ---- append ---------------------------------------------------------------------------

    def test_what_is_appended_is_read_as_often_as_one_likes(self, box: Any) -> None:
        s = box.stream("s")
        assert [s.append(body) for body in numbers(10)] == list(range(10))
        for _ in range(2):
            assert bodies(s.read()) == bodies(s) == numbers(10)
        assert (s.first, s.next, s.last, len(s)) == (0, 10, 9, 10)
        assert s.bytes > 0
        assert s.name == "s"
        assert s.partitions == 1

    def test_an_empty_stream(self, box: Any) -> None:
        s = box.stream("s")
        assert (s.first, s.next, s.last, len(s), s.readers()) == (0, 0, None, 0, [])
        assert bodies(s) == []
        assert bodies(s.read(offset="last")) == bodies(s.read(since="1h")) == []
        assert bool(s)
        (info,) = s.info()
        assert (info.partition, info.first, info.next, info.records) == (0, 0, 0, 0)

    def test_a_record_tells_what_it_is(self, box: Any) -> None:
        s = box.stream("s")
        before = datetime.now(UTC)
        headers = {"a": 1, "b": "x", "c": b"\0", "d": 0.5, "e": True}
        s.append(b"body", key="Grüße", headers=headers)
        after = datetime.now(UTC)
        s.append(b"")
        first, second = s.read()
        assert (first.body, first.offset, first.partition, first.gap) == (b"body", 0, 0, 0)
        assert (first.key, first.exchange, first.headers) == ("Grüße", "", headers)
        assert before - timedelta(milliseconds=2) <= first.time <= after
        assert first.time.tzinfo is UTC
        assert (second.body, second.key, second.headers) == (b"", "", {})
        assert second.time >= first.time
        assert second.time_us == (second.time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
            microseconds=1
        )

    @pytest.mark.parametrize("size", [0, 1, 5_000, 100_000, 5 << 20])
    def test_a_body_of_any_size_also_larger_than_a_page(self, box: Any, size: int) -> None:
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        s = box.stream("s", page_bytes=SMALL_PAGE)
        assert s.append_many([b"before", body, b"after", body]) == [0, 1, 2, 3]
        assert bodies(s) == [b"before", body, b"after", body]
        assert bodies(s.read(offset=3)) == [body]

    def test_many_pages(self, box: Any) -> None:
        s = box.stream("s", page_bytes=SMALL_PAGE)
        sent = [b"%d " % i + bytes(i % 700) for i in range(500)]
        assert s.append_many(sent) == list(range(500))
        assert bodies(s) == sent
        for at in (0, 1, 77, 499):
            assert bodies(s.read(offset=at)) == sent[at:]

    def test_append_many_with_and_without_options(self, box: Any) -> None:
        s = box.stream("s")
        assert s.append_many([]) == []
        given = [b"a", (b"b", {"key": "k", "headers": {"n": 1}}), bytearray(b"c")]
        assert s.append_many(given) == [0, 1, 2]
        assert [(r.body, r.key, r.headers) for r in s] == [
            (b"a", "", {}), (b"b", "k", {"n": 1}), (b"c", "", {}),
        ]  # fmt: skip
        assert s.append_many(numbers(1000)) == list(range(3, 1003))

    def test_what_cannot_be_appended(self, box: Any) -> None:
        s = box.stream("s")
        with pytest.raises(TypeError, match="bytes, not str: encode it first"):
            s.append("text")
        with pytest.raises(TypeError, match="not dict: serialise it first"):
            s.append_many([b"a", {"a": 1}])
        with pytest.raises(TypeError, match="append_many takes many bodies"):
            s.append_many(b"abc")
        with pytest.raises(TypeError, match="or a pair"):
            s.append_many([(b"a", 5)])
        with pytest.raises(OptionError, match="unknown option 'kex', did you mean 'key'"):
            s.append_many([(b"a", {"kex": "k"})])
        for key in ("k" * 256, b"k", 5, None):
            with pytest.raises(OptionError, match=r"key: given .* at most 255 bytes"):
                s.append(b"", key=key)
        for headers in ([1], {1: 2}, {"a": None}, {"a": 1 << 64}, "ab", {"n" * 256: 1}):
            with pytest.raises(OptionError, match=r"headers: given .* a dict of str to plain"):
                s.append(b"", headers=headers)
        with pytest.raises(OptionError, match="durability: given 'fast'"):
            s.append(b"", durability="fast")
        assert len(s) == 0

    @pytest.mark.parametrize("mode", ["disk", "interval", "os", "none"])
    def test_what_was_appended_may_be_read_at_once(self, box: Any, mode: str) -> None:
        s = box.stream("s")
        for i in range(3):
            s.append(b"%d" % i, durability=mode)
            assert s.next == i + 1
            assert bodies(s.read(offset="last")) == [b"%d" % i]

    # ---- where a reading begins -----------------------------------------------------------

    def test_offsets(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(10))
        assert offsets(s.read(offset="first")) == list(range(10))
        assert offsets(s.read(offset="last")) == [9]
        assert offsets(s.read(offset="next")) == offsets(s.read(offset=10)) == []
        assert offsets(s.read(offset=7)) == [7, 8, 9]
        assert offsets(s.read(offset=2, max_records=3)) == [2, 3, 4]
        assert offsets(s.read(max_records=0)) == []
        with pytest.raises(OptionError, match="offset: given 11, expected at most 10, the next"):
            offsets(s.read(offset=11))
        with pytest.raises(OptionError, match="offset: given 'newest', expected \"first\""):
            s.read(offset="newest")

    def test_since_a_moment(self, box: Any) -> None:
        s = box.stream("s", page_bytes=SMALL_PAGE)
        for i in range(40):
            s.append(b"%d" % i + bytes(400), durability="os")
        records = list(s)
        times = [record.time for record in records]
        assert times == sorted(times)
        for record in records:
            first = times.index(record.time)  # of those of the same time
            assert s.find(record.time) == first
            assert offsets(s.read(since=record.time)) == list(range(first, 40))
            assert s.find(record.time + timedelta(microseconds=1)) == first + times.count(
                record.time
            )
        assert s.find(datetime(1999, 1, 1, tzinfo=UTC)) == 0
        assert s.find(timedelta(0)) == 40
        assert offsets(s.read(since="1h")) == offsets(s.read(since=timedelta(hours=1)))
        assert len(offsets(s.read(since="1h"))) == 40
        late = datetime.now(UTC) + timedelta(hours=1)
        assert offsets(s.read(since=late)) == []
        assert s.append(b"later") == 40

    def test_since_in_any_time_zone(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(3))
        (when, *_) = [record.time for record in s]
        there = when.astimezone(timezone(timedelta(hours=9)))
        here = when.astimezone().replace(tzinfo=None)
        for since in (when, there, here):
            assert s.find(since) == 0
            assert len(bodies(s.read(since=since))) == 3

    def test_since_a_callable_is_asked_when_the_reading_begins(self, box: Any) -> None:
        s = box.stream("s")
        s.append(b"old")
        asked = []

        def since() -> Any:
            asked.append(1)
            return None if len(asked) == 1 else datetime.now(UTC) + timedelta(hours=1)

        reading = s.read(since=since)
        assert asked == []
        assert bodies(reading) == [b"old"]
        assert bodies(s.read(since=since)) == []
        assert len(asked) == 2

    # ---- following ------------------------------------------------------------------------

    def test_a_reading_ends_with_what_was_there_when_it_began(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(3))
        reading = s.read()
        assert next(reading).body == b"0"
        s.append(b"too late")
        assert bodies(reading) == [b"1", b"2"]

    def test_following_waits_for_more(self, box: Any) -> None:
        s = box.stream("s")
        s.append(b"0")
        seen: list[bytes] = []

        def follow() -> None:
            seen.extend(record.body for record in s.read(follow=True, max_records=5))

        follower = Aside(follow)
        until(lambda: len(seen) == 1)
        s.append(b"1")
        until(lambda: len(seen) == 2)
        s.append_many([b"2", b"3", b"4", b"5"])
        follower.result()
        assert seen == numbers(5)

    def test_following_ends_when_nothing_came_in_time(self, box: Any) -> None:
        s = box.stream("s")
        s.append(b"0")
        assert bodies(s.read(follow=True, timeout=0.02)) == [b"0"]
        assert bodies(s.read(follow=True, timeout=0, offset="next")) == []

    def test_following_ends_with_the_box(self, box: Any) -> None:
        s = box.stream("s")
        s.append(b"0")
        seen: list[bytes] = []
        follower = Aside(lambda: [seen.append(r.body) for r in s.read(follow=True)])
        until(lambda: seen == [b"0"])
        box.close()
        follower.result()
        with pytest.raises(penstock.BoxClosedError):
            bodies(s.read())

    def test_several_follow_and_several_append(self, box: Any) -> None:
        s = box.stream("s")
        followers = [Aside(lambda: bodies(s.read(follow=True, max_records=200))) for _ in range(3)]

        def append(who: int) -> list[int]:
            return [s.append(b"%d %d" % (who, i), durability="os") for i in range(50)]

        appenders = [Aside(lambda who=who: append(who)) for who in range(4)]
        given = [appender.result() for appender in appenders]
        assert sorted(offset for one in given for offset in one) == list(range(200))
        for one in given:
            assert one == sorted(one)
        want = bodies(s)
        assert len(set(want)) == 200
        for who, at in enumerate(given):
            assert [want[offset] for offset in at] == [b"%d %d" % (who, i) for i in range(50)]
        for follower in followers:
            assert follower.result() == want

    def test_a_reading_that_is_left_early(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(2000))
        for _ in range(3):
            reading = s.read(follow=True)
            assert next(reading).offset == 0
            reading.close()
        assert len(bodies(s)) == 2000

    # ---- partitions -----------------------------------------------------------------------

    def test_a_key_chooses_the_partition(self, box: Any) -> None:
        s = box.stream("s", partitions=3)
        assert s.partitions == 3
        keys = [f"key {i % 7}" for i in range(70)]
        given = [s.append(b"%d" % i, key=key) for i, key in enumerate(keys)]
        by_partition: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for i, key in enumerate(keys):
            place = by_partition[s.partition_of(key)]
            assert given[i] == len(place)
            place.append(b"%d" % i)
        for partition, want in by_partition.items():
            found = list(s.read(partition=partition))
            assert bodies(found) == want
            assert offsets(found) == list(range(len(want)))
            assert {r.partition for r in found} <= {partition}
            assert all(s.partition_of(r.key) == partition for r in found)
        assert [info.records for info in s.info()] == [len(by_partition[p]) for p in range(3)]
        assert len(s) == 70
        assert bodies(s.read()) == sorted(bodies(s.read()), key=int)
        assert len({s.partition_of(key) for key in keys}) > 1

    def test_of_a_partition_there_is_no_first_of_all(self, box: Any) -> None:
        s = box.stream("s", partitions=2)
        s.append_many([(b"%d" % i, {"key": str(i)}) for i in range(20)])
        for ask in (lambda: s.first, lambda: s.next, lambda: s.last):
            with pytest.raises(OptionError, match=r"expected `s\.info\(\)`: .* has 2 partitions"):
                ask()
        with pytest.raises(OptionError, match="partition: given None, expected one of 0 to 1"):
            s.read(offset=3)
        with pytest.raises(OptionError, match="partition: given 2, expected a whole number from 0"):
            s.read(partition=2)
        with pytest.raises(OptionError, match="partition: given -1"):
            s.find("1h", partition=-1)
        assert len(bodies(s.read(since="1h"))) == 20
        assert len(bodies(s.read(offset="last"))) == 2
        assert offsets(s.read(offset=3, partition=1))[:1] == [3]

    def test_following_all_partitions(self, box: Any) -> None:
        s = box.stream("s", partitions=4)
        follower = Aside(lambda: bodies(s.read(follow=True, max_records=40)))
        for i in range(40):
            s.append(b"%d" % i, key=str(i), durability="os")
        assert sorted(follower.result(), key=int) == numbers(40)

    # ---- names and options ----------------------------------------------------------------

    def test_streams_by_name(self, box: Any) -> None:
        assert box.streams() == []
        box.stream("b", partitions=2).append(b"x")
        box.stream("a")
        box.queue("q")
        assert box.streams() == ["a", "b"]
        assert box.queues() == ["q"]
        with pytest.raises(OptionError, match="name: given 'a', expected a name that no stream"):
            box.queue("a")
        with pytest.raises(OptionError, match="name: given 'b', expected a name that no stream"):
            box.queue("b")
        with pytest.raises(OptionError, match="name: given 'q', expected a name that no queue"):
            box.stream("q")
        for bad in ("", "a\0b", "x" * 256, 5, None):
            with pytest.raises(OptionError, match=r"name: given .* 1 to 255 bytes without NUL"):
                box.stream(bad)
        box.delete("a")
        assert box.streams() == ["b"]
        assert len(box.stream("a")) == 0

    def test_options_are_those_that_it_was_made_with(self, box: Any) -> None:
        box.stream("s", max_age="7d", max_bytes="1 GiB", partitions=2, page_bytes="1 MiB")
        box.stream("s")
        box.stream("s", max_age=timedelta(days=7), max_bytes=1 << 30, partitions=2)
        for option, text in (
            ({"max_age": "8d"}, "max_age: given '8d', expected 604800 s, as the stream was made"),
            ({"max_bytes": None}, "max_bytes: given None, expected 1073741824, as"),
            ({"max_records": 5}, "max_records: given 5, expected none, as"),
            ({"partitions": 3}, "partitions: given 3, expected 2, as"),
            ({"page_bytes": "2 MiB"}, "page_bytes: given '2 MiB', expected 1048576, as"),
        ):
            with pytest.raises(OptionError) as caught:
                box.stream("s", **option)
            assert text in str(caught.value)
        box.stream("t", max_age=1.5)  # whole seconds, never less than what was said
        with pytest.raises(OptionError, match="max_age: given 1, expected 2 s, as the stream"):
            box.stream("t", max_age=1)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"max_aeg": 3}, "unknown option 'max_aeg', did you mean 'max_age'"),
            ({"max_age": "long"}, "max_age: given 'long', expected seconds"),
            ({"max_age": 0.5}, "max_age: given 0.5, expected a second or more"),
            ({"max_bytes": "lots"}, "max_bytes: given 'lots', expected a size"),
            ({"max_bytes": 0.5}, "max_bytes: given 0.5, expected a size"),
            ({"max_bytes": "0.5"}, "max_bytes: given '0.5', expected a size"),
            ({"max_records": -1}, "max_records: given -1, expected a whole number"),
            ({"partitions": 0}, "partitions: given 0, expected a whole number from 1 to 256"),
            ({"partitions": True}, "partitions: given True"),
            ({"page_bytes": "1 KiB"}, "page_bytes: given '1 KiB', expected a size from 4 KiB to"),
        ],
    )
    def test_an_option_that_is_wrong(self, box: Any, options: dict[str, Any], text: str) -> None:
        for name in ("new", "there"):
            with pytest.raises(OptionError) as caught:
                box.stream(name, **options)
            assert text in str(caught.value)
            box.stream("there")
        assert box.streams() == ["there"]

    def test_a_deleted_stream_is_gone(self, box: Any) -> None:
        s = box.stream("s", partitions=2)
        s.append(b"a")
        reader = s.reader("r")
        seen: list[bytes] = []
        follower = Aside(lambda: [seen.append(r.body) for r in s.read(follow=True)])
        until(lambda: seen == [b"a"])
        s.delete()
        for call in (
            follower.result, lambda: s.append(b"b"), lambda: bodies(s), lambda: len(s), s.delete,
            lambda: reader.commit(wait=True), lambda: reader.lag, lambda: s.find("1h"), s.retain,
        ):  # fmt: skip
            with pytest.raises(UnknownQueueError, match="'s \\(deleted\\)'"):
                call()
        assert bodies(box.stream("s")) == []
        with pytest.raises(UnknownQueueError):
            box.delete("none")

    def test_errors_wait_for_nobody(self, box: Any) -> None:
        s = box.stream("s")
        with pytest.raises(ValueError, match="timeout must not be negative"):
            s.read(follow=True, timeout=-1)
        with pytest.raises(OptionError, match="timeout: given 1, expected nothing, or follow=True"):
            s.read(timeout=1)
        with pytest.raises(OptionError, match="on_gap: given 'cry'"):
            s.read(on_gap="cry")
