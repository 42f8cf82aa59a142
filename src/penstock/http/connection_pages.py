"""Closing clients' connections over HTTP.

The functions take an ApiRequest, as endpoint.Endpoint.does wants them. A connection is in one of
the vhosts, and the address does not say in which, so each that the user sees is asked.
"""

from typing import Final

from penstock.errors import NOT_FOUND
from penstock.http.endpoint import ApiRequest
from penstock.http.requests import HttpError
from penstock.server.control import ControlError

REASON: Final = "x-reason"
REASON_DEFAULT: Final = "Closed via management plugin"  # RabbitMQ's


async def close(asked: ApiRequest) -> None:
    """Close the connection of this name or its channel of this number, or those of this user.
    Raises HttpError 404 if there is no connection of this name that the user sees."""
    reason = asked.request.headers.get(REASON, REASON_DEFAULT)
    name, user = (asked.names.get(part, "") for part in ("connection", "user"))
    channel = asked.names.get("number")
    given = {} if channel is None else {"channel": int(channel) if channel.isdecimal() else channel}
    for vhost in await asked.started(asked.vhosts()):
        try:
            await asked.call_once(
                "close_connections", vhost, name=name, user=user, reason=reason, **given
            )
        except ControlError as error:
            if error.code != NOT_FOUND:
                raise
        else:
            if name:
                return
    if name:
        part = "" if channel is None else f"channel {channel} of "
        raise HttpError(404, f"no {part}connection '{name}'")
