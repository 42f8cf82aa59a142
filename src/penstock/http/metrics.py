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
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from penstock.counts import LONG_S, Histogram
from penstock.http import rabbitmq_metrics
from penstock.http.management import takes_gzip
from penstock.http.metrics_text import (
    OPENMETRICS,
    PLAIN,
    PREFIX,
    MetricsText,
    is_openmetrics,
    penstock_text,
)
from penstock.http.node_link import NodeLink
from penstock.http.object_texts import ObjectTexts
from penstock.http.requests import HttpError
from penstock.metric_table import FAMILIES
from penstock.operation_json import JsonText
from penstock.server.control import ControlError

METRICS: Final = "/metrics"
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
        rabbitmq_metrics.info(text, node["node"], registry or "aggregated")
        if registry != DETAILED:
            await self._add_totals(text, node, is_per_object=registry == PER_OBJECT)
        if registry:
            await self._add_objects(text, request, node["vhosts"], registry, prefix)
        headers = {"Content-Type": OPENMETRICS if is_open else PLAIN, "Cache-Control": "no-cache"}
        if takes_gzip(request):
            headers["Content-Encoding"] = "gzip"
            data = await asyncio.to_thread(text.gzipped)
        else:
            data = text.text()
        return Response(b"" if request.method == "HEAD" else data, headers=headers)

    async def _add_totals(self, text: MetricsText, node: Any, *, is_per_object: bool) -> None:
        vhosts = await self._of_vhosts("metrics", node["vhosts"])
        rabbitmq_metrics.totals(text, node, vhosts.values(), is_per_object=is_per_object)
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
        starts = [prefix if FAMILIES[name].is_ours else rabbitmq_metrics.PREFIX for name in names]
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
