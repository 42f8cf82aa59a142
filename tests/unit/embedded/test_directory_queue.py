"""A queue of a box in a directory: what was fetched is not forgotten if a call fails."""

import asyncio
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.embedded.sources import Call
from penstock.embedded.waiting import Waiter
from penstock.errors import DiskFullError
from penstock.queues.backing_queue import Delivery
from penstock.storage.files.durability import DISK
from tests.helpers.builds import pure_only

NEVER = 1 << 40  # an LSN that no record gets


def test_an_error_after_the_first_leaves_the_caller_what_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        q = box.queue("q")
        q.put_many([b"a", b"b", b"c"])
        fetch = q._source._fetch
        calls = 0

        def fail_once() -> Delivery | None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise OSError(5, "Input/output error")
            found: Delivery | None = fetch()
            return found

        monkeypatch.setattr(q._source, "_fetch", fail_once)
        assert [job.body for job in q.get_many(3)] == [b"a", b"b"]
        assert [job.body for job in q.get_many(1)] == [b"c"]


@pure_only
def test_an_interrupt_while_it_waits_gives_back_what_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        q = box.queue("q")
        q.put_many([b"a", b"b"])
        driver = box._driver
        with driver.lock:
            amq = q._source._state.amq
            amq.backing.hold(amq.browse(None, 2)[1].tag, NEVER, DISK)

        def interrupted(waiter: Waiter) -> None:
            assert waiter.lsn == NEVER
            with driver.lock:
                driver._leave(waiter)
            raise KeyboardInterrupt

        monkeypatch.setattr(driver, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.get_many(2)
        monkeypatch.undo()
        assert len(q) == 2
        job = q.get()
        assert (job.body, job.attempts) == (b"a", 0)


def full(*_: object) -> Call[None]:
    yield from ()
    raise DiskFullError("box.d", 0, 1)


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_a_job_that_a_full_disk_did_not_settle_can_be_settled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        q = box.queue("q", retry_delay=0)
        q.put(b"a")
        job = q.get()
        monkeypatch.setattr(q._source, how, full)
        with pytest.raises(DiskFullError):
            getattr(job, how)()
        monkeypatch.undo()
        job.nack()
        assert q.get().attempts == 1


def test_a_loop_that_is_left_on_a_full_disk_returns_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        q = box.queue("q")
        q.put(b"a")
        monkeypatch.setattr(q._source, "nack", full)
        for job in q.consume():
            assert job.body == b"a"
            break
        assert q.get(timeout=0).attempts == 0


@pure_only
def test_a_rollback_on_a_full_disk_returns_all_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> int:
        raise DiskFullError("box.d", 0, 1)

    with penstock.open(tmp_path / "box.d", durability="os") as box:
        q = box.queue("q")
        q.put_many([b"a", b"b"])
        jobs = q.get_many(2)
        monkeypatch.setattr(q._source._state.amq, "nack", is_full)
        transaction = box.transaction()
        transaction.__enter__()
        q.ack(jobs)
        transaction.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert [job.attempts for job in q.get_many(2)] == [0, 0]


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_a_job_of_asyncio_can_be_settled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d", durability="os") as box:
            q = await box.queue("q", retry_delay=0)
            await q.put(b"a")
            job = await q.get()
            monkeypatch.setattr(q._source, how, full)
            with pytest.raises(DiskFullError):
                await getattr(job, how)()
            monkeypatch.undo()
            await job.nack()
            assert (await q.get()).attempts == 1

    asyncio.run(main())
