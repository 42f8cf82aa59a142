"""Each answer that RabbitMQ gives has the members and types of one that was recorded from it.

What a broker of Penstock answers is compared with `recorded/`: each member of the sample is there,
and is a number where that is a number. LEFT_OUT says what is not compared, and why.
"""

import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.node_name import node_name
from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real

RECORDED: Final = Path(__file__).parent / "recorded"
ERLANG: Final = "of Erlang's virtual machine"
SAMPLES: Final = {
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
UNLIKE: Final = "depends on the queue"
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
    "queue*.consumer_utilisation": "null without a consumer",
    "queue*.message_stats*": "absent until something has happened",
    "queue*.exclusive_consumer_tag": "null without one",
    "queue*.single_active_consumer_tag": "null without one",
    "queue*.head_message_timestamp": "null without one",
    "queue*.idle_since": "absent while it is busy",
    "queue*.garbage_collection.*": ERLANG,
    "queue*.reductions*": ERLANG,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("recorded") / "data", has_http=True) as broker:
        broker.control("declare_queue", "/", queue="q")
        broker.control("publish", "/", routing_key="q", bodies=["a", "b"])
        yield broker


@pytest.mark.parametrize("address", SAMPLES)
def test_an_answer_has_the_members_of_the_recorded_one(broker: LiveBroker, address: str) -> None:
    sample = SAMPLES[address]
    wanted = json.loads((RECORDED / f"{sample}.json").read_text(encoding="utf-8"))
    path = address.format(node=node_name(), port=broker.port)
    with HttpCaller(broker) as http:
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
