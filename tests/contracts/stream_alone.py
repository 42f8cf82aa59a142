"""What every stream that stands alone must do, for threads and for asyncio: the contracts of
streams (``stream``, ``stream_life``), but for what only a box has: partitions, transactions,
backups, names beside one another, options that are kept. A test class inherits it and gives the
fixture ``opens``.
"""

from typing import Any

import pytest

import penstock
from penstock.errors import OptionError, UnknownQueueError
from tests.contracts.box import Aside, Opens, until
from tests.contracts.stream import SMALL_PAGE, StreamContract, bodies, numbers
from tests.contracts.stream_life import StreamLifeContract

OF_A_BOX = (
    "test_a_key_chooses_the_partition", "test_of_a_partition_there_is_no_first_of_all",
    "test_following_all_partitions", "test_streams_by_name",
    "test_options_are_those_that_it_was_made_with", "test_an_option_that_is_wrong",
    "test_a_deleted_stream_is_gone", "test_a_reader_of_several_partitions",
    "test_each_partition_by_itself", "test_a_transaction_of_queues_and_streams",
    "test_a_transaction_that_is_rolled_back", "test_a_commit_wakes_who_follows",
    "test_what_was_there_is_there_again", "test_a_backup_has_it_too",
    "test_a_deleted_stream_stays_deleted", "test_a_closed_box_says_so",
)  # fmt: skip


class AloneStreamContract(StreamContract):
    """Appending and reading."""

    def test_there_is_one_partition(self, box: Any) -> None:
        s = box.stream("s")
        s.append(b"a", key="x")
        assert (s.partitions, s.partition_of("x")) == (1, 0)
        with pytest.raises(OptionError, match="partition: given 1, expected a whole number from 0"):
            s.read(partition=1)
        assert bodies(s.read(partition=0)) == [b"a"]

    def test_a_deleted_directory_is_gone(self, box: Any) -> None:
        s = box.stream("s")
        s.append(b"a")
        reader = s.reader("r")
        seen: list[bytes] = []
        follower = Aside(lambda: [seen.append(r.body) for r in s.read(follow=True)])
        until(lambda: seen == [b"a"])
        s.delete()
        for call in (
            follower.result, lambda: s.append(b"b"), lambda: bodies(s), lambda: len(s), s.delete,
            lambda: reader.commit(wait=True), lambda: reader.lag, lambda: s.find("1h"), s.retain,
            s.force,
        ):  # fmt: skip
            with pytest.raises(UnknownQueueError, match="'s \\(deleted\\)'"):
                call()
        assert not (box.path / "s").exists()


class AloneLifeContract(StreamLifeContract):
    """Readers, retention, and what outlives it."""

    records_while_read = 600  # each page costs three syncs

    def test_it_is_there_again(self, opens: Opens) -> None:
        box = opens()
        s = box.stream("s", page_bytes=SMALL_PAGE, max_age="1h")
        s.append_many([(b"%d " % i + bytes(i), {"key": str(i)}) for i in range(300)])
        before = [(r.offset, r.time_us, r.body, r.key) for r in s]
        reader, other = s.reader("r"), s.reader("other", offset=7)
        list(reader.read(max_records=100))
        reader.commit(wait=True)
        other.commit(next(iter(other)))
        box.close()
        box = opens()
        s = box.stream("s")
        assert [(r.offset, r.time_us, r.body, r.key) for r in s] == before
        assert s.readers() == ["other", "r"]
        assert (s.reader("r").offset, s.reader("r").lag, s.reader("other").offset) == (100, 200, 8)
        s.append(b"after")
        assert next(s.read(offset=300)).time_us >= before[-1][1]

    def test_a_reader_that_was_deleted_stays_deleted(self, opens: Opens) -> None:
        box = opens()
        s = box.stream("s")
        s.append_many(numbers(3))
        for name in ("a", "b"):
            reader = s.reader(name)
            list(reader)
            reader.commit(wait=True)
        s.reader("a").delete()
        assert s.readers() == ["b"]
        box.close()
        s = opens().stream("s")
        assert s.readers() == ["b"]
        assert s.reader("a").offset == 0

    def test_a_closed_stream_says_so(self, opens: Opens) -> None:
        box = opens()
        s = box.stream("s")
        s.append(b"a")
        reader = s.reader("r")
        box.close()
        s.close()
        for call in (
            lambda: s.append(b"b"), lambda: s.append_many([b"b"]), lambda: list(s), lambda: s.next,
            lambda: len(s), s.retain, s.delete, s.force, lambda: s.reader("x"),
            lambda: reader.offset, lambda: reader.commit(wait=True),
        ):  # fmt: skip
            with pytest.raises(penstock.BoxClosedError, match=r"the stream .* is closed"):
                call()


for _contract in (AloneStreamContract, AloneLifeContract):
    for _name in OF_A_BOX:
        setattr(_contract, _name, None)
