"""Transactions: what a crash may find of one, how large one may be, and what it leaves behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import DiskFullError, TransactionTooLargeError, UnknownQueueError
from tests.contracts.box import LONG_S, bodies, drain


@pytest.fixture
def box(tmp_path: Path) -> Iterator[penstock.Box]:
    with penstock.open(tmp_path / "box.d", tx_bytes_max=1 << 20, tx_record_bytes=1024) as box:
        yield box


def test_one_that_is_too_large_is_rolled_back(box: penstock.Box) -> None:
    a, b = box.queue("a", retry_delay=0), box.queue("b")
    a.put(b"work")
    with pytest.raises(TransactionTooLargeError), box.transaction():  # noqa: PT012
        a.get().ack()
        for _ in range(2000):
            b.put(bytes(900))
    assert len(b) == 0
    assert a.get(timeout=LONG_S).attempts == 1
    with box.transaction():
        b.put(b"small")
    assert bodies(b) == [b"small"]


def test_one_of_many_records_is_whole_too(box: penstock.Box, tmp_path: Path) -> None:
    q = box.queue("q")
    with box.transaction():
        q.put_many([b"%d" % i for i in range(500)])
    box.close()
    with penstock.open(tmp_path / "box.d") as again:
        assert drain(again.queue("q")) == [b"%d" % i for i in range(500)]


def test_bodies_do_not_stay_in_ram(tmp_path: Path) -> None:
    def rss_bytes() -> int:
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        q = box.queue("q")
        with pytest.raises(ZeroDivisionError), box.transaction():  # noqa: PT012
            before = rss_bytes()
            for i in range(64):
                q.put(bytes([i]) * (1 << 20))
            assert rss_bytes() - before < 32 << 20
            _ = 1 / 0
        assert len(q) == 0


def test_a_queue_that_is_deleted_meanwhile_is_left_out(box: penstock.Box) -> None:
    a, b = box.queue("a"), box.queue("b")
    a.put(b"work")
    with box.transaction():
        a.get().ack()
        a.put(b"more")
        b.put(b"result")
        box.delete("a")
        with pytest.raises(UnknownQueueError):
            a.put(b"late")
    assert bodies(b) == [b"result"]
    with box.transaction(durability="none"):
        b.put(b"persistent all the same")
    assert len(b) == 2


def test_a_full_disk_rolls_back(box: penstock.Box) -> None:
    a, b = box.queue("a", retry_delay=0), box.queue("b")
    a.put(b"work")
    with pytest.raises(DiskFullError), box.transaction():  # noqa: PT012
        a.get().ack()
        b.put(b"result")
        box._driver.core.engine.journal.blocked = True
    box._driver.core.engine.journal.blocked = False
    assert (len(b), a.get(timeout=LONG_S).body) == (0, b"work")


def test_a_scope_is_entered_once(box: penstock.Box) -> None:
    scope = box.transaction()
    with scope:
        pass
    with pytest.raises(penstock.TransactionError, match="entered once"), scope:
        pass
