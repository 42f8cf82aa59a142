"""Messages of a queue over HTTP, by key, header and body; nothing is taken.

The functions take an ApiRequest, as endpoint.Endpoint.does wants them. What RabbitMQ's API does
with messages (get, publish, purge) are rows of the table alone.
"""

from typing import Final

from penstock.http.endpoint import ApiRequest

_WHOLE: Final = ("count", "after", "skip", "truncate", "from", "last", "since", "older")
_TEXTS: Final = ("key", "body", "encoding")


async def messages(asked: ApiRequest) -> object:
    """Return what `browse_messages` finds. Raises HttpError 400."""
    args = asked.arguments(_TEXTS, _WHOLE)
    headers: dict[str, object] = {}
    for one in asked.request.query_params.getlist("header"):
        name, colon, value = one.partition(":")
        headers[name] = value if colon else None
    return await asked.call(
        "browse_messages", asked.vhost, **args, queue=asked.names["queue"], headers=headers
    )
