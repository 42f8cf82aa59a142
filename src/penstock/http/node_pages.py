"""What the node answers itself over HTTP: overview, nodes, vhosts, health checks, who asks.

The functions take an ApiRequest, as endpoint.Endpoint.does wants them. What RabbitMQ has and
Penstock cannot have is 0, [] or {}, with RabbitMQ's type: strict clients parse it.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.access.users import RABBITMQ_SALT_BYTES
from penstock.http.endpoint import VHOST, Answer, ApiRequest, not_authorised
from penstock.http.requests import HttpError
from penstock.native import VERSION, node_name
from penstock.routing.exchange_types import TYPES

RABBITMQ_VERSION: Final = "3.13.0"  # whose HTTP API this is; clients compare it
RUNNING: Final = "running"
CLUSTER_NAME: Final = "cluster_name"

Info = dict[str, Any]


async def whoami(asked: ApiRequest) -> object:
    """Return who asks."""
    account = asked.account
    return {"name": account.user, "tags": sorted(account.tags)}


async def overview(asked: ApiRequest) -> object:
    """Return counts and versions of the whole node; of vhosts that the user sees."""
    status = await asked.node.status()
    totals = await _totals(asked, asked.vhosts(), asked.sampled())
    found: Info = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [600], "basic": [600], "detailed": [600]},
        "exchange_types": _exchange_types(),
        "product_version": VERSION,
        "product_name": "Penstock",
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": await _cluster_name(asked),
        "erlang_version": "",
        "erlang_full_version": "",
        "release_series_support_status": "supported",
        "disable_stats": asked.is_set("disable_stats"),
        "enable_queue_totals": asked.is_set("enable_queue_totals"),
        "message_stats": totals.get("message_stats", {}),
        "churn_rates": totals.get("churn_rates", {}),
        "queue_totals": totals.get("queue_totals", {}),
        "object_totals": _object_totals(totals),
        "statistics_db_event_queue": 0,
        "node": node_name(),
        "listeners": _listeners(status),
        "contexts": _contexts(status),
    }
    return found


async def _totals(
    asked: ApiRequest, vhosts: Iterable[str], samples: Mapping[str, int] | None = None
) -> Info:
    """Return the sums of what the vhosts have counted; those that are down count nothing."""
    args: Info = {"samples": samples} if samples else {}
    found = await _of_running(asked, "vhost_totals", vhosts, **args)
    return summed(found.values())


def summed(rows: Iterable[Mapping[str, Any]]) -> Info:
    """Return an object whose numbers are the sums of those in the rows, also within objects; other
    values are those of the first."""
    found: Info = {}
    for row in rows:
        for name, value in row.items():
            known = found.get(name)
            if isinstance(value, Mapping):
                found[name] = summed([known or {}, value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = (known or 0) + value
            elif known is None:
                found[name] = value
    return found


def _object_totals(totals: Info) -> Info:
    names = ("channels", "connections", "consumers", "exchanges", "queues")
    found: Info = totals.get("object_totals", {})
    return dict.fromkeys(names, 0) | found


def _exchange_types() -> list[Info]:
    return [
        {
            "name": name,
            "description": f"{name} exchange",
            "enabled": True,
        }
        for name in TYPES
    ]  # fmt: skip


def _listeners(status: Info) -> list[Info]:
    return [
        {
            "node": node_name(), "protocol": protocol, "ip_address": status["host"], "port": port,
            "socket_opts": {},
        }
        for protocol, port in status["listeners"].items()
    ]  # fmt: skip


def _contexts(status: Info) -> list[Info]:
    return [
        {
            "ssl_opts": [], "node": node_name(), "description": "Penstock's HTTP API", "path": "/",
            "cowboy_opts": "[]", "ip": status["host"], "port": str(port), "protocol": protocol,
        }
        for protocol, port in status["listeners"].items()
        if protocol in ("http", "https")
    ]  # fmt: skip


async def _cluster_name(asked: ApiRequest) -> str:
    rows = await asked.node.call("list_global_parameters")
    named = {row["name"]: row["value"] for row in rows}
    return str(named.get(CLUSTER_NAME, node_name()))


async def cluster_name(asked: ApiRequest) -> object:
    """Return the name that an operator gave the broker; without one, the node's."""
    return {"name": await _cluster_name(asked)}


async def set_cluster_name(asked: ApiRequest) -> object:
    """Set it."""
    await asked.call_once("set_global_parameter", name=CLUSTER_NAME, value=asked.body["name"])
    return Answer(204)


# ---- nodes ---------------------------------------------------------------------------------------

# Of RabbitMQ's virtual machine and store, which clients want to be numbers.
NOT_COUNTED: Final = (
    "gc_num", "gc_bytes_reclaimed", "context_switches", "io_read_count", "io_read_bytes",
    "io_read_avg_time", "io_write_count", "io_write_bytes", "io_write_avg_time", "io_sync_count",
    "io_sync_avg_time", "io_seek_count", "io_seek_avg_time", "io_reopen_count",
    "mnesia_ram_tx_count", "mnesia_disk_tx_count", "msg_store_read_count", "msg_store_write_count",
    "queue_index_write_count", "queue_index_read_count",
)  # fmt: skip
MEMORY_PARTS: Final = {
    "queue_procs": "counted_bytes", "connection_other": "client_bytes",
    "connection_writers": "output_bytes", "connection_channels": "transaction_bytes",
    "connection_readers": "unfinished_bytes", "mnesia": "topology_bytes",
}  # fmt: skip
NO_MEMORY: Final = (
    "queue_slave_procs", "quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs",
    "stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "plugins", "other_proc",
    "metrics", "metadata_store", "metadata_store_ets", "mgmt_db", "quorum_ets", "other_ets",
    "binary", "msg_index", "code", "atom", "allocated_unused", "reserved_unallocated",
)  # fmt: skip
LARGEST: Final = 5  # queues that are named with an alarm


async def nodes(asked: ApiRequest) -> object:
    """Return the only node, in a list."""
    return [await _node(asked)]


async def node(asked: ApiRequest) -> object:
    """Return the node of the address."""
    check_node(asked)
    return await _node(asked)


async def _node(asked: ApiRequest) -> Info:
    """Return the node. Descriptors, RAM and CPU are those of all its processes together."""
    status, found = await asked.node.status(), await asked.value("describe_node")
    running = [one for one in found["processes"] if one["pid"]]
    totals = await _totals(asked, asked.vhosts())
    reasons = {row["blocked_reason"] for row in status["vhosts"]}
    return {
        "name": node_name(),
        "type": "disc",
        "running": True,
        "being_drained": False,
        "partitions": [],
        "os_pid": str(found["os_pid"]),
        "fd_used": sum(one["open_files"] or 0 for one in running),
        "fd_total": found["fd_total"],
        "sockets_used": status["connections"],
        "sockets_total": found["fd_total"],
        "proc_used": len(running),
        "proc_total": found["proc_total"],
        "mem_used": sum(one["rss_bytes"] or 0 for one in running),
        "mem_limit": status["memory_bytes"],
        "mem_alarm": "memory" in reasons,
        "mem_calculation_strategy": "rss",
        "disk_free": status["disk_free_bytes"],
        "disk_free_limit": status["disk_free_limit_bytes"],
        "disk_free_alarm": status["disk_free_bytes"] < status["disk_free_limit_bytes"],
        "rates_mode": "basic",
        "uptime": found["uptime_ms"],
        "run_queue": 0,
        "processors": found["processors"],
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True}
            for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        "applications": [{"name": "penstock", "description": "Penstock", "version": VERSION}],
        "contexts": _contexts(status),
        "log_files": ["<stderr>"],
        "db_dir": found["db_dir"],
        "config_files": found["config_files"],
        "net_ticktime": 0,
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "ra_open_file_metrics": {},
        **dict.fromkeys(NOT_COUNTED, 0),
        **totals.get("churn_rates", {}),
        "cluster_links": [],
        "metrics_gc_queue_length": {},
        "penstock": {
            name: found[name] for name in ("processes", "log_directory", "spill_directory")
        },
    }  # fmt: skip


async def node_memory(asked: ApiRequest) -> object:
    """Return what the RAM of all processes is for, by RabbitMQ's nearest names; in `penstock`,
    what each vhost says."""
    check_node(asked)
    found = await asked.value("describe_node")
    statuses = await _of_running(asked, "vhost_status")
    rss = sum(one["rss_bytes"] or 0 for one in found["processes"])
    parts = {name: sum(one[of] for one in statuses.values()) for name, of in MEMORY_PARTS.items()}
    parts["other_system"] = max(rss - sum(parts.values()), 0)
    total = {"erlang": rss, "rss": rss, "allocated": rss}
    return {
        "memory": {**dict.fromkeys(NO_MEMORY, 0), **parts, "strategy": "rss", "total": total},
        "penstock": {
            name: {part: value for part, value in one.items() if part.endswith("_bytes")}
            for name, one in statuses.items()
        },
    }  # fmt: skip


async def _of_running(
    asked: ApiRequest, op: str, vhosts: Iterable[str] | None = None, **args: object
) -> dict[str, Any]:
    """Return what each of the vhosts, or each that the user sees, says to an operation, if it
    answers; `asked.down` has the others."""
    names = asked.vhosts() if vhosts is None else vhosts
    return await asked.of_each(names, lambda name: asked.value(op, name, **args))


async def processes(asked: ApiRequest) -> object:
    """Return the processes of the broker, also those that are down."""
    return (await asked.value("describe_node"))["processes"]


async def alerts(asked: ApiRequest) -> object:
    """Return the alerts of all vhosts that the user sees."""
    return [row for rows in (await _of_running(asked, "list_alerts")).values() for row in rows]


async def alarms(asked: ApiRequest) -> object:
    """Return which vhosts' publishers wait: why, since when, and which queues hold the most."""
    found: list[Info] = []
    for name, one in (await _of_running(asked, "vhost_status")).items():
        if not one["blocked_reason"]:
            continue
        largest = await asked.value(
            "list_rows", name, kind="queues", page=1, page_size=LARGEST, reverse=True,
            sort="memory" if "memory" in one["blocked_reason"] else "message_bytes",
            columns=["name", "memory", "message_bytes", "messages"],
        )  # fmt: skip
        found.append(
            {
                VHOST: name, "reason": one["blocked_reason"], "since_ms": one["blocked_since_ms"],
                "largest": largest["items"],
            }
        )  # fmt: skip
    return found


# ---- vhosts --------------------------------------------------------------------------------------


async def vhosts(asked: ApiRequest) -> object:
    """Return the vhosts that the user sees, also those that are down."""
    rows = await asked.node.call("list_vhosts")
    seen = [
        row for row in rows
        if asked.sees_all or asked.account.identity(row["name"]) is not None
    ]  # fmt: skip
    return await asyncio.gather(*(_vhost_row(asked, row) for row in seen))


async def vhost(asked: ApiRequest) -> object:
    """Return one vhost."""
    for row in await asked.node.call("list_vhosts"):
        if row["name"] == asked.vhost:
            return await _vhost_row(asked, row)
    raise HttpError(404, f"no vhost '{asked.vhost}'")


async def _vhost_row(asked: ApiRequest, row: Info) -> Info:
    totals: Info = {}
    if row["state"] == RUNNING and asked.identity(row["name"]) is not None:
        totals = await _totals(asked, [row["name"]])
    tags = list(row.get("tags") or [])
    description = row.get("description") or ""
    kind = row.get("default_queue_type") or "undefined"
    found: Info = {
        "name": row["name"],
        "description": description,
        "tags": tags,
        "default_queue_type": kind,
        "metadata": {"description": description, "tags": tags},
        "tracing": bool(totals.get("tracing", False)),
        "cluster_state": {node_name(): row["state"]},
        **totals.get("queue_totals", {}),
        **{
            name: value for name, value in totals.items()
            if name.startswith(("recv_oct", "send_oct"))
        },
        "penstock": {
            name: row[name]
            for name in (
                "state", "why", "since", "blocked_reason", "restarts", "pid", "rss_bytes",
                "memory_bytes", "counted_bytes", "connections",
            )
        },
    }  # fmt: skip
    if totals.get("message_stats"):
        found["message_stats"] = totals["message_stats"]
    return found


async def aliveness(asked: ApiRequest) -> object:
    """Return ok when the vhost has answered; no queue is made."""
    await asked.node.value("describe_row", asked.vhost, kind="exchanges", name="", rates=False)
    return {"status": "ok"}


# ---- health checks -------------------------------------------------------------------------------


def _failed(reason: str, **more: object) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **more})


def _alarmed(status: Info) -> list[Info]:
    """Return what publishers wait for: {node, resource, vhost}."""
    found = [
        {"node": node_name(), "resource": row["blocked_reason"], VHOST: row["name"]}
        for row in status["vhosts"] if row["blocked_reason"]
    ]  # fmt: skip
    if status["disk_free_bytes"] < status["disk_free_limit_bytes"] and not found:
        found.append({"node": node_name(), "resource": "disk", VHOST: None})
    return found


async def check_alarms(asked: ApiRequest) -> object:
    """Fail while publishers wait, with the reason of each vhost."""
    alarms = _alarmed(await asked.node.status())
    if not alarms:
        return {"status": "ok"}
    if not asked.sees_all:
        alarms = [{name: one[name] for name in ("node", "resource")} for one in alarms]
    return _failed("There are alarms in effect in the cluster", alarms=alarms)


async def check_vhosts(asked: ApiRequest) -> object:
    """Fail while a vhost is down or does not serve."""
    rows = (await asked.node.status())["vhosts"]
    down = [row["name"] for row in rows if row["state"] == "down" or row["unserved"]]
    if not down:
        return {"status": "ok"}
    return _failed("Some virtual hosts are down", **{"virtual-hosts": down})


async def check_port(asked: ApiRequest) -> object:
    """Fail unless the broker listens at the port."""
    ports = list((await asked.node.status())["listeners"].values())
    text = asked.names["port"]
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise HttpError(400, f"port: given {text[:40]!r}, expected a number from 1 to 65535")
    if int(text) in ports:
        return {"status": "ok", "port": int(text)}
    return _failed("No active listener", missing=int(text), ports=ports)


UNIT_DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
# RabbitMQ's other names of protocols.
PROTOCOLS: Final = {
    "amqp091": "amqp",
    "amqp0.9.1": "amqp",
    "amqp/ssl": "amqps",
    "http/ssl": "https",
}


async def check_protocol(asked: ApiRequest) -> object:
    """Fail unless the broker listens for the protocol: amqp, amqps, http, https."""
    known = list((await asked.node.status())["listeners"])
    protocol = asked.names["protocol"]
    if PROTOCOLS.get(protocol, protocol) in known:
        return {"status": "ok", "protocol": protocol}
    return _failed("No active listener", missing=protocol, protocols=known)


async def check_certificates(asked: ApiRequest) -> object:
    """Fail if a certificate of TLS expires within a time: {within} days, weeks, months, years."""
    unit, text = asked.names["unit"], asked.names["within"]
    if unit not in UNIT_DAYS or not text.isascii() or not text.isdigit() or len(text) > 5:
        units = ", ".join(UNIT_DAYS)
        raise HttpError(400, f"given {text[:20]!r} {unit[:20]!r}, expected a number and {units}")
    status = await asked.node.status()
    until_ms = status["now_ms"] + int(text) * UNIT_DAYS[unit] * 86_400_000
    late = [
        one for one in (status["tls"] or {}).get("certificates", [])
        if one["expires_ms"] < until_ms
    ]  # fmt: skip
    if not late:
        return {"status": "ok"}
    return _failed("Certificates expiring", expired=late)


async def check_single_node(_asked: ApiRequest) -> object:
    """Return ok: there is one node."""
    return {"status": "ok", "reason": "single node cluster"}


async def check_ready(asked: ApiRequest) -> object:
    """Fail until the broker serves clients."""
    status = await asked.node.status()
    if status["is_ready"] and status["takes_clients"]:
        return {"status": "ok"}
    why = "; ".join(status["problems"]) if asked.sees_all else "see the broker's log"
    return _failed("the broker does not serve clients: " + why)


async def check_ok(_asked: ApiRequest) -> object:
    """Return ok: a broker that answers is well in this respect."""
    return {"status": "ok"}


def check_node(asked: ApiRequest) -> None:
    """Raise HttpError 404 unless the address names this node."""
    if asked.names["node"] != node_name():
        raise HttpError(404, f"no node {asked.names['node']!r}, this one is {node_name()!r}")


async def check_this_node(asked: ApiRequest) -> object:
    """As `check_vhosts`. Raises HttpError 404 for another node's name."""
    check_node(asked)
    return await check_vhosts(asked)


def check_own(asked: ApiRequest, user: str) -> None:
    """Raise HttpError 401 unless the user asks about itself, or is an administrator."""
    if asked.account.user != user and "administrator" not in asked.account.tags:
        raise not_authorised("User not authorised to access object")


# ---- what is the same for every broker -----------------------------------------------------------


async def nothing(_asked: ApiRequest) -> object:
    """Return an empty list: Penstock has none of these."""
    return []


async def auth(_asked: ApiRequest) -> object:
    """Return that users log in with name and password."""
    return {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def hash_password(asked: ApiRequest) -> object:
    """Return a hash of the password in the address, as definitions and PUT of a user take it."""
    salt = secrets.token_bytes(RABBITMQ_SALT_BYTES)
    password = asked.names["password"].encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(salt + password).digest()
    return {"ok": base64.b64encode(salt + digest).decode()}


async def auth_attempts(asked: ApiRequest) -> object:
    """Return how many logins there were since the start, over HTTP since its process began."""
    check_node(asked)
    logins = (await asked.value("describe_node"))["logins"]
    http = asked.auth
    return [
        {
            "protocol": protocol, "auth_attempts": good + bad, "auth_attempts_failed": bad,
            "auth_attempts_succeeded": good,
        }
        for protocol, good, bad in (
            ("http", http.succeeded, http.failed),
            ("amqp091", logins["succeeded"], logins["failed"]),
        )
    ]  # fmt: skip


async def rebalance(_asked: ApiRequest) -> object:
    """Do nothing: one node leads all queues."""
    return Answer(204)


async def version(_asked: ApiRequest) -> object:
    """Return the version."""
    return {"version": RABBITMQ_VERSION, "product_name": "Penstock", "product_version": VERSION}
