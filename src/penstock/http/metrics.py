"""Metrics: /metrics for Prometheus.

    /metrics               totals of vhosts and of the broker, by our names and by RabbitMQ's;
                           never more for more queues
    /metrics/per-object    the same, and what each queue, exchange, reader has
    /metrics/detailed      of the latter the families that are asked for, as often as needed:
                           ?family=queue_coarse_metrics&vhost=%2F; an unknown one is ignored
    /metrics/NAME          404 "Unknown Registry", as RabbitMQ says

At the port of HTTP a user with the tag monitoring or administrator may ask; at the port of the
option `prometheus_port` everybody, without a password, and there is nothing else there.
`?prefix=` puts another word in the place of "penstock". A vhost that does not answer leaves its
rows out; penstock_process_up says so.

RabbitMQ's dashboards join each panel with rabbitmq_identity_info, so every answer has that.
Deliveries of streams are counted with those of classic queues.
"""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from penstock.counts import LONG_S, Histogram
from penstock.http.management import takes_gzip
from penstock.http.metrics_text import (
    OPENMETRICS,
    PLAIN,
    PREFIX,
    MetricsText,
    ObjectTexts,
    is_openmetrics,
    penstock_text,
    quoted,
)
from penstock.http.node_link import NodeLink
from penstock.http.node_pages import RABBITMQ_VERSION
from penstock.http.requests import PIECE_BYTES, HttpError, PiecesAnswer
from penstock.metric_table import FAMILIES, GAUGE, RABBITMQ
from penstock.native import VERSION
from penstock.operation_json import JsonText
from penstock.server.control import ControlError

METRICS: Final = "/metrics"
RABBITMQ_PREFIX: Final = "rabbitmq_"
KEPT_MAX: Final = 2  # texts of what each object has, each of other families
KEPT_S: Final = 300.0  # after the last scrape
PER_OBJECT: Final = "per-object"
DETAILED: Final = "detailed"
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,19}")


def is_metrics(path: str) -> bool:
    """Return whether the path of an address is one of these."""
    return path == METRICS or path.startswith(METRICS + "/")


class Measured(Protocol):
    """What of HTTP counts something of a vhost."""

    async def metrics(self, vhost: str) -> Mapping[str, Any]:
        """Return values by the names of metric_table; those by label are added to the vhost's."""


class MetricsPages:
    """Answers these addresses. measured: count, beside the vhosts."""

    def __init__(self, node: NodeLink, measured: Sequence[Measured]) -> None:
        self._node = node
        self._measured = measured
        self._requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self._seconds = Histogram(LONG_S)
        # What was asked for -> its texts, the last asked last. One at a time changes them.
        self._kept: dict[tuple[str, ...], tuple[ObjectTexts, asyncio.Lock]] = {}
        self._forgetting: asyncio.TimerHandle | None = None

    def note(self, route: str, status: int, seconds: float) -> None:
        """Count a request. route: the pattern of its address; status: 0 if nothing was
        answered."""
        self._requests[route, status] += 1
        self._seconds.record(seconds)

    async def answer(self, request: Request, path: str) -> Response:
        """Return the answer. Raises HttpError, ControlError."""
        if request.method not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD"})
        registry = path.removeprefix(METRICS).strip("/")
        if registry not in ("", PER_OBJECT, DETAILED):
            return Response("Unknown Registry", 404, media_type="text/plain")
        is_open = is_openmetrics(request.headers.get("accept", ""))
        prefix = _prefix(request)
        text = MetricsText(is_openmetrics=is_open, prefix=prefix)
        node = await self._node.call("node_metrics")
        _add_info(text, node["node"], registry or "aggregated")
        if registry != DETAILED:
            await self._add_totals(text, node, is_per_object=registry == PER_OBJECT)
        if registry:
            await self._add_objects(text, request, node["vhosts"], registry, prefix)
        headers = {"Content-Type": OPENMETRICS if is_open else PLAIN, "Cache-Control": "no-cache"}
        if takes_gzip(request):
            headers["Content-Encoding"] = "gzip"
            data = await asyncio.to_thread(text.gzipped)
        elif (size := text.size()) > PIECE_BYTES:
            what = f"{request.method} {path}"
            return PiecesAnswer(text.runs(PIECE_BYTES), size, 200, headers, what, _nothing)
        else:
            data = text.text()
        return Response(b"" if request.method == "HEAD" else data, headers=headers)

    async def _add_totals(self, text: MetricsText, node: Any, *, is_per_object: bool) -> None:
        vhosts = await self._of_vhosts("metrics", node["vhosts"])
        _add_rabbitmq(text, node, vhosts.values(), is_per_object=is_per_object)
        own = {
            "http_requests_total": [
                [route, status, n] for (route, status), n in sorted(self._requests.items())
            ],
            "http_request_seconds": self._seconds.facts(),
        }
        values = {name: one["values"] for name, one in vhosts.items()}
        for vhost, found in values.items():
            for source in self._measured:
                for name, value in (await source.metrics(vhost)).items():
                    found[name] = found[name] | value if isinstance(value, dict) else value
        penstock_text(text, {**node["values"], **own}, values)

    async def _add_objects(
        self, text: MetricsText, request: Request, vhosts: list[str], registry: str, prefix: str
    ) -> None:
        """Add what each object has. The text is made in a thread: it may be long."""
        asked = request.query_params
        if registry == PER_OBJECT:
            names = [name for name, one in FAMILIES.items() if one.in_per_object]
            ends = ""
        else:
            names = [name for name in dict.fromkeys(asked.getlist("family")) if name in FAMILIES]
            ends = "detailed_"
        only = asked.getlist("vhost")
        if only:
            vhosts = [name for name in vhosts if name in only]
        if not names:
            return
        starts = [prefix if FAMILIES[name].is_ours else RABBITMQ_PREFIX for name in names]
        starts = [start + ends for start in starts]
        key = (*names, *starts)
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = ObjectTexts([FAMILIES[name] for name in names], starts), asyncio.Lock()
        self._kept[key] = kept
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_S, self._kept.clear)
        texts, lock = kept
        async with lock:
            op = "object_metrics"
            answers = await _answers({
                name: self._node.call(op, name, families=names, since=texts.stamp(name))
                for name in vhosts
            })  # fmt: skip
            await asyncio.to_thread(_write, text, texts, answers)

    async def _of_vhosts(self, op: str, names: list[str]) -> Mapping[str, Any]:
        """Return the answers of those that answer."""
        return await _answers({name: self._node.call(op, name) for name in names})


def _nothing() -> None:
    """Do nothing: the end of this answer is of no interest."""


async def _answers(calls: Mapping[str, Coroutine[Any, Any, Any]]) -> Mapping[str, Any]:
    """Return the answers of those vhosts that answer."""
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    there: dict[str, Any] = {}
    for name, one in zip(calls, found, strict=True):
        if not isinstance(one, BaseException):
            there[name] = one
        elif not isinstance(one, HttpError | ControlError):
            raise one
    return there


def _write(text: MetricsText, texts: ObjectTexts, answers: Mapping[str, Any]) -> None:
    """Add what each object has, in a thread: it may be long."""
    for vhost, one in answers.items():
        texts.update(vhost, json.loads(one.text) if isinstance(one, JsonText) else one)
    texts.write(text, answers)


def _prefix(request: Request) -> str:
    """Return the prefix of our names. Raises HttpError 400."""
    given = request.query_params.get("prefix")
    if given is None:
        return PREFIX
    if not _PREFIX.fullmatch(given):
        raise HttpError(
            400, f"prefix: given {given!r:.60}, expected at most 20 letters, digits and _, with a "
            "letter first",
        )  # fmt: skip
    return given + "_"


# ---- RabbitMQ's names ----------------------------------------------------------------------------


def _add_info(text: MetricsText, node: Mapping[str, Any], endpoint: str) -> None:
    """Add the two families that name the node and its versions. node: of `node_metrics`. endpoint:
    which text it is, as RabbitMQ 4 says: its dashboards choose one."""
    labels = {
        "build_info": {
            "rabbitmq_version": RABBITMQ_VERSION, "prometheus_plugin_version": VERSION,
            "prometheus_client_version": VERSION, "erlang_version": "",
        },
        "identity_info": {
            "rabbitmq_node": node["name"], "rabbitmq_cluster": node["cluster_name"],
            "rabbitmq_cluster_permanent_id": node["cluster_name"],
            "rabbitmq_endpoint": endpoint,
        },
    }  # fmt: skip
    for name, of in labels.items():
        text.head(RABBITMQ_PREFIX + name, GAUGE, "RabbitMQ's name for this node and its versions")
        shown = ",".join(f"{label}={quoted(value)}" for label, value in of.items())
        text.sample(RABBITMQ_PREFIX + name, shown, 1)


def _add_rabbitmq(
    text: MetricsText, node: Mapping[str, Any], vhosts: Iterable[Mapping[str, Any]],
    *, is_per_object: bool = False,
) -> None:  # fmt: skip
    """Add the rows of RABBITMQ. node, vhosts: answers of `node_metrics` and `metrics`.
    is_per_object: without those that are sums over queues and channels."""
    found = _sums(node, vhosts)
    for row in RABBITMQ:
        if is_per_object and row.name.startswith(("queue_", "channel_")):
            continue
        name = RABBITMQ_PREFIX + row.name
        text.head(name, row.kind, row.meaning)
        text.sample(name, row.labels, found[row.source])


def _sums(node: Mapping[str, Any], vhosts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the sources of RABBITMQ."""
    found: dict[str, float] = defaultdict(int)
    for one in vhosts:
        _add_vhost(found, one["values"], one["totals"])
    values, about = node["values"], node["node"]
    found |= {
        "process.open_fds": _summed(values["process_open_fds"]),
        "process.rss": _summed(values["process_resident_memory_bytes"]),
        "process.max_fds": about["files_max"],
        "node.memory_bytes": about["memory_bytes"],
        "node.uptime_s": about["uptime_s"],
        "node.disk_free_bytes": values["disk_free_bytes"],
        "node.disk_free_limit_bytes": values["disk_free_limit_bytes"],
        "node.login_failed": values["handshakes_failed_total"].get("password", 0),
    }
    return found


def _add_vhost(
    found: dict[str, float], values: Mapping[str, Any], totals: Mapping[str, Any]
) -> None:
    for group in ("message_stats", "churn_rates", "object_totals", "dead_lettered"):
        for name, n in totals[group].items():
            found[f"{group}.{name}"] += n
    stats, messages = totals["message_stats"], values["messages"]
    unroutable = stats["drop_unroutable"] + stats["return_unroutable"]
    ready = sum(messages[state] for state in ("alpha", "beta", "gamma", "delta"))
    syncs = values["sync_seconds"]
    for name, n in {
        "message_stats.routed": stats["publish"] - unroutable,
        "message_stats.publish_confirm": stats["confirm"] + values["confirms_pending"],
        "messages.ready": ready,
        "messages.unacked": messages["unacked"],
        "messages.all": ready + messages["unacked"],
        "messages.alpha": messages["alpha"],
        "messages.out": ready - messages["alpha"],
        "message_bytes.ready": values["message_bytes"]["ready"],
        "message_bytes.unacked": values["message_bytes"]["unacked"],
        "publishers": values["publishers"],
        "unconfirmed": values["confirms_pending"],
        "traffic.recv_oct": totals["recv_oct"],
        "traffic.send_oct": totals["send_oct"],
        "log.syncs": sum(syncs[1:]),
        "log.sync_s": syncs[0],
        "log.bytes": values["log_bytes_total"],
        "paging.reads": values["page_in_runs_total"],
        "paging.read_bytes": values["paged_in_bytes_total"],
    }.items():
        found[name] += n
    for reason, is_on in values["publishers_blocked"].items():
        found[f"alarms.{reason}"] = max(found[f"alarms.{reason}"], is_on)


def _summed(rows: list[list[Any]]) -> float:
    return sum(float(row[-1]) for row in rows)
