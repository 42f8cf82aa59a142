"""Definitions in a broker that runs: what RabbitMQ exported is imported, ours comes back."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest

from penstock.cli.main import main
from penstock.server.control import ControlError, NoServerError
from tests.conformance.compared.definitions import many
from tests.helpers.live_broker import LiveBroker, wait_until

FILES = Path(__file__).parent.parent / "fixtures" / "definitions"
RABBITMQ = (FILES / "rabbitmq.json").read_text()  # by RabbitMQ 3.10
PENSTOCK = json.loads((FILES / "penstock.json").read_text())  # which RabbitMQ imports
RABBITMQ_VHOST = (FILES / "rabbitmq-vhost.json").read_text()  # of its vhost "shop"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data") as broker:
        yield broker


def test_a_document_of_rabbitmq_is_imported(broker: LiveBroker) -> None:
    found = broker.control("import_definitions", "", definitions=RABBITMQ, leave_out=True)
    left_out = found.pop("left_out")
    assert found == {
        "users": 5, "vhosts": 1, "permissions": 4, "policies": 1, "operator_policies": 1,
        "parameters": 1, "exchanges": 7, "queues": 10, "bindings": 9, "differs": [],
        "not_run": ["parameters[2] 'to-shop': a shovel is stored, and does nothing"],
    }  # fmt: skip
    assert [line.partition("]")[0] for line in left_out] == ["global_parameters[2"]
    assert [row["name"] for row in broker.control("list_parameters", "/")] == ["to-shop"]
    assert broker.control("list_global_parameters") == [
        {"name": "cluster_name", "value": "ops-lab"},
        {"name": "mqtt_port_to_vhost_mapping", "value": {"1883": "/"}},
    ]
    exported = broker.control("export_definitions", "")
    assert exported == {**PENSTOCK, "product_version": exported["product_version"]}
    users = {row["name"]: row["tags"] for row in broker.control("list_users")}
    assert users["bob"] == ["policymaker", "management"]
    queues = {row["name"]: row for row in broker.control("list_queues", "/")}
    assert queues["backlog"]["policy"] == "ttl"
    assert queues["orders"]["operator_policy"] == "cap"
    assert queues["orders"]["arguments"] == {"x-dead-letter-exchange": "dlx", "x-max-priority": 4}
    assert queues["quorum.jobs"]["type"] == "quorum"
    assert queues["events"]["type"] == "stream"
    assert broker.control("list_topic_permissions", "/") == [
        {"user": "eve", "vhost": "/", "exchange": "shop.topic", "write": "^order\\.", "read": ".*"}
    ]
    parameters = pika.ConnectionParameters(
        broker.host, broker.port, "shop", pika.PlainCredentials("bob", "s3cret")
    )
    for _ in range(2):  # the second time by the hash that took the place of RabbitMQ's
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("in", "any", b"body", mandatory=True)
    again = broker.control("import_definitions", "", definitions=RABBITMQ, leave_out=True)
    for section in ("parameters", "queues", "exchanges", "bindings", "vhosts"):
        assert again[section] == 0
    assert again["users"] == 1  # bob's hash was another


def test_what_was_exported_is_equal_when_it_is_imported(
    broker: LiveBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.control("import_definitions", "", definitions=RABBITMQ, leave_out=True)
    broker.control("add_user", name="ann", password="secret", tags=["monitoring"])
    broker.control("set_user_limits", user="ann", limits={"max-publish-rate": 5})
    broker.control("set_vhost_limits", "shop", limits={"max-bindings": 50})
    broker.control("update_vhost_metadata", name="shop", description="sells", tags="a,b")
    file = tmp_path / "all.json"
    data = ["--data", str(broker.data)]
    assert main(["export_definitions", str(file), *data]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    found = json.loads(text)
    assert [row["name"] for row in found["queues"] if row["vhost"] == "shop"] == [
        "copied", "in", "x",
    ]  # fmt: skip
    assert "aliveness-test" not in text  # it is not durable
    broker.control("delete_user", name="ann")
    assert main(["definitions", "import", "--file", str(file), "--dry-run", *data]) == 0
    assert "would be imported: 1 users, 0 vhosts" in capsys.readouterr().out
    assert main(["import_definitions", str(file), *data]) == 0
    assert "imported: 1 users, 0 vhosts" in capsys.readouterr().out
    assert main(["import_definitions", str(file), *data]) == 0
    assert "imported: 0 users, 0 vhosts, 0 permissions, 0 policies" in capsys.readouterr().out
    with LiveBroker(tmp_path / "other") as other:
        other.control("import_definitions", "", definitions=text)
        assert other.control("export_definitions", "") == broker.control("export_definitions", "")
        parameters = pika.ConnectionParameters(other.host, other.port)
        parameters.credentials = pika.PlainCredentials("ann", "wrong")
        with pytest.raises(pika.exceptions.AMQPError):
            pika.BlockingConnection(parameters)


def test_a_document_of_one_vhost_goes_into_another(broker: LiveBroker) -> None:
    broker.control("add_vhost", name="market")
    found = broker.control("import_definitions", "market", definitions=RABBITMQ_VHOST)
    assert (found["queues"], found["exchanges"], found["bindings"]) == (3, 1, 1)
    limits = broker.control("list_vhost_limits", "market")
    assert limits[0]["max-queues"] == 50
    exported = broker.control("export_definitions", "market")
    assert exported["queues"] == sorted(
        json.loads(RABBITMQ_VHOST)["queues"], key=lambda row: str(row["name"])
    )
    assert "users" not in exported


def test_one_vhost_of_a_whole_document(broker: LiveBroker) -> None:
    broker.control("add_vhost", name="shop")
    found = broker.control("import_definitions", "shop", definitions=RABBITMQ)
    assert (found["users"], found["queues"], found["bindings"]) == (0, 3, 1)


def test_nothing_is_imported_if_anything_is_wrong(
    broker: LiveBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = broker.control("export_definitions", "")
    document: dict[str, Any] = json.loads(RABBITMQ)
    document["bindings"][0]["destination"] = "nowhere"
    document["permissions"].append(
        {"user": "zoe", "vhost": "moon", "configure": "(", "write": "", "read": ""}
    )
    document["users"][0]["hashing_algorithm"] = "rabbit_password_hashing_md5"
    document["queues"][0]["arguments"] = {"x-message-ttl": "soon"}
    document["policies"][0]["definition"]["overflow"] = "explode"
    document["parameters"][0]["value"]["pattern"] = "("
    document["parameters"][2]["component"] = "mqtt"
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(document))
    assert main(["import_definitions", str(file), "--data", str(broker.data)]) == 65
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 6, said
    for part in (
        "change_password", "'('", "x-message-ttl", "component mqtt", "policies[0] 'ttl': overflow",
        "parameters[0] 'cap': pattern",
    ):  # fmt: skip
        assert part in said
    assert broker.control("export_definitions", "") == before
    document["queues"][0]["arguments"] = {}
    del document["users"][0], document["policies"][0], document["parameters"][0]
    document["permissions"][-1]["configure"] = ""
    text = json.dumps(document)
    with pytest.raises(ControlError, match="no queue 'nowhere'") as caught:
        broker.control("import_definitions", "", definitions=text, leave_out=True)
    assert "no user 'zoe'" in caught.value.text
    assert "no vhost 'moon'" in caught.value.text
    assert broker.control("export_definitions", "") == before


def test_a_queue_that_differs_is_left_as_it_is(broker: LiveBroker) -> None:
    broker.control("declare_queue", "/", queue="orders", arguments={"x-max-priority": 2})
    found = broker.control("import_definitions", "", definitions=RABBITMQ, leave_out=True)
    assert found["queues"] == 9
    assert len(found["differs"]) == 1
    assert "inequivalent arg" in found["differs"][0]
    rows = {row["name"]: row for row in broker.control("list_queues", "/")}
    assert rows["orders"]["arguments"] == {"x-max-priority": 2}


def test_definitions_are_loaded_once_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text((FILES / "penstock.json").read_text())
    environment = {"PENSTOCK_LOAD_DEFINITIONS": str(file)}
    with LiveBroker(tmp_path / "data", environment=environment) as broker:
        parameters = pika.ConnectionParameters(
            broker.host, broker.port, "shop", pika.PlainCredentials("bob", "s3cret")
        )
        pika.BlockingConnection(parameters).close()
        broker.control("change_password", name="bob", password="other")
        broker.control("delete_queue", "shop", queue="x")
        broker.restart()
        assert "loaded before" in broker.log_text()
        assert len(broker.control("list_queues", "shop")) == 2
        file.write_text(file.read_text() + " ")
        broker.restart()
        assert len(broker.control("list_queues", "shop")) == 3
        broker.stop()
        document = json.loads(file.read_text())
        document["users"][0]["password_hash"] = "!!"
        document["bindings"][0]["destination_type"] = "stream"
        file.write_text(json.dumps(document))
        with pytest.raises(AssertionError) as caught:
            broker.start()
        for part in ("load_definitions", "users[0]", "password_hash", "bindings[0] 'shop.in'"):
            assert part in str(caught.value)
        file.write_text("{")
        with pytest.raises(AssertionError, match="are not JSON"):
            broker.start()
        del broker.environment["PENSTOCK_LOAD_DEFINITIONS"]
        broker.start()


def test_an_import_that_a_kill_cuts_short_is_done_again(tmp_path: Path) -> None:
    document = json.loads(RABBITMQ)
    for section, rows in many(2000).items():
        document[section] += rows
    text = json.dumps(document)
    with LiveBroker(tmp_path / "data") as broker, ThreadPoolExecutor(1) as pool:
        importing = pool.submit(
            broker.control, "import_definitions", "", definitions=text, leave_out=True
        )
        wait_until(lambda: len(broker.control("list_topology", "/")["queues"]) > 50)
        broker.kill()
        with pytest.raises(NoServerError):
            importing.result()
        broker.start()
        half = len(broker.control("list_topology", "/")["queues"])
        assert 0 < half < 2007  # the last of those that were listed were not on disk yet
        found = broker.control("import_definitions", "", definitions=text, leave_out=True)
        assert (found["users"], found["vhosts"]) == (0, 0)
        assert found["queues"] >= 2007 - half
        exported = broker.control("export_definitions", "")
        assert len(exported["queues"]) == 2009
        assert len(exported["bindings"]) == len(document["bindings"])
        again = broker.control("import_definitions", "", definitions=text, leave_out=True)
        assert again["queues"] == again["bindings"] == 0
        assert broker.control("export_definitions", "") == exported
