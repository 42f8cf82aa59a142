"""What the node answers itself over HTTP: overview, nodes, vhosts, health checks, who asks.

The functions take an ApiRequest, as endpoint.Endpoint.does wants them. What RabbitMQ has and
Penstock cannot have is 0, [] or {}, with RabbitMQ's type: strict clients parse it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.http.endpoint import VHOST, Answer, ApiRequest, not_authorised
from penstock.http.requests import HttpError
from penstock.native import VERSION
from penstock.node_name import node_name
from penstock.operation_table import OPERATIONS

RABBITMQ_VERSION: Final = "3.13.0"  # whose HTTP API this is; clients compare it
RUNNING: Final = "running"
TOTALS: Final = "vhost_totals"
EXCHANGE_TYPES: Final = ("direct", "fanout", "headers", "topic")
CLUSTER_NAME: Final = "cluster_name"

Info = dict[str, Any]


async def whoami(asked: ApiRequest) -> object:
    """Return who asks."""
    account = asked.account
    return {"name": account.user, "tags": sorted(account.tags)}


async def overview(asked: ApiRequest) -> object:
    """Return counts and versions of the whole node; of vhosts that the user sees."""
    status = await asked.node.status()
    totals = await _totals(asked, asked.vhosts())
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


async def _totals(asked: ApiRequest, vhosts: Iterable[str]) -> Info:
    """Return the sums of what the vhosts have counted; those that are down count nothing."""
    if TOTALS not in OPERATIONS:
        return {}
    args: Info = {"samples": asked.sampled()} if asked.sampled() else {}
    names = list(vhosts)
    found = await asyncio.gather(
        *(asked.value(TOTALS, name, **args) for name in names), return_exceptions=True
    )
    answered: list[Info] = []
    for name, one in zip(names, found, strict=True):
        if isinstance(one, PenstockError):
            asked.down.append(name)
        elif isinstance(one, BaseException):
            raise one
        else:
            answered.append(one)
    return summed(answered)


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
            "description": f"AMQP {name} exchange, as per the AMQP specification",
            "enabled": True,
        }
        for name in EXCHANGE_TYPES
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
    await asked.node.value("vhost_status", asked.vhost)
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


def check_node(asked: ApiRequest) -> None:
    """Raise HttpError 404 unless the address names this node."""
    if asked.names["node"] != node_name():
        raise HttpError(404, f"no node {asked.names['node']!r}, this one is {node_name()!r}")


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


async def version(_asked: ApiRequest) -> object:
    """Return the version."""
    return {"version": RABBITMQ_VERSION, "product_name": "Penstock", "product_version": VERSION}
