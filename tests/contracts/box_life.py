"""The second half of what every box must do: names and options, transactions, being closed and
opened again. See ``box``.

``is_shared`` is for a box on a broker: others may have it open at the same time, and what a
directory's one owner decides, memory and where news go, is the broker's affair. Three tests have
nothing to say of such a box, and are skipped.
"""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import LockedError, OptionError, SettledError, UnknownQueueError
from tests.contracts.box import LONG_S, Aside, Opens, bodies, drain, until


class BoxContract:
    """The box itself. is_shared: see the head of this module."""

    is_shared = False

    def _skip_if_shared(self, why: str) -> None:
        if self.is_shared:
            pytest.skip(f"on a broker: {why}")

    @pytest.fixture
    def box(self, opens: Opens) -> Any:
        return opens()

    # ---- names and options ------------------------------------------------------------------

    def test_queues_by_name(self, box: Any) -> None:
        assert box.queues() == []
        box.queue("b")
        box.queue("a", priorities=3).put(b"x", delay="1h")
        assert box.queues() == list(box) == ["a", "b"]
        assert "a" in box
        assert "c" not in box
        assert 5 not in box
        box.delete("a")
        assert box.queues() == ["b"]
        with pytest.raises(UnknownQueueError, match="'a'"):
            box.delete("a")
        assert box.queue("b").name == "b"

    @pytest.mark.parametrize("bad", ["", "a\0b", "x" * 256, 5, None, b"q"])
    def test_a_name_that_is_none(self, box: Any, bad: object) -> None:
        with pytest.raises(OptionError, match=r"name: given .* 1 to 255 bytes without NUL"):
            box.queue(bad)

    def test_two_of_one_name_are_one_queue(self, box: Any) -> None:
        box.queue("q").put(b"a")
        job = box.queue("q").get()
        box.queue("q").ack(job)
        assert box.queue("q").unacked == 0

    def test_options_given_become_the_queues_own(self, opens: Opens) -> None:
        self._skip_if_shared("other clients declare the queue, so its options stay")
        box = opens()
        q = box.queue("q", max_length=3, ttl="1h")
        box.queue("q", max_length=1)
        q.put_many([b"a", b"b"])
        assert bodies(q) == [b"b"]
        box.close()
        q = opens().queue("q")
        q.put(b"c")
        assert bodies(q) == [b"c"]

    def test_priorities_never_change(self, box: Any) -> None:
        box.queue("q", priorities=3, max_length=5)
        box.queue("q", priorities=3)
        with pytest.raises(OptionError, match="priorities: given 4, expected 3, for the queue was"):
            box.queue("q", priorities=4)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"max_atempts": 3}, "unknown option 'max_atempts', did you mean 'max_attempts'"),
            ({"max_memory": "lots"}, "max_memory: given 'lots', expected a size"),
            ({"max_memory": []}, "max_memory: given .*, expected a size"),
            ({"priorities": 256}, "priorities: given 256, expected a whole number from 0 to 255"),
            ({"maxsize": "many"}, "maxsize: given 'many', expected a whole number"),
            ({"overflow": "burst"}, "overflow: given 'burst', expected drop-head, reject-publish"),
            ({"ttl": "never"}, "ttl: given 'never', expected seconds"),
            ({"retry_delay": (5, 1)}, "retry_delay: given .5, 1., expected the first delay"),
            ({"alerts": {"cuont": 1}}, "unknown option 'cuont', did you mean 'count'"),
            ({"alerts": 5}, "alerts: given 5, expected a dict"),
            ({"durability": "paper"}, "durability: given 'paper', expected"),
            ({"dead_letter_to": ""}, "dead_letter_to: given '', expected the name of a queue"),
        ],
    )
    def test_an_option_that_is_wrong_says_what_is_right(
        self, box: Any, options: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(OptionError, match=text):
            box.queue("q", **options)
        assert "q" not in box
        box.queue("r")
        with pytest.raises(OptionError, match=text):
            box.queue("r", **options)

    def test_durability_of_a_put_and_of_a_queue(self, opens: Opens) -> None:
        box = opens()
        q = box.queue("q", durability="none")
        q.put(b"gone")
        q.put(b"stays", durability="os")
        q.put_many([b"stays too"], durability="disk")
        with pytest.raises(OptionError, match="durability: given 'fast'"):
            q.put(b"", durability="fast")
        assert drain(box.queue("q")) == [b"gone", b"stays", b"stays too"]
        q.put(b"gone")
        q.put(b"stays", durability="interval")
        box.close()
        q = opens().queue("q")
        assert bodies(q) == [b"stays"]

    @pytest.mark.parametrize("bad", [[1], {1: 2}, {"a": None}, {"a": [1]}, {"a": 1 << 64}, "ab"])
    def test_headers_that_are_none(self, box: Any, bad: Any) -> None:
        with pytest.raises(OptionError, match=r"headers: given .* a dict of str to plain values"):
            box.queue("q").put(b"", headers=bad)

    # ---- transactions -----------------------------------------------------------------------

    def test_a_transaction_is_seen_whole_at_its_end(self, box: Any) -> None:
        a, b = box.queue("a"), box.queue("b", priorities=2)
        a.put(b"work")
        with box.transaction():
            job = a.get()
            b.put(b"result", priority=1)
            b.put_many([b"more", b"and more"])
            b.put(b"later", delay="1h")
            job.ack()
            assert (len(b), b.delayed, a.unacked) == (0, 0, 1)
        assert (len(a), a.unacked, b.delayed) == (0, 0, 1)
        assert drain(b) == [b"result", b"more", b"and more"]

    def test_an_exception_rolls_back_and_goes_on(self, box: Any) -> None:
        a, b = box.queue("a", retry_delay=0), box.queue("b")
        a.put(b"work")
        with pytest.raises(ZeroDivisionError), box.transaction():  # noqa: PT012
            b.put(b"result")
            b.put(bytes(2 << 20))
            with a.get():
                pass
            _ = 1 / 0
        assert (len(b), a.unacked) == (0, 0)
        job = a.get(timeout=LONG_S)
        assert (job.body, job.attempts) == (b"work", 1)

    def test_a_transaction_within_a_job(self, box: Any) -> None:
        a, b = box.queue("a"), box.queue("b")
        a.put(b"work")
        with a.get() as job, box.transaction():
            b.put(b"result")
            job.ack()
            with pytest.raises(SettledError):
                job.ack()
        assert (len(a), a.unacked, len(b)) == (0, 0, 1)

    def test_transactions_do_not_nest(self, box: Any) -> None:
        q = box.queue("q")
        with box.transaction():
            q.put(b"a")
            with pytest.raises(penstock.TransactionError, match="do not nest"), box.transaction():
                pass
            q.put(b"b")
        assert bodies(q) == [b"a", b"b"]
        with box.transaction():
            pass

    def test_a_transaction_is_its_threads_own(self, box: Any) -> None:
        q = box.queue("q")
        with pytest.raises(ZeroDivisionError), box.transaction():  # noqa: PT012
            q.put(b"mine")
            Aside(lambda: q.put(b"another's")).result()
            assert bodies(q) == [b"another's"]

            def other() -> None:
                with box.transaction():
                    q.put(b"and more")

            Aside(other).result()
            _ = 1 / 0
        assert bodies(q) == [b"another's", b"and more"]

    def test_a_commit_wakes_who_waits(self, box: Any) -> None:
        q = box.queue("q")
        getter = Aside(lambda: q.get(timeout=LONG_S).body)
        until(lambda: q.info()["takers"] == 1)
        with box.transaction(durability="os"):
            q.put(b"a")
        assert getter.result() == b"a"

    def test_limits_hold_in_a_transaction(self, box: Any) -> None:
        q = box.queue("q", maxsize=2)
        with box.transaction():
            q.put(b"a")
            q.put(b"b")
            with pytest.raises(penstock.QueueFullError):
                q.put(b"c")
        assert bodies(q) == [b"a", b"b"]

    def test_others_fill_a_queue_before_the_commit(self, box: Any) -> None:
        work, beside = box.queue("work", retry_delay=0), box.queue("beside")
        full = box.queue("full", maxsize=2)
        work.put(b"work")
        with pytest.raises(penstock.QueueFullError) as caught, box.transaction():  # noqa: PT012
            work.get().ack()
            beside.put(b"result")
            full.put_many([b"1", b"2"])
            Aside(lambda: full.put(b"other")).result()
        error = caught.value
        assert (error.queue, error.limit, error.given, error.allowed) == (
            "full",
            "max_length",
            3,
            2,
        )
        assert (bodies(full), len(beside)) == ([b"other"], 0)
        assert work.get(timeout=LONG_S).body == b"work"
        with box.transaction():
            full.put(b"3")
        assert bodies(full) == [b"other", b"3"]

    def test_a_transaction_lives_on_or_not_at_all(self, opens: Opens) -> None:
        box = opens()
        a, b = box.queue("a"), box.queue("b")
        with box.transaction():
            a.put(b"1")
            b.put(b"2")
        box.close()
        box = opens()
        assert (bodies(box.queue("a")), bodies(box.queue("b"))) == ([b"1"], [b"2"])

    # ---- closing and opening ----------------------------------------------------------------

    def test_what_was_there_is_there_again(self, opens: Opens) -> None:
        box = opens()
        q = box.queue("q", priorities=1)
        q.put_many([b"a", b"b", b"c", b"d"])
        q.put(b"high", priority=1)
        q.get().ack()
        q.get()  # never settled
        failed = q.get()
        failed.nack(delay=0)
        q.put(b"later", delay="1h", headers={"n": 1})
        box.close()
        q = opens().queue("q")
        assert (len(q), q.unacked, q.delayed) == (4, 0, 1)
        jobs = q.get_many(10)
        assert [job.body for job in jobs] == [b"a", b"b", b"c", b"d"]
        assert [job.is_redelivered for job in jobs] == [True, True, False, False]
        assert [job.attempts for job in jobs] == [0, 1, 0, 0]

    def test_a_delay_goes_on_over_a_restart(self, opens: Opens) -> None:
        box = opens()
        box.queue("q").put(b"later", delay=0.2)
        box.close()
        assert opens().queue("q").get(timeout=LONG_S).body == b"later"

    def test_a_closed_box_says_so(self, opens: Opens) -> None:
        box = opens()
        q = box.queue("q")
        q.put(b"a")
        job = q.get()
        getter = Aside(lambda: q.get(timeout=LONG_S))
        until(lambda: q.info()["takers"] == 1)
        box.close()
        box.close()
        for call in (
            getter.result, lambda: q.put(b"b"), q.get, lambda: len(q), job.ack, box.queues,
            lambda: box.queue("q"), box.sync, box.checkpoint, q.peek,
        ):  # fmt: skip
            with pytest.raises(penstock.BoxClosedError, match=r"the box .* is closed"):
                call()

    def test_an_exception_in_a_job_may_close_the_box(self, opens: Opens) -> None:
        box = opens()
        q = box.queue("q")
        q.put(b"a")
        with pytest.raises(ZeroDivisionError) as caught, q.get():  # noqa: PT012
            box.close()
            _ = 1 / 0
        assert "could not be returned" in caught.value.__notes__[0]
        assert bodies(opens().queue("q")) == [b"a"]

    def test_a_second_owner_is_told_of_the_first(self, opens: Opens) -> None:
        self._skip_if_shared("any number may have it open")
        box = opens()
        with pytest.raises(LockedError, match=rf"locked by pid {os.getpid()} host "):
            opens()
        box.close()
        opens().queue("q")

    def test_sync(self, box: Any) -> None:
        box.queue("q").put_many([b"%d" % i for i in range(100)], durability="os")
        box.sync()
        info = box.info()
        assert info["lsn_settled"] >= info["lsn"] - 1

    def test_checkpoint_and_backup(self, opens: Opens, tmp_path: Path) -> None:
        box = opens()
        if self.is_shared:
            for call in (box.checkpoint, lambda: box.backup(tmp_path / "copy")):
                with pytest.raises(penstock.ChannelError, match="is for the broker's operators"):
                    call()
            return
        q = box.queue("q")
        q.put_many([b"%d" % i for i in range(100)], durability="os")
        info = box.info()
        assert box.checkpoint()
        assert box.info()["checkpoints"] > info["checkpoints"]
        box.backup(tmp_path / "copy")
        q.purge()
        with penstock.open(tmp_path / "copy") as copy:
            assert bodies(copy.queue("q")) == [b"%d" % i for i in range(100)]

    def test_alerts_and_events_are_told(self, opens: Opens) -> None:
        self._skip_if_shared("its alerts and events go to its log")
        alerts: list[Any] = []
        events: list[tuple[str, str]] = []
        told = threading.Event()

        def on_alert(alert: Any) -> None:
            alerts.append(alert)
            told.set()

        box = opens(on_alert=on_alert, on_event=lambda kind, text: events.append((kind, text)))
        q = box.queue("q", alerts={"count": 3}, max_memory="1 GiB")
        q.put_many([b"a", b"b", b"c"])
        q.put(b"d")
        assert told.wait(LONG_S)
        assert (alerts[0].queue, alerts[0].kind, alerts[0].threshold) == ("q", "count", 3)
        until(lambda: any(kind == "warning" and "memory" in text for kind, text in events))

    def test_a_strict_box_refuses_what_is_too_much(self, opens: Opens) -> None:
        self._skip_if_shared("its memory is set when it is started")
        box = opens(memory="8 MiB", strict=True)
        box.queue("a", max_memory="5 MiB")
        with pytest.raises(OptionError, match="max_memory: given '5 MiB', expected at most the 3"):
            box.queue("b", max_memory="5 MiB")
        assert "b" not in box
