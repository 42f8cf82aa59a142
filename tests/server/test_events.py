"""amq.rabbitmq.event of a broker that runs: events of all its processes come to one queue."""

import json
from pathlib import Path

import pika
import pytest
from pika.exceptions import ProbableAuthenticationError

from penstock.operation_table import EVENTS
from tests.helpers.live_broker import Broker, LiveBroker


def test_events_of_every_process(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        broker.control("add_vhost", name="b")
        broker.control("set_permissions", "b", user="guest", configure=".*", write=".*", read=".*")
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("e", durable=True)
            for key in ("user.#", "policy.#", "permission.#", "queue.*", "connection.created"):
                channel.queue_bind("e", EVENTS, key)
            got = channel.consume("e", auto_ack=True)

            def next_event() -> tuple[str, dict[str, object]]:
                method, properties, _ = next(got)
                headers: dict[str, object] = properties.headers
                return method.routing_key, headers

            broker.control("add_user", name="ann", password="x")
            assert next_event()[0] == "user.created"
            given = {
                "vhosts": [{"name": "c"}],
                "users": [{"name": "eve", "password_hash": "", "tags": []}],
                "permissions": [
                    {"user": "eve", "vhost": "c", "configure": "", "write": "", "read": "^q"}
                ],
                "queues": [{"name": "q3", "vhost": "c", "durable": True, "arguments": {}}],
            }  # fmt: skip
            broker.control("import_definitions", definitions=json.dumps(given))
            found = [next_event() for _ in range(4)]
            assert [name for name, _ in found] == [
                "user.created", "user.tags.set", "permission.created", "queue.created",
            ]  # fmt: skip
            assert (found[0][1]["name"], found[2][1]["read"]) == ("eve", "^q")
            broker.control("set_policy", "b", name="p", pattern="^q", definition={"max-length": 9})
            name, headers = next_event()
            assert (name, headers["vhost"], headers["definition"]) == (
                "policy.set", "b", {"max-length": 9},
            )  # fmt: skip
            with pytest.raises(ProbableAuthenticationError):
                pika.BlockingConnection(
                    pika.URLParameters(Broker(broker.host, broker.port, "ann", "bad").url)
                )
            name, headers = next_event()
            assert (name, headers["name"]) == ("user.authentication.failure", "ann")
            with pika.BlockingConnection(pika.URLParameters(broker.url_of("b"))) as other:
                assert next_event()[0] == "user.authentication.success"
                name, headers = next_event()
                assert (name, headers["vhost"]) == ("connection.created", "b")
                other.channel().queue_declare("q")
                name, headers = next_event()
                assert (name, headers["name"], headers["vhost"]) == ("queue.created", "q", "b")
        broker.stop()
        broker.start()  # the binding is there again, and with it the events
        broker.control("declare_queue", "b", queue="q2", durable=True)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            for method, properties, _ in connection.channel().consume("e", auto_ack=True):
                if method.routing_key == "queue.created":
                    assert properties.headers["name"] == "q2"
                    break
