"""Classic queues leased over HTTP, with a broker that really runs: what AMQP published, in ranges.

A reader leases, reads and commits as the Spark source does, with consumers and other readers beside
it. What must hold is that it reads every message once, in order, under the same ordinals whatever
is killed, and that nobody else gets what it has leased.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.chunk_records import Record, records
from tests.helpers.http_caller import HttpCaller, ready_bodies
from tests.helpers.live_broker import LiveBroker, is_gone, wait_until

pika = pytest.importorskip("pika")
pytestmark = pytest.mark.real
PATIENT = {"PENSTOCK_VHOST_RESTARTS_MAX": "20"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests that leave it as they find it; each has queues of its own."""
    data = tmp_path_factory.mktemp("leases") / "data"
    with LiveBroker(data, "--memory", "64MiB", has_http=True) as live:
        yield live
        assert live.stop() == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    """One that a test may kill."""
    with LiveBroker(tmp_path / "data", environment=PATIENT, has_http=True) as live:
        yield live


def bodies_of(first: int, last: int, size: int = 60) -> list[bytes]:
    return [(b"%08d" % n).ljust(size, b".") for n in range(first, last)]


def publish(
    broker: LiveBroker, queue: str, bodies: list[bytes], *, mode: int = 2,
    arguments: dict[str, Any] | None = None, priority: int | None = None,
) -> None:  # fmt: skip
    """To a durable queue that is declared so, in one transaction."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=arguments or {})
        channel.tx_select()
        properties = pika.BasicProperties(message_id="m", delivery_mode=mode, priority=priority)
        for body in bodies:
            channel.basic_publish("", queue, body, properties)
        channel.tx_commit()


def read(caller: HttpCaller, lease: str, query: str = "") -> list[Record]:
    status, data = caller.ask("GET", f"leases/%2F/{lease}/frames{query}")
    assert status == 200, data
    return records(data)


def leased(caller: HttpCaller, lease: str, messages: int | None = None) -> dict[str, Any]:
    told = caller.json("POST", f"leases/%2F/{lease}", {"messages": messages})
    assert isinstance(told, dict)
    return told


def test_a_queue_is_leased_read_and_committed(shared: LiveBroker) -> None:
    sent = bodies_of(0, 3000)
    publish(shared, "plain", sent[:1500])
    publish(shared, "plain", sent[1500:], mode=1)  # transient ones are leased for good, too
    with HttpCaller(shared) as caller:
        told = caller.json("GET", "leases/%2F/plain")
        assert (told["type"], told["ready"], told["leases"]) == ("classic", 3000, [])
        told = caller.json("GET", "leases/%2F/plain/spark%2F1")
        assert (told["first"], told["head"], told["ready"]) == (0, 0, 3000)
        told = leased(caller, "plain/spark%2F1", 1000)
        assert (told["first"], told["head"], told["ready"]) == (0, 1000, 2000)
        found = read(caller, "plain/spark%2F1")
        assert [record.payload for record in found] == sent[:1000]
        assert [record.offset for record in found] == list(range(1000))
        assert found[0].meta.startswith(b"\x02\x00\x05plain")
        told = leased(caller, "plain/spark%2F1")
        assert (told["head"], told["ready"]) == (3000, 0)
        assert [r.payload for r in read(caller, "plain/spark%2F1", "?from=900&to=2100")] == (
            sent[900:2100]
        )
        assert ready_bodies(shared, "plain") == []
        assert caller.json("PUT", "leases/%2F/plain/spark%2F1", {"committed": 2000}) == {
            "first": 2000
        }
        assert caller.json("PUT", "leases/%2F/plain/spark%2F1", {"committed": 10}) == {
            "first": 2000
        }
        told = caller.json("GET", "leases/%2F/plain/spark%2F1")
        assert (told["first"], told["head"]) == (2000, 3000)
        status, data = caller.ask("GET", "leases/%2F/plain/spark%2F1/frames?from=1000")
        found = records(data) if status == 200 else []
        assert status == 416 or found[0].offset == 1000  # the page may be there still
        (row,) = (r for r in caller.json("GET", "leases/%2F") if r["name"] == "plain")
        assert (row["reader"], row["first"], row["head"]) == ("spark/1", 2000, 3000)
        assert caller.json("DELETE", "leases/%2F/plain/spark%2F1") == {"messages": 1000}
        assert ready_bodies(shared, "plain") == sent[2000:]
        assert caller.ask("GET", "leases/%2F/plain/spark%2F1/frames")[0] == 404


def test_two_readers_and_a_consumer_share(shared: LiveBroker) -> None:
    sent = bodies_of(0, 900)
    publish(shared, "common", sent)
    with HttpCaller(shared) as caller:
        leased(caller, "common/one", 300)
        leased(caller, "common/two", 300)
        one, two = read(caller, "common/one"), read(caller, "common/two")
        assert [record.payload for record in one + two] == sent[:600]
        assert [record.offset for record in two] == list(range(300))
        assert ready_bodies(shared, "common") == sent[600:]
        shared.control("purge_queue", "/", queue="common")
        assert [record.payload for record in read(caller, "common/two")] == sent[300:600]


def test_priorities_come_first(shared: LiveBroker) -> None:
    arguments = {"x-max-priority": 5}
    publish(shared, "ranked", bodies_of(0, 100), arguments=arguments, priority=1)
    publish(shared, "ranked", bodies_of(100, 200), arguments=arguments, priority=5)
    with HttpCaller(shared) as caller:
        assert leased(caller, "ranked/r")["head"] == 200
        found = read(caller, "ranked/r")
        assert [record.payload for record in found] == bodies_of(100, 200) + bodies_of(0, 100)
        caller.json("PUT", "leases/%2F/ranked/r", {"committed": 200})
        assert caller.json("GET", "leases/%2F/ranked")["unacknowledged"] == 0


def test_what_is_none(shared: LiveBroker) -> None:
    shared.control(
        "declare_queue", "/", queue="flow", durable=True, arguments={"x-queue-type": "stream"}
    )
    publish(shared, "classic", bodies_of(0, 10))
    shared.control("declare_queue", "/", queue="brief", durable=False)
    with HttpCaller(shared) as caller:

        def told(method: str, address: str, body: object = None) -> tuple[int, str]:
            status, data = caller.ask(method, address, body)
            return status, json.loads(data)["error"]

        for address in ("leases/%2F/flow", "leases/%2F/flow/r", "leases/%2F/flow/r/frames"):
            assert told("GET", address) == (409, "is_a_stream")
        assert told("POST", "leases/%2F/flow/r", {}) == (409, "is_a_stream")
        for address in ("streams/%2F/classic", "streams/%2F/classic/frames"):
            assert told("GET", address) == (409, "not_a_stream")
        assert told("GET", "leases/%2F/nothing") == (404, "not_found")
        assert told("POST", "leases/%2F/nothing/r", {}) == (404, "not_found")
        assert told("POST", "leases/%2F/brief/r", {})[0] == 400
        assert told("GET", "leases/%2F/classic/nobody/frames") == (404, "not_found")
        leased(caller, "classic/r", 5)
        assert told("PUT", "leases/%2F/classic/r", {"committed": 6})[0] in (400, 409, 416)
        assert told("GET", "leases/%2F/classic/r/frames?to=6") == (416, "range_not_satisfiable")


def test_permissions(shared: LiveBroker) -> None:
    publish(shared, "mine", bodies_of(0, 10))
    publish(shared, "theirs", bodies_of(0, 10))
    shared.control("add_user", name="reads", password="reads")
    shared.control("set_permissions", "/", user="reads", configure=".*", write=".*", read="^mine$")
    with HttpCaller(shared) as caller:
        leased(caller, "theirs/r")
    with HttpCaller(shared, "reads") as caller:
        for method, below, body in (
            ("GET", "", None), ("GET", "/r", None), ("POST", "/r", {}),
            ("PUT", "/r", {"committed": 1}), ("GET", "/r/frames", None), ("GET", "/r/pages", None),
            ("DELETE", "/r", None),
        ):  # fmt: skip
            assert caller.ask(method, f"leases/%2F/theirs{below}", body)[0] == 403
            assert caller.ask(method, f"leases/%2F/mine{below}", body)[0] == 200
        leased(caller, "mine/r")
        assert {row["name"] for row in caller.json("GET", "leases/%2F")} == {"mine"}


# --- killed ---


@pytest.mark.parametrize("what", ["vhost", "http", "broker", "stop"])
def test_ordinals_outlive_everything(broker: LiveBroker, what: str) -> None:
    sent = bodies_of(0, 4000)
    publish(broker, "q", sent)

    def end() -> None:
        if what == "stop":
            broker.restart()
        elif what == "broker":
            broker.kill()
            broker.start()
        else:
            broker.control("await_startup")
            found = broker.control("status")
            pid = (found["http"] if what == "http" else found["vhosts"][0])["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: is_gone(pid), "its end")

    done = 0
    with HttpCaller(broker) as caller:
        before = leased(caller, "q/r", 1500)
    for _ in range(2):
        end()
        # Those who read come before the one who asks: the pages are made again for them.
        with HttpCaller(broker) as caller:
            found = read(caller, "q/r", f"?from={done}&to={done + 1500}")
            assert [record.payload for record in found] == sent[done : done + 1500]
            told = caller.json("GET", "leases/%2F/q/r")
            assert (told["first"], told["head"]) == (done, done + 1500)
            assert told["stream_id"] == before["stream_id"]
            done += 1000
            caller.json("PUT", "leases/%2F/q/r", {"committed": done})
        end()
        with HttpCaller(broker) as caller:
            # Looked at first: to lease is not asked for twice, to describe is.
            told = caller.json("GET", "leases/%2F/q/r")
            assert (told["first"], told["head"]) == (done, done + 500)
            told = leased(caller, "q/r", 1000)
            assert (told["first"], told["head"]) == (done, done + 1500)
    with HttpCaller(broker) as caller:
        found = read(caller, "q/r", f"?from={done}")
        assert [record.payload for record in found] == sent[done : done + 1500]
        caller.json("PUT", "leases/%2F/q/r", {"committed": done + 1500})
    assert ready_bodies(broker, "q") == sent[done + 1500 :]


def test_a_queue_that_is_filled_and_leased_at_once(shared: LiveBroker) -> None:
    """Everything that was published is read once, in order, while publishers go on."""
    sent = bodies_of(0, 4000)
    publish(shared, "busy", sent[:1])
    filling = threading.Thread(target=publish, args=(shared, "busy", sent[1:]))
    filling.start()
    found: list[bytes] = []
    with HttpCaller(shared) as caller:
        while len(found) < len(sent):
            is_filling = filling.is_alive()
            told = leased(caller, "busy/r", 700)
            if told["head"] > told["first"]:
                some = read(caller, "busy/r", f"?from={told['first']}&to={told['head']}")
                found += [record.payload for record in some]
                caller.json("PUT", "leases/%2F/busy/r", {"committed": told["head"]})
            elif not is_filling:
                break
    filling.join()
    assert found == sent
