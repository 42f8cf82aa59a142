"""HttpError: an answer that is an error, and the one form that all of them have.

    {"error": "not_found", "reason": "no stream 'a' in vhost '/'"}

with the status of HTTP that fits, and sometimes members of its own behind these two (`first` and
`head` of a range that is none), or an `error` of its own where a client acts on it: `not_a_stream`.
What the broker refuses comes with AMQP's reply code, and is told with the status that means the
same to a client of HTTP.
"""

from collections.abc import Mapping
from typing import Final

from penstock.errors import CONFLICT, NO_ROUTE, PenstockError
from penstock.server.control import ControlError

NAMES: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "not_authorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    410: "gone",
    413: "too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    421: "misdirected_request",
    429: "too_many_requests",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    507: "insufficient_storage",
}
# AMQP's reply codes. 541 of an operation is a vhost that is down, or has not answered.
STATUSES: Final[Mapping[int, int]] = {
    403: 403,
    404: 404,
    405: 403,
    406: 400,
    502: 400,
    503: 400,
    506: 503,
    530: 404,
    541: 503,
}


class HttpError(PenstockError):
    """status: of HTTP, one of NAMES. reason: for people. more: further members of the answer."""

    def __init__(self, status: int, reason: str, **more: object) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.more = more
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, object]:
        """What the client is told."""
        return {"error": NAMES.get(self.status, "error"), "reason": self.reason, **self.more}


class NotAuthorizedError(HttpError):
    """401, with the header that has browsers ask for name and password."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, reason)
        self.headers = {"WWW-Authenticate": 'Basic realm="Penstock", charset="UTF-8"'}


def refused(error: ControlError) -> HttpError:
    """What the broker refused, for HTTP."""
    if error.code == NO_ROUTE:
        return HttpError(409, error.text, error="unroutable")
    if error.code == CONFLICT:
        return HttpError(409, error.text, error="batch_conflict")
    return HttpError(STATUSES.get(error.code, 500), error.text)
