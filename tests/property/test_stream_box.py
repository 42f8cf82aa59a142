"""Streams of a box against a model that is a list: long random lives, with restarts.

The model knows every record that was appended, with its offset and key. What a stream may do of its
own accord is take away its oldest records, if it has limits, and never more than those allow.
"""

import random
from pathlib import Path
from typing import Any

import pytest

import penstock

PAGE_BYTES = 4096
STEPS = 250
SIZES = (0, 1, 30, 900, 4000, 9000)


class Model:
    """What the stream should hold. firsts: the oldest record of each partition that is left."""

    def __init__(self, partitions: int, max_records: int | None) -> None:
        self.records: list[list[tuple[bytes, str]]] = [[] for _ in range(partitions)]
        self.firsts = [0] * partitions
        self.committed = [0] * partitions
        self.max_records = max_records

    def retained(self, infos: list[Any]) -> None:
        """Retention may have been at work: as far as it may."""
        for info in infos:
            records = self.records[info.partition]
            assert info.next == len(records)
            assert info.first >= self.firsts[info.partition]
            if self.max_records is None:
                assert info.first == 0
            elif info.first > self.firsts[info.partition]:
                assert info.records >= self.max_records
            self.firsts[info.partition] = info.first


class Life:
    """One stream, and what happens to it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        partitions = self.random.choice((1, 1, 3))
        limit = self.random.choice((None, 20, 100))
        self.model = Model(partitions, limit)
        self.options = {
            "page_bytes": PAGE_BYTES, "partitions": partitions, "max_records": limit,
        }  # fmt: skip
        self.n = 0
        self.open()

    def open(self) -> None:
        self.box = penstock.open(self.path, durability="os")
        self.s = self.box.stream("s", **self.options)  # type: ignore[arg-type]
        self.reader = self.s.reader("r", offset="first")

    def new(self) -> tuple[bytes, str]:
        self.n += 1
        body = b"%d " % self.n + bytes(self.random.choice(SIZES))
        return body, self.random.choice(("", "a", "b", "Grüße", str(self.n)))

    def take(self, new: tuple[bytes, str], offset: int | None = None) -> None:
        place = self.model.records[self.s.partition_of(new[1])]
        assert offset is None or offset == len(place)
        place.append(new)

    # ---- what may happen -----------------------------------------------------------------------

    def append(self) -> None:
        new = self.new()
        self.take(new, self.s.append(new[0], key=new[1]))

    def append_many(self) -> None:
        news = [self.new() for _ in range(self.random.randrange(30))]
        found = self.s.append_many([(body, {"key": key}) for body, key in news])
        for new, offset in zip(news, found, strict=True):
            self.take(new, offset)

    def transaction(self) -> None:
        news = [self.new() for _ in range(self.random.randrange(10))]
        fails = self.random.random() < 0.4
        try:
            with self.box.transaction():
                for body, key in news:
                    assert self.s.append(body, key=key) == -1
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        for new in news:
            self.take(new)

    def check(self, found: list[Any], partition: int, offset: int) -> None:
        """These are the records from this offset on, but for those that went meanwhile."""
        records = self.model.records[partition]
        for record in found:
            assert record.offset == offset + record.gap
            assert (record.body, record.key) == records[record.offset]
            offset = record.offset + 1
        assert offset == len(records)

    def read(self) -> None:
        partition = self.random.randrange(self.s.partitions)
        offset = self.random.randrange(len(self.model.records[partition]) + 1)
        found = list(self.s.read(offset=offset, partition=partition))
        self.model.retained(self.s.info())
        self.check(found, partition, offset)
        if found:
            one = self.random.choice(found)
            since = [r.offset for r in self.s.read(since=one.time, partition=partition)]
            first = self.s.info()[partition].first
            assert one.offset in since or one.offset < first
            assert all(r.time_us < one.time_us for r in found if first <= r.offset < since[0])

    def read_all(self) -> None:
        found = list(self.s.read())
        for partition in range(self.s.partitions):
            mine = [r for r in found if r.partition == partition]
            self.check(mine, partition, mine[0].offset - mine[0].gap if mine else 0)
        times = [r.time_us for r in found]
        assert times == sorted(times)

    def read_as_reader(self) -> None:
        assert self.reader.offsets == dict(enumerate(self.model.committed))
        n = self.random.randrange(40)
        for record in self.reader.read(max_records=n):
            committed = self.model.committed
            assert record.offset == committed[record.partition] + record.gap
            committed[record.partition] = record.offset + 1
        self.reader.commit(wait=self.random.random() < 0.2)

    def retain(self) -> None:
        self.box.sync()
        self.s.retain()
        self.model.retained(self.s.info())

    def checkpoint(self) -> None:
        self.box.checkpoint()

    def restart(self) -> None:
        self.box.close()
        self.open()
        self.model.retained(self.s.info())


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_is_the_list_that_it_should_be(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path / "box.d", seed)
    steps = [
        *[life.append] * 6, *[life.append_many] * 3, *[life.transaction] * 2, *[life.read] * 3,
        life.read_all, *[life.read_as_reader] * 2, life.retain, life.checkpoint, life.restart,
    ]  # fmt: skip
    try:
        for _ in range(STEPS):
            life.random.choice(steps)()
        life.restart()
        life.read_all()
    finally:
        life.box.close()
