"""What every box must do, whoever stands behind it: a directory, used by threads or by asyncio,
or a broker. A test class inherits ``QueueContract`` and ``BoxContract`` (``box_life``) and gives
the fixture ``opens``: ``opens(**options)`` opens the box of this test, again after it was closed.

Nothing here sleeps: what must happen in another thread is waited for, what must not happen before a
time is measured.
"""

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock.errors import OptionError, SettledError, UnknownQueueError

Opens = Callable[..., Any]
LONG_S = 120.0  # longer than anything takes


def bodies(q: Any) -> list[bytes]:
    """Of all that is ready; they stay."""
    return [message.body for message in q]


def drain(q: Any) -> list[bytes]:
    """Of all that is ready; they are acknowledged."""
    found = []
    while len(q):
        with q.get(timeout=LONG_S) as job:
            found.append(job.body)
    return found


class Aside:
    """A call in another thread; `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(LONG_S)
        assert not self.is_running, "it hangs"
        if self._error is not None:
            raise self._error
        return self._value


def until(condition: Callable[[], bool]) -> None:
    """Look until it is so."""
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "it never became so"
        time.sleep(0.001)


class QueueContract:
    """Queues and jobs."""

    @pytest.fixture
    def box(self, opens: Opens) -> Any:
        return opens()

    # ---- put and get ------------------------------------------------------------------------

    def test_what_is_put_is_got_in_order(self, box: Any) -> None:
        q = box.queue("q")
        for i in range(10):
            q.put(b"%d" % i)
        assert len(q) == q.qsize() == 10
        assert drain(q) == [b"%d" % i for i in range(10)]
        assert q.empty()
        assert q.unacked == 0

    def test_a_job_tells_what_it_is(self, box: Any) -> None:
        q = box.queue("q", priorities=5)
        before = int(time.time())
        q.put(b"body", priority=3, headers={"a": 1, "b": "x", "c": b"\0", "d": 0.5, "e": True})
        job = q.get()
        assert job.body == b"body"
        assert job.attempts == 0
        assert not job.is_redelivered
        assert job.priority == 3
        assert job.headers == {"a": 1, "b": "x", "c": b"\0", "d": 0.5, "e": True}
        assert before <= job.time <= time.time()
        assert job.deaths == []
        assert job.id > 0
        job.ack()

    @pytest.mark.parametrize("size", [0, 1, 5_000, 100_000, 5 << 20])
    def test_a_body_of_any_size(self, box: Any, size: int) -> None:
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        q = box.queue("q")
        q.put(body)
        with q.get() as job:
            assert job.body == body

    @pytest.mark.parametrize("kind", [bytearray, memoryview])
    def test_a_body_may_be_any_buffer_and_is_copied(
        self, box: Any, kind: Callable[[bytes], Any]
    ) -> None:
        q = box.queue("q")
        q.put(kind(b"abc"))
        assert q.get().body == b"abc"

    def test_a_body_that_is_no_bytes_says_what_to_do(self, box: Any) -> None:
        q = box.queue("q")
        with pytest.raises(TypeError, match=r"bytes, not str: encode it first, as put\(text\.enc"):
            q.put("text")
        with pytest.raises(TypeError, match=r"not dict: serialise it first.*json\.dumps"):
            q.put({"a": 1})
        with pytest.raises(TypeError, match="not int"):
            q.put(5)
        with pytest.raises(TypeError, match="put_many takes many bodies"):
            q.put_many(b"abc")
        assert len(q) == 0

    def test_put_many_with_and_without_options(self, box: Any) -> None:
        q = box.queue("q", priorities=2)
        q.put_many([b"low", (b"high", {"priority": 2, "headers": {"n": 1}}), b"low too"])
        assert drain(q) == [b"high", b"low", b"low too"]
        q.put_many([])
        assert len(q) == 0
        q.put_many(b"%d" % i for i in range(1000))
        assert bodies(q) == [b"%d" % i for i in range(1000)]

    def test_put_many_checks_all_before_it_puts_one(self, box: Any) -> None:
        q = box.queue("q")
        with pytest.raises(OptionError, match="did you mean 'priority'"):
            q.put_many([b"a", (b"b", {"prority": 1})])
        with pytest.raises(TypeError, match="or a pair"):
            q.put_many([b"a", (b"b", 5)])
        with pytest.raises(TypeError, match="not str"):
            q.put_many([b"a", "b"])
        assert len(q) == 0

    def test_the_highest_priority_first(self, box: Any) -> None:
        q = box.queue("q", priorities=9)
        for i in (0, 5, 9, 200, 5):
            q.put(b"%d" % i, priority=i)
        assert drain(q) == [b"9", b"200", b"5", b"5", b"0"]

    @pytest.mark.parametrize("bad", [-1, 256, 1.5, "1", True])
    def test_a_priority_that_is_none(self, box: Any, bad: object) -> None:
        with pytest.raises(OptionError, match=r"priority: given .* from 0 to 255"):
            box.queue("q").put(b"", priority=bad)

    def test_get_in_vain(self, box: Any) -> None:
        q = box.queue("jobs")
        for get in (
            lambda: q.get(timeout=0.01),
            lambda: q.get(timeout=0),
            lambda: q.get(block=False),
            q.get_nowait,
        ):
            with pytest.raises(penstock.QueueEmptyError, match="queue 'jobs' is empty"):
                get()
        with pytest.raises(queue.Empty):
            q.get_nowait()
        for negative in (-1, float("nan")):
            with pytest.raises(ValueError, match="must not be negative"):
                q.get(timeout=negative)
        for wrong in ("5s", True):
            with pytest.raises(TypeError, match="a number of seconds, or None for no limit, not"):
                q.get(timeout=wrong)

    def test_get_waits_for_a_put(self, box: Any) -> None:
        q = box.queue("q")
        getter = Aside(lambda: q.get(timeout=LONG_S).body)
        until(lambda: q.info()["takers"] == 1)
        q.put(b"at last")
        assert getter.result() == b"at last"

    def test_each_message_goes_to_one_of_those_who_wait(self, box: Any) -> None:
        q = box.queue("q")
        getters = [Aside(lambda: q.get(timeout=LONG_S).body) for _ in range(8)]
        until(lambda: q.info()["takers"] == 8)
        q.put_many([b"%d" % i for i in range(8)])
        assert sorted(getter.result() for getter in getters) == [b"%d" % i for i in range(8)]
        assert q.unacked == 8

    def test_get_many_takes_what_is_there(self, box: Any) -> None:
        q = box.queue("q")
        assert q.get_many(5, timeout=0) == []
        q.put_many([b"%d" % i for i in range(7)])
        jobs = q.get_many(5)
        assert [job.body for job in jobs] == [b"0", b"1", b"2", b"3", b"4"]
        q.ack(jobs)
        assert [job.body for job in q.get_many(5)] == [b"5", b"6"]
        with pytest.raises(ValueError, match="at least 1"):
            q.get_many(0)
        with pytest.raises(TypeError, match="n is a number of messages, not '5'"):
            q.get_many("5")

    # ---- settling ---------------------------------------------------------------------------

    def test_a_block_acknowledges(self, box: Any) -> None:
        q = box.queue("q")
        q.put(b"a")
        with q.get() as job:
            assert q.unacked == 1
        assert job.is_settled
        assert (len(q), q.unacked) == (0, 0)

    def test_an_exception_returns_the_job_and_goes_on(self, box: Any) -> None:
        q = box.queue("q", retry_delay=0)
        q.put(b"a")
        with pytest.raises(ZeroDivisionError), q.get():
            _ = 1 / 0
        job = q.get(timeout=LONG_S)
        assert (job.body, job.attempts, job.is_redelivered) == (b"a", 1, True)

    def test_a_returned_job_waits_for_its_back_off(self, box: Any) -> None:
        q = box.queue("q", retry_delay=(0.05, 1))
        q.put(b"a")
        failed_at = 0.0
        for attempt, least in enumerate((0.0, 0.05, 0.1)):
            with pytest.raises(ZeroDivisionError), q.get(timeout=LONG_S) as job:  # noqa: PT012
                assert time.monotonic() - failed_at >= least - 0.01
                assert job.attempts == attempt
                failed_at = time.monotonic()
                _ = 1 / 0

    def test_a_returned_job_is_delayed_meanwhile(self, box: Any) -> None:
        q = box.queue("q", retry_delay=("1h", "2h"))
        q.put(b"a")
        with pytest.raises(ZeroDivisionError), q.get():
            _ = 1 / 0
        assert (len(q), q.delayed, q.unacked) == (0, 1, 0)

    def test_a_poison_message_ends_as_a_dead_letter(self, box: Any) -> None:
        q = box.queue("q", max_attempts=3, retry_delay=0, dead_letter_to="dead")
        dead = box.queue("dead")
        q.put(b"poison", headers={"k": "v"})
        for attempt in range(3):
            with pytest.raises(ZeroDivisionError), q.get(timeout=LONG_S) as job:  # noqa: PT012
                assert job.attempts == attempt
                _ = 1 / 0
        job = dead.get(timeout=LONG_S)
        assert (len(q), q.delayed, job.body, job.headers) == (0, 0, b"poison", {"k": "v"})
        (death,) = job.deaths
        assert (death.queue, death.reason, death.attempts) == ("q", "delivery_limit", 3)

    def test_reject_and_nack(self, box: Any) -> None:
        dead = box.queue("dead")
        q = box.queue("q", dead_letter_to="dead")
        q.put(b"a")
        q.get().reject()
        assert dead.get(timeout=LONG_S).deaths[0].reason == "rejected"
        q.put(b"b")
        job = q.get()
        job.nack(delay=0)
        assert q.get().attempts == 1
        other = box.queue("other")
        other.put(b"c")
        other.get().reject()
        assert (len(other), len(dead)) == (0, 0)

    def test_nack_puts_it_back_at_its_place(self, box: Any) -> None:
        q = box.queue("q")
        q.put_many([b"a", b"b", b"c"])
        first = q.get()
        q.nack(first, delay=0)
        assert bodies(q) == [b"a", b"b", b"c"]
        with pytest.raises(OptionError, match="delay: given 'soon'"):
            q.nack(q.get(), delay="soon")

    def test_a_job_is_settled_once(self, box: Any) -> None:
        q = box.queue("q")
        q.put_many([b"a", b"b"])
        job = q.get()
        job.ack()
        for again in (job.ack, job.nack, job.reject):
            with pytest.raises(SettledError, match=r"queue 'q'.*not pending any more"):
                again()
        with pytest.raises(SettledError), job:
            pass
        with q.get() as other:
            other.nack(delay=0)  # and the end of the block leaves it at that
        assert q.unacked == 0
        assert bodies(q) == [b"b"]

    def test_what_is_no_job_is_refused(self, box: Any) -> None:
        q = box.queue("q")
        q.put(b"a")
        job = q.get()
        for settle in (q.ack, q.nack, q.reject):
            for given in (None, "job", job.id, b"a"):
                with pytest.raises(TypeError, match="expected a job that get returned, not "):
                    settle(given)
        with pytest.raises(TypeError, match="expected a job that get returned, not str"):
            q.ack([job, "job"])
        assert q.unacked == 1

    def test_a_job_of_another_queue_is_refused(self, box: Any) -> None:
        q, other = box.queue("q"), box.queue("other")
        q.put(b"a")
        job = q.get()
        with pytest.raises(SettledError, match=r"'other': the message of tag .* is of queue 'q'"):
            other.ack(job)
        job.ack()

    def test_consume_acknowledges_as_it_goes(self, box: Any) -> None:
        q = box.queue("q")
        q.put_many([b"a", b"b", b"c"])
        seen = [(job.body, q.unacked, len(q)) for job in q.consume(timeout=0.01)]
        assert seen == [(b"a", 1, 2), (b"b", 1, 1), (b"c", 1, 0)]
        assert (len(q), q.unacked) == (0, 0)

    def test_a_loop_that_is_left_returns_its_job(self, box: Any) -> None:
        q = box.queue("q", retry_delay=0)
        q.put_many([b"a", b"b"])
        jobs = q.consume()
        for _ in jobs:
            break
        jobs.close()
        assert (len(q), q.unacked) == (2, 0)
        assert q.get().attempts == 1

    def test_consume_leaves_alone_what_the_loop_settled(self, box: Any) -> None:
        q = box.queue("q")
        q.put_many([b"a", b"b"])
        for job in q.consume(timeout=0.01):
            job.reject() if job.body == b"a" else job.ack()
        assert (len(q), q.unacked) == (0, 0)

    # ---- time -------------------------------------------------------------------------------

    def test_what_is_delayed_comes_when_it_is_due(self, box: Any) -> None:
        q = box.queue("q")
        q.put(b"later", delay="1h")
        q.put(b"latest", delay=timedelta(hours=2))
        q.put(b"now")
        assert (len(q), q.delayed) == (1, 2)
        assert q.get().body == b"now"
        begin = time.monotonic()
        q.put(b"sooner", delay=timedelta(milliseconds=50))
        assert q.get(timeout=LONG_S).body == b"sooner"
        assert time.monotonic() - begin >= 0.05 - 0.01
        assert (len(q), q.delayed) == (0, 2)

    def test_what_expires_becomes_a_dead_letter(self, box: Any) -> None:
        dead = box.queue("dead")
        q = box.queue("q", ttl="1h", dead_letter_to="dead")
        q.put(b"short", ttl=0.01)
        assert dead.get(timeout=LONG_S).deaths[0].reason == "expired"
        q.put(b"long")
        assert q.get().body == b"long"

    @pytest.mark.parametrize("bad", [-1, "soon", "5 parsecs", "", b"1", True, float("nan")])
    def test_a_time_that_is_none(self, box: Any, bad: object) -> None:
        q = box.queue("q")
        for name in ("ttl", "delay"):
            with pytest.raises(OptionError, match=f"option {name}: given .*expected seconds"):
                q.put(b"", **{name: bad})

    # ---- looking ----------------------------------------------------------------------------

    def test_peek_changes_nothing(self, box: Any) -> None:
        q = box.queue("q")
        assert q.peek() is None
        q.put_many([b"a", b"b"])
        assert q.peek().body == q.peek().body == b"a"
        assert (len(q), q.unacked) == (2, 0)

    def test_iteration_shows_all_and_changes_nothing(self, box: Any) -> None:
        q = box.queue("q", priorities=1)
        q.put_many([(b"%d" % i, {"priority": i % 2}) for i in range(500)])
        want = [b"%d" % i for i in range(1, 500, 2)] + [b"%d" % i for i in range(0, 500, 2)]
        assert bodies(q) == want
        assert bodies(q) == want
        assert len(q) == 500
        assert drain(q) == want

    def test_iteration_goes_on_while_the_queue_does(self, box: Any) -> None:
        q = box.queue("q")
        q.put_many([b"%d" % i for i in range(300)])
        seen = []
        for message in q:
            seen.append(int(message.body))
            if len(seen) == 10:
                q.ack(q.get_many(200))
                q.put(b"300")
        assert seen == sorted(set(seen))
        assert seen[-1] == 300
        assert set(seen) >= set(range(200, 301))

    # ---- limits -----------------------------------------------------------------------------

    def test_a_full_queue_refuses_what_cannot_wait(self, box: Any) -> None:
        q = box.queue("q", maxsize=2)
        q.put(b"a")
        assert not q.full()
        q.put(b"b")
        assert q.full()
        for put in (
            lambda: q.put(b"c", block=False),
            lambda: q.put(b"c", timeout=0.01),
            lambda: q.put_nowait(b"c"),
        ):
            with pytest.raises(
                penstock.QueueFullError, match="queue 'q' is full: max_length would be 3, allowed"
            ):
                put()
        with pytest.raises(queue.Full):
            q.put_nowait(b"c")
        assert bodies(q) == [b"a", b"b"]

    def test_put_waits_for_room(self, box: Any) -> None:
        q = box.queue("q", maxsize=1)
        q.put(b"a")
        putters = [Aside(lambda i=i: q.put(b"%d" % i)) for i in range(4)]
        seen = []
        for _ in range(5):
            with q.get(timeout=LONG_S) as job:
                seen.append(job.body)
        for putter in putters:
            putter.result()
        assert seen[0] == b"a"
        assert sorted(seen[1:]) == [b"0", b"1", b"2", b"3"]
        assert q.empty()

    def test_put_many_waits_for_room_too(self, box: Any) -> None:
        q = box.queue("q", maxsize=2)
        putter = Aside(lambda: q.put_many([b"%d" % i for i in range(10)]))
        seen = []
        for _ in range(10):
            with q.get(timeout=LONG_S) as job:
                seen.append(job.body)
        putter.result()
        assert seen == [b"%d" % i for i in range(10)]
        with pytest.raises(penstock.QueueFullError):
            q.put_many([b"a", b"b", b"c"], block=False)
        assert q.empty()
        with pytest.raises(penstock.QueueFullError):
            q.put_many([b"a", b"b", b"c"], timeout=0.01)
        assert bodies(q) == [b"a", b"b"]

    def test_what_never_fits_is_refused_at_once(self, box: Any) -> None:
        q = box.queue("q", max_length_bytes="1 KiB", overflow="reject-publish")
        with pytest.raises(
            penstock.QueueFullError, match="max_length_bytes would be 2000, allowed"
        ):
            q.put(bytes(2000))
        q.put(bytes(1024))

    def test_what_is_refused_may_be_a_dead_letter(self, box: Any) -> None:
        dead = box.queue("dead")
        q = box.queue("q", max_length=1, overflow="reject-publish-dlx", dead_letter_to="dead")
        q.put(b"a")
        for put in (lambda: q.put(b"b"), lambda: q.put(b"b", durability="os")):
            with pytest.raises(penstock.QueueFullError):
                put()
        assert (bodies(q), bodies(dead)) == ([b"a"], [b"b", b"b"])

    def test_drop_head_makes_room(self, box: Any) -> None:
        q = box.queue("q", max_length=2)
        q.put_many([b"a", b"b", b"c"])
        assert not q.full()
        assert bodies(q) == [b"b", b"c"]

    # ---- the whole --------------------------------------------------------------------------

    def test_purge_drops_what_is_ready(self, box: Any) -> None:
        q = box.queue("q")
        q.put_many([b"a", b"b", b"c"])
        q.put(b"d", delay="1h")
        job = q.get()
        assert q.purge() == 2
        assert (len(q), q.unacked, q.delayed) == (0, 1, 1)
        job.nack(delay=0)
        assert bodies(q) == [b"a"]
        assert q.purge(delayed=True) == 2
        assert q.join(0)

    def test_join_waits_until_all_is_settled(self, box: Any) -> None:
        q = box.queue("q")
        assert q.join(timeout=0)
        q.put(b"a")
        job = q.get()
        assert not q.join(timeout=0.01)
        joiner = Aside(lambda: q.join(timeout=LONG_S))
        job.ack()
        assert joiner.result()

    def test_a_deleted_queue_is_gone(self, box: Any) -> None:
        q = box.queue("q")
        q.put(b"a")
        getter = Aside(lambda: box.queue("q").get(timeout=LONG_S))
        getter.result()
        getter = Aside(lambda: q.get(timeout=LONG_S))
        until(lambda: q.info()["takers"] == 1)
        q.delete()
        for call in (getter.result, lambda: q.put(b"b"), q.get, lambda: len(q), q.delete, q.purge):
            with pytest.raises(UnknownQueueError, match="'q \\(deleted\\)'"):
                call()
        assert len(box.queue("q")) == 0
