"""Metrics: /metrics for Prometheus.

    /metrics               totals of vhosts and of the broker, by our names and by RabbitMQ's;
                           never more for more queues
    /metrics/NAME          404 "Unknown Registry", as RabbitMQ says

At the port of HTTP a user with the tag monitoring or administrator may ask; at the port of the
option `prometheus_port` everybody, without a password, and there is nothing else there.
`?prefix=` puts another word in the place of "penstock". A vhost that does not answer leaves its
rows out; penstock_process_up says so.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.http import rabbitmq_metrics
from penstock.http.management import compressed
from penstock.http.metrics_text import (
    OPENMETRICS,
    PLAIN,
    PREFIX,
    MetricsText,
    is_openmetrics,
    penstock_text,
)
from penstock.http.node_link import NodeLink
from penstock.http.requests import HttpError
from penstock.server.control import ControlError

METRICS: Final = "/metrics"
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,19}")


def is_metrics(path: str) -> bool:
    """Return whether the path of an address is one of these."""
    return path == METRICS or path.startswith(METRICS + "/")


class MetricsPages:
    """Answers these addresses."""

    def __init__(self, node: NodeLink) -> None:
        self._node = node

    async def answer(self, request: Request, path: str) -> Response:
        """Return the answer. Raises HttpError, ControlError."""
        if request.method not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"Allow": "GET, HEAD"})
        if path.rstrip("/") != METRICS:
            return Response("Unknown Registry", 404, media_type="text/plain")
        is_open = is_openmetrics(request.headers.get("accept", ""))
        text = MetricsText(is_openmetrics=is_open, prefix=_prefix(request))
        node = await self._node.call("node_metrics")
        vhosts = await self._of_vhosts(node["vhosts"])
        rabbitmq_metrics.info(text, node["node"])
        rabbitmq_metrics.totals(text, node, vhosts.values())
        penstock_text(text, node["values"], {name: one["values"] for name, one in vhosts.items()})
        headers = {"Content-Type": OPENMETRICS if is_open else PLAIN, "Cache-Control": "no-cache"}
        data = await compressed(text.text(), request, headers)
        return Response(b"" if request.method == "HEAD" else data, headers=headers)

    async def _of_vhosts(self, names: list[str]) -> Mapping[str, Any]:
        """Return the answers of those that answer."""
        found = await asyncio.gather(
            *(self._node.call("metrics", name) for name in names), return_exceptions=True
        )
        there: dict[str, Any] = {}
        for name, one in zip(names, found, strict=True):
            if not isinstance(one, BaseException):
                there[name] = one
            elif not isinstance(one, HttpError | ControlError):
                raise one
        return there


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
