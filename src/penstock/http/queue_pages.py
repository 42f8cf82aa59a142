"""Messages of a queue over HTTP, by key, header and body; nothing is taken.

The functions take an ApiRequest, as endpoint.Endpoint.does wants them. What RabbitMQ's API does
with messages (get, publish, purge) are rows of the table alone.
"""

import re
from typing import Final

from penstock.http.endpoint import ApiRequest
from penstock.http.requests import HttpError

_WHOLE: Final = ("count", "after", "skip", "truncate")
_DIGITS: Final = re.compile(r"^[0-9]{1,19}$")
_TEXTS: Final = ("key", "body", "encoding")


async def messages(asked: ApiRequest) -> object:
    """Return what `browse_messages` finds. Raises HttpError 400."""
    args: dict[str, object] = {name: asked.query[name] for name in _TEXTS if name in asked.query}
    for name in _WHOLE:
        given = asked.query.get(name)
        if given is None:
            continue
        if not _DIGITS.match(given):
            raise HttpError(400, f"{name}: given {given!r:.200}, expected a whole number")
        args[name] = int(given)
    headers: dict[str, object] = {}
    for one in asked.request.query_params.getlist("header"):
        name, colon, value = one.partition(":")
        headers[name] = value if colon else None
    return await asked.call(
        "browse_messages", asked.vhost, **args, queue=asked.names["queue"], headers=headers
    )
