"""The second half of what every stream must do: named readers, retention, transactions, being
closed and opened again. See ``stream``.

Retention takes whole pages of what is on disk, and happens by itself, so tests see to the first and
count on the second. A page of these tests has three records.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import OptionError, StreamGapError
from tests.contracts.box import LONG_S, Aside, Opens, drain, until
from tests.contracts.stream import SMALL_PAGE, bodies, numbers, offsets

BODY = bytes(1000)


class StreamLifeContract:
    """Readers, retention, transactions, and what outlives a box."""

    @pytest.fixture
    def box(self, opens: Opens) -> Any:
        return opens()

    is_shared = False  # on a broker
    records_while_read = 2000

    def at_rest(self, s: Any, is_so: Callable[[], bool]) -> None:
        """Retain until it is so, and nothing more goes."""
        until(lambda: not s.retain() and is_so())

    def filled(self, box: Any, n: int, **options: Any) -> Any:
        """The stream "s", of n records more, all of them on disk."""
        s = box.stream("s", page_bytes=SMALL_PAGE, **options)
        s.append_many([b"%d " % i + BODY for i in range(n)])
        box.sync()
        return s

    # ---- readers --------------------------------------------------------------------------

    def test_a_reader_goes_on_where_it_was(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(10))
        reader = s.reader("billing")
        assert (reader.name, reader.offset, reader.lag) == ("billing", 0, 10)
        assert s.readers() == ["billing"]
        for record in reader:
            if record.offset == 3:
                break
        assert reader.offset == 0
        reader.commit()
        assert (reader.offset, reader.offsets, reader.lag) == (4, {0: 4}, 6)
        assert bodies(reader) == numbers(6, 4)
        assert bodies(reader) == numbers(6, 4)  # it was not committed
        reader.commit()
        assert (reader.lag, bodies(reader)) == (0, [])
        s.append(b"10")
        assert bodies(s.reader("billing")) == [b"10"]
        assert bodies(s) == numbers(11)

    def test_a_commit_by_record_is_never_taken_back(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(10))
        reader = s.reader("r")
        records = list(reader)
        with pytest.raises(TypeError, match="expected a record that was read, not int"):
            reader.commit(6)
        reader.commit(records[6])
        reader.commit(records[2])
        assert reader.offset == 7
        reader.commit(records[8], wait=True)
        assert bodies(reader) == [b"9"]

    def test_several_readers(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(4))
        late, last = s.reader("late", offset="next"), s.reader("last", offset="last")
        old = s.reader("old", since="1h")
        s.append_many(numbers(2, 4))
        assert s.readers() == ["last", "late", "old"]
        assert [bodies(r) for r in (late, last, old)] == [numbers(2, 4), numbers(3, 3), numbers(6)]
        late.commit()
        assert (late.offset, last.offset, old.offset) == (6, 3, 0)
        # Where a known one begins says its last commit, and nothing else.
        assert bodies(s.reader("late", offset="first")) == []
        old.delete()
        assert s.readers() == ["last", "late"]
        assert (old.offset, old.lag) == (0, 6)
        assert bodies(s.reader("old", offset=5)) == [b"5"]

    def test_reading_that_commits_as_it_goes(self, box: Any) -> None:
        s = box.stream("s")
        s.append_many(numbers(10))
        reading = s.read(reader="r")
        for record in reading:
            if record.offset == 4:
                break
        reading.close()
        assert s.reader("r").offset == 4  # which the loop was at
        assert bodies(s.read(reader="r")) == numbers(6, 4)
        assert s.reader("r").offset == 10
        assert bodies(s.read(reader="r", offset="first")) == []
        assert offsets(s.read(reader="new", offset=8)) == [8, 9]

    def test_a_reader_of_several_partitions(self, box: Any) -> None:
        s = box.stream("s", partitions=3)
        s.append_many([(b"%d" % i, {"key": str(i)}) for i in range(60)])
        reader = s.reader("r")
        seen = bodies(reader.read(max_records=25))
        reader.commit(wait=True)
        assert reader.lag == 35
        assert sum(reader.offsets.values()) == 25
        seen += bodies(s.reader("r"))
        assert sorted(seen, key=int) == numbers(60)
        with pytest.raises(OptionError, match=r"expected `reader\.offsets`: .* 3 partitions"):
            _ = reader.offset

    def test_a_reader_that_follows(self, box: Any) -> None:
        s = box.stream("s")
        reader = s.reader("r")
        seen: list[bytes] = []

        def work() -> None:
            for record in reader.read(follow=True, max_records=20):
                seen.append(record.body)
                reader.commit(record)

        worker = Aside(work)
        for body in numbers(20):
            s.append(body, durability="os")
        worker.result()
        assert seen == numbers(20)
        assert reader.lag == 0

    @pytest.mark.parametrize("bad", ["", "a\0b", "x" * 256, 5, b"r"])
    def test_a_reader_needs_a_name(self, box: Any, bad: Any) -> None:
        s = box.stream("s")
        for call in (lambda: s.reader(bad), lambda: s.read(reader=bad)):
            with pytest.raises(OptionError, match=r"reader: given .* 1 to 255 bytes without NUL"):
                call()
        with pytest.raises(OptionError, match="offset: given 9, expected at most 0"):
            s.reader("r", offset=9)
        with pytest.raises(OptionError, match="partition: given 0, expected nothing: a reader"):
            s.read(reader="r", partition=0)
        assert s.readers() == []

    # ---- retention ------------------------------------------------------------------------

    def test_by_count(self, box: Any) -> None:
        s = self.filled(box, 40, max_records=10)
        self.at_rest(s, lambda: s.first >= 28)
        assert 28 <= s.first <= 30
        assert s.last == 39
        assert len(s) == 40 - s.first >= 10
        assert offsets(s) == list(range(s.first, 40))
        assert s.retain() == 0

    def test_by_bytes(self, box: Any) -> None:
        s = self.filled(box, 40, max_bytes="16 KiB")
        self.at_rest(s, lambda: s.bytes <= (16 << 10) + SMALL_PAGE)
        assert s.bytes >= (16 << 10) - SMALL_PAGE
        assert offsets(s) == list(range(s.first, 40))

    def test_by_age(self, box: Any) -> None:
        began_us = time.time_ns() // 1000
        s = self.filled(box, 40, max_age="1s")
        until(lambda: (s.retain() or True) and s.first > 30)
        assert time.time_ns() // 1000 >= began_us + 1_000_000 - 10_000
        until(lambda: (s.retain() or True) and s.first == 40)  # the page that is written to as well
        assert (s.last, len(s), s.next, s.bytes, offsets(s)) == (None, 0, 40, 0, [])
        assert s.append(b"more") == 40
        assert offsets(s) == [40]

    def test_it_happens_by_itself(self, box: Any) -> None:
        s = self.filled(box, 40, max_records=10)
        until(lambda: s.first >= 28)

    def test_each_partition_by_itself(self, box: Any) -> None:
        s = box.stream("s", partitions=2, page_bytes=SMALL_PAGE, max_records=8)
        s.append_many([(BODY, {"key": str(i)}) for i in range(80)])
        box.sync()
        self.at_rest(s, lambda: all(info.records <= 12 for info in s.info()))
        assert all(info.records >= 8 for info in s.info())

    def test_a_reader_that_was_too_slow_is_told(self, box: Any) -> None:
        s = box.stream("s", page_bytes=SMALL_PAGE, max_records=8)
        reader, strict = s.reader("slow"), s.reader("strict")
        self.filled(box, 40)
        self.at_rest(s, lambda: s.first >= 28)
        first = s.first
        gaps = [(record.offset, record.gap) for record in reader]
        assert gaps == [(first, first)] + [(i, 0) for i in range(first + 1, 40)]
        assert reader.lag == 40 - first
        with pytest.raises(StreamGapError, match=f"'s', partition 0: {first} records from offset"):
            list(strict.read(on_gap="error"))
        assert [record.gap for record in s.read()] == [0] * (40 - first)
        assert [r.gap for r in s.read(offset=5)][:2] == [first - 5, 0]
        assert bodies(reader)[-1].startswith(b"39 ")

    def test_a_page_that_goes_while_it_is_read(self, box: Any) -> None:
        s = box.stream("s", page_bytes=SMALL_PAGE, max_records=8)
        s.append_many([b"%d " % i + BODY for i in range(4)])
        reading = s.read(follow=True, timeout=LONG_S)
        seen = [next(reading)]
        count = self.records_while_read
        s.append_many([b"%d " % i + BODY for i in range(4, count)])
        box.sync()
        until(lambda: (s.retain() or True) and s.first >= count - 20)
        while seen[-1].offset < count - 1:
            seen.append(next(reading))
        reading.close()
        assert len(seen) + sum(record.gap for record in seen) == count
        for one, two in pairwise(seen):
            assert two.offset - one.offset == 1 + two.gap

    def test_without_limits_all_is_kept(self, box: Any) -> None:
        s = self.filled(box, 40)
        assert s.retain() == 0
        assert len(s) == 40

    # ---- transactions ---------------------------------------------------------------------

    def test_a_transaction_of_queues_and_streams(self, box: Any) -> None:
        jobs, s = box.queue("jobs"), box.stream("s", partitions=2)
        s.append(b"before", key="k")
        jobs.put(b"work")
        with box.transaction(), jobs.get() as job:
            assert s.append(b"done", key="k", headers={"n": 1}) == -1
            assert s.append_many([b"a", (b"b", {"key": "k"})]) == [-1, -1]
            jobs.put(job.body + b" again")
            assert len(s) == 1
        found = list(s.read(partition=s.partition_of("k")))
        assert [body for body in bodies(found) if body != b"a"] == [b"before", b"done", b"b"]
        assert found[1].headers == {"n": 1} or found[2].headers == {"n": 1}
        assert sorted(bodies(s)) == [b"a", b"b", b"before", b"done"]
        assert drain(jobs) == [b"work again"]

    def test_a_transaction_that_is_rolled_back(self, box: Any) -> None:
        q, s = box.queue("q"), box.stream("s")
        s.append(b"0")
        with pytest.raises(ZeroDivisionError), box.transaction():  # noqa: PT012
            q.put(b"a")
            s.append(b"never")
            s.append(bytes(2 << 20))
            _ = 1 / 0
        assert (len(q), len(s)) == (0, 1)
        assert s.append(b"1") == 1
        assert bodies(s) == [b"0", b"1"]

    def test_a_commit_wakes_who_follows(self, box: Any) -> None:
        s = box.stream("s")
        follower = Aside(lambda: bodies(s.read(follow=True, max_records=2)))
        with box.transaction():
            s.append(b"0")
            s.append(b"1")
        assert follower.result() == numbers(2)

    # ---- closing and opening --------------------------------------------------------------

    def test_what_was_there_is_there_again(self, opens: Opens) -> None:
        box = opens()
        s = box.stream("s", partitions=2, page_bytes=SMALL_PAGE, max_age="1h")
        s.append_many([(b"%d " % i + bytes(i), {"key": str(i)}) for i in range(300)])
        before = [(r.partition, r.offset, r.time_us, r.body, r.key) for r in s]
        reader = s.reader("r")
        list(reader.read(max_records=100))
        reader.commit(wait=True)
        kept = reader.offsets
        other = box.stream("other")
        other.append(b"x", durability="os")
        box.close()
        box = opens()
        assert box.streams() == ["other", "s"]
        s = box.stream("s", partitions=2, max_age="1h")
        assert [(r.partition, r.offset, r.time_us, r.body, r.key) for r in s] == before
        assert s.reader("r").offsets == kept
        assert s.reader("r").lag == 200
        last = before[-1][2]
        s.append(b"after", key="0")
        assert max(r.time_us for r in s) >= last
        assert bodies(box.stream("other")) == [b"x"]

    def test_a_backup_has_it_too(self, box: Any, tmp_path: Path) -> None:
        if self.is_shared:
            pytest.skip("on a broker: only its operators make backups")
        s = box.stream("s", page_bytes=SMALL_PAGE)
        s.append_many([b"%d " % i + BODY for i in range(20)])
        s.reader("r", offset=7)
        box.backup(tmp_path / "copy")
        s.append(b"too late")
        with penstock.open(tmp_path / "copy") as copy:
            there = copy.stream("s")
            assert offsets(there) == list(range(20))
            assert there.reader("r").offset == 7
            assert there.append(b"20 in the copy") == 20
        assert bodies(s.read(offset="last")) == [b"too late"]

    def test_retention_outlives_it(self, opens: Opens) -> None:
        box = opens()
        s = self.filled(box, 40, max_records=8)
        self.at_rest(s, lambda: s.first >= 28)
        first = s.first
        box.close()
        s = opens().stream("s", max_records=8)
        assert s.first >= first
        assert offsets(s) == list(range(s.first, 40))

    def test_a_deleted_stream_stays_deleted(self, opens: Opens) -> None:
        box = opens()
        box.stream("s").append_many(numbers(10))
        box.stream("s").delete()
        box.stream("t").append(b"t")
        box.close()
        box = opens()
        assert box.streams() == ["t"]
        assert bodies(box.stream("s")) == []

    def test_a_closed_box_says_so(self, opens: Opens) -> None:
        box = opens()
        s = box.stream("s")
        s.append(b"a")
        reader = s.reader("r")
        box.close()
        for call in (
            lambda: s.append(b"b"), lambda: s.append_many([b"b"]), lambda: list(s), lambda: s.next,
            lambda: len(s), box.streams, lambda: box.stream("s"), s.retain, s.delete,
            lambda: s.reader("x"), lambda: reader.offset, lambda: reader.commit(wait=True),
        ):  # fmt: skip
            with pytest.raises(penstock.BoxClosedError, match=r"the box .* is closed"):
                call()
