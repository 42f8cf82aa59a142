"""Each answer that RabbitMQ gives has the members and types of one that was recorded from it.

What a broker of Penstock answers is compared with `recorded/`: each member of the sample is there,
and is a number where that is a number. LEFT_OUT says what is not compared, and why.
"""

import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from pamqp import commands

from penstock.native import node_name
from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import Wire

pytestmark = pytest.mark.real

RECORDED: Final = Path(__file__).parent / "recorded"
ERLANG: Final = "of Erlang's virtual machine"
SAMPLES: Final = {
    "overview": "overview",
    "vhosts": "vhosts",
    "vhosts/%2F": "vhost",
    "exchanges": "exchanges",
    "exchanges/%2F/amq.direct": "exchange",
    "bindings": "bindings",
    "queues/%2F/q/bindings": "queue-bindings",
    "bindings/%2F/e/amq.direct/q/q": "bindings-pair",
    "bindings/%2F/e/amq.direct/q/q/k": "bindings-one",
    "exchanges/%2F/amq.fanout/bindings/destination": "exchange-bindings-destination",
    "queues/%2F/q?lengths_age=60&lengths_incr=5": "queue-lengths",
    "queues/%2F/stream": "queue-stream",
    "queues/%2F/quorum": "queue-quorum",
    "exchanges/%2F/amq.direct/bindings/source": "exchange-bindings-source",
    "connections": "connections",
    "connections/{connection}": "connection",
    "connections/{connection}/channels": "connection-channels",
    "channels": "channels",
    "channels/{channel}": "channel",
    "consumers": "consumers",
    "users": "users",
    "users/without-permissions": "users-without-permissions",
    "permissions": "permissions",
    "topic-permissions": "topic-permissions",
    "policies": "policies",
    "operator-policies": "operator-policies",
    "parameters": "parameters",
    "global-parameters": "global-parameters",
    "user-limits": "user-limits",
    "vhost-limits": "vhost-limits",
    "definitions": "definitions",
    "definitions/%2F": "definitions-vhost",
    "feature-flags": "feature-flags",
    "extensions": "extensions",
    "shovels": "shovels",
    "nodes": "nodes",
    "nodes/{node}": "node",
    "nodes/{node}/memory": "node-memory",
    "whoami": "whoami",
    "cluster-name": "cluster-name",
    "aliveness-test/%2F": "aliveness-test",
    "auth": "auth",
    "auth/attempts/{node}": "auth-attempts",
    "health/checks/alarms": "hc-alarms",
    "health/checks/port-listener/{port}": "hc-port",
    "health/checks/port-listener/1": "hc-port-bad",
    "health/checks/protocol-listener/amqp": "hc-proto",
    "health/checks/protocol-listener/mqtt": "hc-proto-bad",
    "health/checks/node-is-quorum-critical": "hc-qq",
    "queues": "queues",
    "queues/%2F": "queues",
    "queues/%2F/q": "queue",
    "queues?page=1&page_size=2&columns=name,messages,vhost": "queues-page",
    "queues?disable_stats=true&enable_queue_totals=true": "queues-disable-stats",
}
NO_RATES: Final = "what RabbitMQ's node counts is not counted here, or has no rate"
NULL_OR_TEXT: Final = "RabbitMQ has null in the list, and an empty text in one connection"
UNLIKE: Final = "depends on what there is"
# Patterns of fnmatch -> why.
LEFT_OUT: Final = {
    "overview.listeners[[]].socket_opts.*": ERLANG,
    "node*.ra_open_file_metrics.*": "no Raft log",
    "node*.metrics_gc_queue_length.*": "no cache of metrics",
    "node*_details": NO_RATES,
    "queue*.arguments.x-*": UNLIKE,
    "queue*.effective_policy_definition.*": UNLIKE,
    "queue*.policy": UNLIKE,
    "queue*.operator_policy": UNLIKE,
    "queue*.backing_queue_status.next_deliver_seq_id": "no such number",
    "queue*.backing_queue_status.priority_lengths*": UNLIKE,
    "queue*.backing_queue_status.target_ram_count": "a number, or infinity as a text",
    "queue*.message_stats*": "absent until something has happened",
    "queue*.exclusive_consumer_tag": "null without one",
    "queue*.single_active_consumer_tag": "null without one",
    "queue*.head_message_timestamp": "null without one",
    "queue*.idle_since": "absent while it is busy",
    "*.garbage_collection.*": ERLANG,
    "overview.message_stats.disk_*": "counted of each queue",
    "exchange.message_stats": "absent until something has happened",
    "connection*.client_properties.*": UNLIKE,
    "connection*.user_provided_name": "absent unless the client names itself",
    "connections[[]].peer_cert_*": NULL_OR_TEXT,
    "connections[[]].ssl_*": NULL_OR_TEXT,
    "channel*.idle_since": "absent while it is busy",
    "*.definition.*": UNLIKE,
    "*-limits*.value.*": UNLIKE,
    "definitions*.limits.*": UNLIKE,
    "definitions*.value.*": UNLIKE,
    "definitions*.arguments.*": UNLIKE,
    "queue*.reductions*": ERLANG,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("recorded") / "data", has_http=True) as broker:
        broker.control("declare_queue", "/", queue="q")
        for kind in ("stream", "quorum"):
            arguments = {"x-queue-type": kind}
            broker.control("declare_queue", "/", queue=kind, arguments=arguments)
        broker.control("bind_exchange", "/", destination="amq.fanout", source="amq.topic")
        broker.control("bind_queue", "/", queue="q", exchange="amq.direct", routing_key="k")
        broker.control("publish", "/", routing_key="q", bodies=["a", "b"])
        broker.control("add_user", name="ann", password="ann")
        broker.control("set_user_limits", user="ann", limits={"max-connections": 9})
        broker.control("set_vhost_limits", "/", limits={"max-queues": 900})
        broker.control("set_policy", "/", name="p", pattern="^x", definition={"max-length": 9})
        broker.control(
            "set_operator_policy", "/", name="o", pattern="^x", definition={"expires": 9}
        )
        rights = {"user": "guest", "exchange": "amq.topic", "write": ".*", "read": ".*"}
        broker.control("set_topic_permissions", "/", **rights)
        wire = Wire(broker).open()
        wire.channel()
        wire.send(commands.Basic.Consume(queue="q", consumer_tag="t"), 1)
        wire.expect(commands.Basic.ConsumeOk, 1)
        yield broker
        wire.sock.close()


@pytest.mark.parametrize("address", SAMPLES)
def test_an_answer_has_the_members_of_the_recorded_one(broker: LiveBroker, address: str) -> None:
    sample = SAMPLES[address]
    wanted = json.loads((RECORDED / f"{sample}.json").read_text(encoding="utf-8"))
    with HttpCaller(broker) as http:
        names = {"node": node_name(), "port": broker.port}
        for kind in ("connection", "channel"):
            if f"{{{kind}}}" in address:
                names[kind] = quote(http.json("GET", f"{kind}s")[0]["name"], safe="")
        path = address.format(**names)
        status = 503 if wanted_failure(wanted) else 200
        found = http.json("GET", path, status=status)
    assert not list(differences(sample, wanted, found))


def wanted_failure(wanted: Any) -> bool:
    return isinstance(wanted, dict) and wanted.get("status") == "failed"


def differences(where: str, wanted: Any, found: Any) -> Iterator[str]:
    """What the sample has and the answer has not."""
    if is_left_out(where):
        return
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            yield f"{where}: expected an object, found {found!r}"
            return
        for name, value in wanted.items():
            below = f"{where}.{name}"
            if name.startswith("rabbit@"):
                continue  # a node's name as a member
            if name in found:
                yield from differences(below, value, found[name])
            elif not is_left_out(below):
                yield f"{below}: missing"
    elif isinstance(wanted, list):
        if not isinstance(found, list):
            yield f"{where}: expected a list, found {found!r}"
        elif wanted and found:
            yield from differences(f"{where}[]", wanted[0], found[0])
    elif kind(wanted) != kind(found):
        yield f"{where}: expected {wanted!r}, found {found!r}"


def is_left_out(where: str) -> bool:
    return any(fnmatch.fnmatchcase(where, pattern) for pattern in LEFT_OUT)


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "number" if isinstance(value, int | float) else type(value).__name__
