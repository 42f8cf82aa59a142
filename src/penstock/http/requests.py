"""What every endpoint takes out of a request: decoded names, the user, a body of JSON.

Names in an address are percent-encoded, "/" as %2F, and may be any bytes: AMQP's names are. A body
of JSON says so in its Content-Type, which a page of another site cannot without being asked first;
it is read whole, up to a limit that the endpoint sets and within BODY_S. What is none is a 400 that
says so.

Not here: parameters behind the "?" (range_query), bodies that are data (chunk_upload).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from penstock.access.permissions import Identity
from penstock.http.basic_auth import BasicAuth
from penstock.http.http_errors import HttpError

BODY_BYTES_MAX: Final = 1 << 20
BODY_S: Final = 30.0
JSON: Final = "application/json"
USER: Final = "penstock.user"

Endpoint = Callable[[Request], Awaitable[Response]]
Routes = list[tuple[str, list[str], Endpoint]]  # address below the endpoints' own, methods, what


def name_in(request: Request, part: str) -> str:
    """A part of the address, decoded."""
    return unquote_to_bytes(request.path_params[part]).decode("utf-8", "surrogateescape")


def identity_in(request: Request, auth: BasicAuth) -> tuple[str, Identity]:
    """(vhost of the address, what the user may there). HttpError 403, 404."""
    vhost = name_in(request, "vhost")
    return vhost, auth.identity(request.scope[USER], vhost)


def readable(request: Request, auth: BasicAuth, part: str) -> tuple[str, str]:
    """(vhost, queue) of the address, the queue in its part `part`. HttpError 403, 404."""
    vhost, identity = identity_in(request, auth)
    queue = name_in(request, part)
    if not identity.may_read(queue):
        raise no_access("read", "queue", queue, vhost, identity)
    return vhost, queue


def no_access(verb: str, kind: str, name: str, vhost: str, identity: Identity) -> HttpError:
    """403, in the broker's words."""
    return HttpError(
        403, f"{verb} access to {kind} '{name or 'amq.default'}' in vhost '{vhost}' refused for "
        f"user '{identity.name}'",
    )  # fmt: skip


async def json_body(request: Request, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """HttpError 400: it is no object; 413; 415: it does not say that it is JSON; 408: it has not
    come within BODY_S."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HttpError(415, f"expected Content-Type: {JSON}, found {kind or 'none'}")
    try:
        async with asyncio.timeout(BODY_S):
            data = await _whole_body(request, bytes_max)
    except TimeoutError:
        error = HttpError(408, f"the body has not come within {BODY_S:g} s")
        error.headers["Connection"] = "close"
        raise error from None
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"expected JSON: {error}") from None
    if not isinstance(body, dict):
        raise HttpError(400, "expected a JSON object")
    return body


async def _whole_body(request: Request, bytes_max: int) -> bytes:
    """HttpError 413."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise HttpError(413, f"more than {bytes_max} bytes")
    return b"".join(pieces)
