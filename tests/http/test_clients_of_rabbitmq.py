"""What clients of RabbitMQ's HTTP API need of its answers, as strict as they parse them.

The lists are those of the fields without which a client refuses an answer, or shows nothing: of the
Rust client (which needs each of them), Go's rabbit-hole, KEDA, Telegraf, Datadog and Flower.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote_plus

import pika
import pytest

from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.management_client import ManagementClient

pytestmark = pytest.mark.real

NUMBER = (int, float)
TEXT = (str,)
FLAG = (bool,)
LIST = (list,)
TABLE = (dict,)
NONE = type(None)

QUEUE: Mapping[str, tuple[type, ...]] = {
    # the Rust client
    "name": TEXT, "vhost": TEXT, "type": TEXT, "durable": FLAG, "auto_delete": FLAG,
    "exclusive": FLAG, "arguments": TABLE,
    # Telegraf, Datadog, Flower
    "messages": NUMBER, "messages_ready": NUMBER, "messages_unacknowledged": NUMBER,
    "messages_details.rate": NUMBER, "messages_ready_details.rate": NUMBER,
    "messages_unacknowledged_details.rate": NUMBER, "consumers": NUMBER, "memory": NUMBER,
    "consumer_utilisation": (*NUMBER, NONE), "node": TEXT, "state": TEXT,
    "policy": (*TEXT, NONE), "message_bytes": NUMBER, "message_bytes_ready": NUMBER,
    "message_bytes_unacknowledged": NUMBER, "message_bytes_ram": NUMBER,
    "message_bytes_persistent": NUMBER, "messages_ram": NUMBER, "messages_persistent": NUMBER,
    "slave_nodes": LIST, "synchronised_slave_nodes": LIST,
}  # fmt: skip
NEEDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "overview": {
        # Telegraf refuses the whole answer if one of the four is missing
        "message_stats": TABLE, "object_totals": TABLE, "queue_totals": TABLE, "listeners": LIST,
        "rabbitmq_version": TEXT, "management_version": TEXT, "product_name": TEXT,
        "product_version": TEXT, "erlang_version": TEXT, "cluster_name": TEXT, "node": TEXT,
        "rates_mode": TEXT, "object_totals.connections": NUMBER, "object_totals.channels": NUMBER,
        "object_totals.queues": NUMBER, "object_totals.exchanges": NUMBER,
        "object_totals.consumers": NUMBER, "churn_rates": TABLE, "contexts": LIST,
        "exchange_types": LIST, "statistics_db_event_queue": NUMBER,
    },
    "nodes": {
        "name": TEXT, "uptime": NUMBER, "run_queue": NUMBER, "processors": NUMBER, "os_pid": TEXT,
        "fd_total": NUMBER, "proc_total": NUMBER, "mem_limit": NUMBER, "mem_alarm": FLAG,
        "disk_free_limit": NUMBER, "disk_free_alarm": FLAG, "rates_mode": TEXT,
        "enabled_plugins": LIST, "being_drained": FLAG, "disk_free": NUMBER, "fd_used": NUMBER,
        "mem_used": NUMBER, "sockets_used": NUMBER, "sockets_total": NUMBER, "proc_used": NUMBER,
        "partitions": LIST, "running": FLAG, "gc_num": NUMBER, "gc_bytes_reclaimed": NUMBER,
    },
    "queues": QUEUE,
    "queues/%2F": QUEUE,
    "queues/%2F/jobs": QUEUE,
    "exchanges": {
        "name": TEXT, "vhost": TEXT, "type": TEXT, "durable": FLAG, "auto_delete": FLAG,
        "internal": FLAG, "arguments": TABLE,
    },
    "bindings": {
        "source": TEXT, "vhost": TEXT, "destination": TEXT, "destination_type": TEXT,
        "routing_key": TEXT, "arguments": TABLE, "properties_key": TEXT,
    },
    "connections": {
        "name": TEXT, "node": TEXT, "protocol": TEXT, "user": TEXT, "connected_at": NUMBER,
        "client_properties": TABLE, "vhost": TEXT, "state": TEXT, "channels": NUMBER,
        "recv_oct": NUMBER, "send_oct": NUMBER, "ssl": FLAG, "peer_host": TEXT,
        "peer_port": NUMBER,
    },
    "channels": {
        "number": NUMBER, "name": TEXT, "connection_details.name": TEXT,
        "connection_details.peer_host": TEXT, "connection_details.peer_port": NUMBER,
        "vhost": TEXT, "state": TEXT, "consumer_count": NUMBER, "confirm": FLAG,
        "prefetch_count": NUMBER, "messages_unacknowledged": NUMBER,
        "messages_unconfirmed": NUMBER,
    },
    "consumers": {
        "consumer_tag": TEXT, "active": FLAG, "ack_required": FLAG, "prefetch_count": NUMBER,
        "exclusive": FLAG, "arguments": TABLE, "consumer_timeout": (*NUMBER, NONE),
        "queue.name": TEXT, "queue.vhost": TEXT, "channel_details.name": TEXT,
        "channel_details.connection_name": TEXT, "channel_details.node": TEXT,
        "channel_details.number": NUMBER, "channel_details.peer_host": TEXT,
        "channel_details.peer_port": NUMBER, "channel_details.user": TEXT,
    },
    "vhosts": {
        "name": TEXT, "description": TEXT, "tags": LIST, "default_queue_type": TEXT,
        "metadata.description": TEXT, "metadata.tags": LIST, "tracing": FLAG,
        "cluster_state": TABLE,
    },
    "users": {
        "name": TEXT, "tags": LIST, "password_hash": TEXT, "hashing_algorithm": TEXT,
        "limits": TABLE,
    },
    "permissions": {"user": TEXT, "vhost": TEXT, "configure": TEXT, "write": TEXT, "read": TEXT},
    "policies": {
        "vhost": TEXT, "name": TEXT, "pattern": TEXT, "apply-to": TEXT, "definition": TABLE,
        "priority": NUMBER,
    },
    "vhost-limits": {"vhost": TEXT, "value": TABLE},
    "definitions": {
        "rabbitmq_version": TEXT, "users": LIST, "vhosts": LIST, "permissions": LIST,
        "topic_permissions": LIST, "parameters": LIST, "global_parameters": LIST,
        "policies": LIST, "queues": LIST, "exchanges": LIST, "bindings": LIST,
    },
    "whoami": {"name": TEXT, "tags": LIST},
    "aliveness-test/%2F": {"status": TEXT},
    "cluster-name": {"name": TEXT},
}  # fmt: skip


def wrong_in(row: Any, needs: Mapping[str, tuple[type, ...]]) -> list[str]:
    """What a strict client would refuse in an object."""
    found = []
    for path, kinds in needs.items():
        value = row
        for part in path.split("."):
            value = value[part] if isinstance(value, dict) and part in value else ...
        is_flag = isinstance(value, bool) and bool not in kinds
        if is_flag or not isinstance(value, kinds):
            found.append(f"{path}: {value!r:.60}")
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("clients") / "data", has_http=True) as live:
        live.control("await_startup")
        yield live


@pytest.fixture(scope="module")
def api(broker: LiveBroker) -> Iterator[ManagementClient]:
    """With something of each kind: a queue with a consumer, a stream, a policy, a limit."""
    api = ManagementClient(broker)
    api.ask("PUT", "queues/%2F/jobs", {"durable": True, "arguments": {"x-max-length": 100}})
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    api.ask("PUT", "queues/%2F/events", stream)
    api.ask("PUT", "policies/%2F/p", {"pattern": "jobs", "definition": {"max-length": 5}})
    api.ask("PUT", "vhost-limits/%2F/max-queues", {"value": 100})
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_consume("jobs", print)
        channel.basic_publish("", "jobs", b"1")
        connection.process_data_events(0)
        wait_until(lambda: api.get("queues/%2F/jobs")["messages_unacknowledged"] == 1)
        yield api


@pytest.mark.parametrize("path", NEEDS)
def test_an_answer_has_what_clients_need(api: ManagementClient, path: str) -> None:
    found = api.get(path)
    rows = found if isinstance(found, list) else [found]
    assert rows
    assert {str(row.get("name", n)): wrong_in(row, NEEDS[path]) for n, row in enumerate(rows)} == {
        str(row.get("name", n)): [] for n, row in enumerate(rows)
    }


def test_keda_asks_by_regex_and_wants_one_page(api: ManagementClient) -> None:
    """It fails if there are more pages, sends `pagination=false`, and encodes as forms do."""
    name = quote_plus("^jo.*$")
    query = f"page=1&use_regex=true&pagination=false&name={name}&page_size=100"
    found = api.get(f"queues/%2F?{query}")
    assert found["page_count"] == 1
    (row,) = found["items"]
    assert row["name"] == "jobs"
    assert row["messages"] == row["messages_ready"] + row["messages_unacknowledged"] == 1
    rate = row.get("message_stats", {}).get("publish_details", {}).get("rate", 0)
    assert isinstance(rate, NUMBER)
    nothing = api.get("queues/%2F?page=1&use_regex=true&name=none&page_size=100")
    assert nothing["page_count"] <= 1
    assert nothing["items"] == []


def test_telegraf_asks_for_links_of_federation_each_time(api: ManagementClient) -> None:
    assert api.get("federation-links") == []
    memory = api.get(f"nodes/{api.get('overview')['node']}/memory")["memory"]
    assert isinstance(memory["total"]["rss"], int)


FRACTIONS = ("rate", "_avg_time", "consumer_utilisation", "consumer_capacity")  # ends of names


def points_in(value: Any, name: str = "") -> set[str]:
    """The names of RabbitMQ's numbers with a point that are to be whole."""
    if isinstance(value, dict):
        inner = [points_in(one, key) for key, one in value.items() if key != "penstock"]
        return set[str]().union(*inner)
    if isinstance(value, list):
        return set[str]().union(*[points_in(one, name) for one in value])
    return {name} if isinstance(value, float) and not name.endswith(FRACTIONS) else set()


@pytest.mark.parametrize(
    "path", ["overview", "nodes", "queues", "queues/%2F?page=1&page_size=100", "exchanges"]
)
def test_a_whole_number_has_no_point(api: ManagementClient, path: str) -> None:
    """Clients in Go, such as Telegraf and KEDA, refuse 1.0 where they have a whole number, and the
    whole answer with it."""
    assert points_in(api.get(path)) == set()


def test_keda_counts_up_to_500_queues_of_a_vhost_with_a_space(api: ManagementClient) -> None:
    """Go's forms write the space as a plus; more queues than pageSize are more pages."""
    api.ask("PUT", "vhosts/my%20v%2Fh", {})
    full = {"configure": ".*", "write": ".*", "read": ".*"}
    api.ask("PUT", "permissions/my%20v%2Fh/guest", full)
    for number in range(3):
        api.ask("PUT", f"queues/my%20v%2Fh/with%20space%2B{number}", {"durable": True})
    query = f"page=1&use_regex=true&pagination=false&name={quote_plus('^with space[+]')}"
    found = api.get(f"queues/my%20v%2Fh?{query}&page_size=500")
    assert (found["page_count"], len(found["items"])) == (1, 3)
    assert api.get(f"queues/my%20v%2Fh?{query}&page_size=2")["page_count"] == 2
    api.ask("DELETE", "vhosts/my%20v%2Fh")


def test_rabbitmqadmin_2_needs_each_share_of_memory(api: ManagementClient) -> None:
    memory = api.get(f"nodes/{api.get('overview')['node']}/memory")["memory"]
    shares = (
        "connection_readers connection_writers connection_channels connection_other queue_procs "
        "quorum_queue_procs stream_queue_procs stream_queue_replica_reader_procs plugins mnesia "
        "stream_queue_coordinator_procs metadata_store other_proc metrics mgmt_db quorum_ets "
        "metadata_store_ets other_ets binary msg_index code atom other_system allocated_unused "
        "reserved_unallocated total.rss total.allocated total.erlang"
    )
    needs: dict[str, tuple[type, ...]] = dict.fromkeys(shares.split(), (int,))
    assert wrong_in(memory, {**needs, "strategy": TEXT}) == []


def test_flower_shows_the_queues_of_a_vhost(api: ManagementClient) -> None:
    names = ("name", "messages", "messages_ready", "messages_unacknowledged", "consumers",
             "idle_since")  # fmt: skip
    row = next(row for row in api.get("queues/%2F") if row["name"] == "jobs")
    assert {name: row.get(name) for name in names[:-1]} == {
        "name": "jobs", "messages": 1, "messages_ready": 0, "messages_unacknowledged": 1,
        "consumers": 1,
    }  # fmt: skip


def test_datadog_encodes_as_forms_do(api: ManagementClient) -> None:
    assert len(api.get("queues/%2F/jobs/bindings")) == 1
    api.ask("PUT", "queues/%2F/a%20b%2Bc", {"durable": True})
    assert api.get("queues/%2F/a%20b%2Bc")["name"] == "a b+c"
    assert api.get("queues/%2F/a%20b+c")["name"] == "a b+c"  # a plus in a path is a plus
    api.ask("DELETE", "queues/%2F/a%20b%2Bc")
