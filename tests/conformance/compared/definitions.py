"""Definitions and messages to RabbitMQ and back, by `make conformance`.

    RabbitMQ   imports its sample and 2,000 queues, and exports them
    Penstock   imports that, and exports it
    RabbitMQ   (another) imports that, and exports it: the first export again, but for the passwords

`make test` does Penstock's step with recordings in tests/fixtures/definitions: rabbitmq.json, which
a RabbitMQ exported, and penstock.json, which Penstock then exports and RabbitMQ imports here.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.client.connection import connect
from penstock.client.migrate import move
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import QueueDeclare
from tests.conformance.compared.rabbitmq import RabbitMQ, is_installed
from tests.helpers.live_broker import LiveBroker

FILES = Path(__file__).parent.parent.parent / "fixtures" / "definitions"
SAMPLE = FILES / "rabbitmq.json"
RECORDED = FILES / "penstock.json"
QUEUES = 2000
MESSAGES = 1000


def many(n: int) -> dict[str, Any]:
    """A document of n queues of all types, each with a binding."""
    kinds = ({}, {"x-queue-type": "quorum"}, {"x-max-length": 100, "x-overflow": "reject-publish"})
    queues = [
        {
            "name": f"many.{i}", "vhost": "/", "durable": True, "auto_delete": False,
            "arguments": kinds[i % len(kinds)],
        }
        for i in range(n)
    ]  # fmt: skip
    bindings = [
        {
            "source": "shop.topic", "vhost": "/", "destination": row["name"],
            "destination_type": "queue", "routing_key": f"key.{i % 7}.#", "arguments": {},
        }
        for i, row in enumerate(queues)
    ]  # fmt: skip
    return {"queues": queues, "bindings": bindings}


def comparable(document: dict[str, Any]) -> dict[str, list[str]]:
    """What has to come back, in an order that is the same everywhere."""
    found: dict[str, list[str]] = {}
    for section in (
        "users", "vhosts", "global_parameters", "permissions", "topic_permissions", "policies",
        "queues", "exchanges", "bindings",
    ):  # fmt: skip
        rows = [row for row in document[section] if row.get("durable", True)]
        if section == "users":
            rows = [{name: row[name] for name in ("name", "tags", "limits")} for row in rows]
        if section == "vhosts":
            rows = [{"name": row["name"]} for row in rows]
        if section == "exchanges":  # RabbitMQ's command leaves it out
            rows = [{"internal": False, **row} for row in rows]
        if section == "queues":  # which its command writes beside x-queue-type
            rows = [{name: row[name] for name in row if name != "type"} for row in rows]
        found[section] = sorted(
            json.dumps({k: sorted(v) if k == "tags" else v for k, v in row.items()}, sort_keys=True)
            for row in rows
        )
    found["parameters"] = sorted(json.dumps(row, sort_keys=True) for row in document["parameters"])
    return found


def without_plugins(text: str) -> dict[str, Any]:
    """A document without what needs plugins, which RabbitMQ has not here."""
    found: dict[str, Any] = json.loads(text)
    found["parameters"] = [row for row in found["parameters"] if row["component"] != "shovel"]
    return found


def through_rabbitmq(at: Path, text: str) -> dict[str, Any]:
    """What a new RabbitMQ exports that has imported this."""
    at.mkdir()
    (at / "in.json").write_text(text)
    with RabbitMQ(at) as rabbitmq:
        rabbitmq.control("await_startup")
        rabbitmq.control("import_definitions", str(at / "in.json"))
        rabbitmq.control("export_definitions", str(at / "out.json"))
    found: dict[str, Any] = json.loads((at / "out.json").read_text())
    return found


def through_penstock(at: Path, text: str) -> dict[str, Any]:
    """The same of a new Penstock."""
    with LiveBroker(at / "data") as broker:
        broker.control("import_definitions", "", definitions=text, leave_out=True)
        broker.control("set_user_limits", user="eve", limits={"max-publish-rate": 5})
        broker.control("change_password", name="eve", password="other")
        broker.control("update_vhost_metadata", name="shop", description="sells", tags=["a"])
        found: dict[str, Any] = broker.control("export_definitions", "")
    return found


def messages_there_and_back(at: Path) -> list[str]:
    """What is wrong with messages that went from RabbitMQ to Penstock and back."""
    at.mkdir()
    wrong: list[str] = []
    properties = BasicProperties(
        delivery_mode=2, priority=1, headers={"x-death": [{"count": 1, "queue": "q"}], "n": -5}
    )
    with (
        RabbitMQ(at) as rabbitmq, LiveBroker(at / "penstock") as penstock,
        connect(rabbitmq.url) as old, connect(penstock.url) as new,
    ):  # fmt: skip
        for connection in (old, new):
            declare = QueueDeclare(queue="q", durable=True)
            connection.channel().ask(declare).result()
        channel = old.channel()
        channel.select_confirms()
        for i in range(MESSAGES):
            channel.publish("", "q", b"%d" % i, properties).result()
        for source, target in ((old, new), (new, old)):
            moved = move(source, target, "q")
            counts = (moved.old_before, moved.moved, moved.old_after, moved.new_after)
            if counts != (MESSAGES, MESSAGES, 0, MESSAGES):
                wrong.append(f"{moved}")
        for i in range(MESSAGES):
            found = channel.get("q", no_ack=True).result()
            if found is None or (found.body, found.routing_key) != (b"%d" % i, "q"):
                wrong.append(f"message {i}: {found}")
            elif found.properties != properties:
                wrong.append(f"message {i}: {found.properties}")
    return wrong


def main() -> int:
    if not is_installed():
        print("definitions: RabbitMQ is not installed")
        return 0
    with tempfile.TemporaryDirectory() as place:
        at = Path(place)
        sample, recorded = (without_plugins(path.read_text()) for path in (SAMPLE, RECORDED))
        for section, rows in many(QUEUES).items():
            sample[section] += rows
        theirs = through_rabbitmq(at / "first", json.dumps(sample))
        ours = through_penstock(at, json.dumps(theirs))
        back = through_rabbitmq(at / "second", json.dumps(ours))
        through_rabbitmq(at / "third", json.dumps(recorded))
        wrong = messages_there_and_back(at / "messages")
    wrong += [
        f"{section}: {name}: {sorted({*rows}.symmetric_difference(other))[:4]}"
        for name, document in (("Penstock", ours), ("RabbitMQ after it", back))
        for section, rows in comparable(theirs).items()
        if rows != (other := comparable(document)[section])
    ]
    print(
        "\n".join(wrong)
        or f"definitions of {QUEUES} queues and {MESSAGES} messages went to "
        "Penstock and back unchanged"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
