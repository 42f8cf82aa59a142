"""What a user of Spark sees of an error: its reason first, in terms of the option that is wrong.

**First.** A Python source fails in a worker process, and Spark shows the text of its traceback,
where the reason stands last, below up to forty lines of frames. `reason_first` is put around each
method that Spark calls, and makes the reason of a PenstockError the first line:

    simplified tracebacks, Spark's default   the frames are left out, by the switch that Spark's
                                             hideTraceback.enabled sets in a worker. A worker ends
                                             after an error, so no other error is concerned
    the process at a stream's driver, and    the reason is raised as the cause of the error, which
    simplifiedTraceback.enabled=false        Python prints above the frames

Other errors are bugs, of Penstock or of a user's program, and keep their tracebacks.

**In terms of the option.** `explained` makes an OptionError (option, given, expected) of what a
broker, or another server at its address, answers to a query that starts.
"""

import functools
import http.client
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from penstock.errors import OptionError, PenstockError
from penstock.spark.http_link import NOT_FOUND, LinkError, RefusedError, is_amqp_open
from penstock.spark.options import HTTP_PORT

P = ParamSpec("P")
T = TypeVar("T")

# Variables that Spark sets in its workers.
SIMPLIFIED: Final = "SPARK_SIMPLIFIED_TRACEBACK"
HIDDEN: Final = "SPARK_HIDE_TRACEBACK"
NOT_AUTHORIZED: Final = 401
FORBIDDEN: Final = 403
BOTH: Final = (
    f"url=amqp://user:password@host:5672/vhost, and httpUrl=http://host:{HTTP_PORT} with the "
    "broker's HTTP port; or url=http://user:password@host:port/vhost with that port"
)


def reason_first(call: Callable[P, T]) -> Callable[P, T]:
    """Return the same method, whose PenstockErrors Spark shows with their reason first."""

    @functools.wraps(call)
    def shown(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except PenstockError as error:
            raise error from _hidden(error)

    return shown


def reasons_first(items: Iterator[T]) -> Iterator[T]:
    """Return the same items; the same for an error that ends them."""
    try:
        yield from items
    except PenstockError as error:
        raise error from _hidden(error)


def _hidden(error: PenstockError) -> PenstockError:
    """Return the error without its frames, and make Spark leave them out if it simplifies them."""
    if os.environ.get(SIMPLIFIED):
        os.environ[HIDDEN] = "1"
    reason: PenstockError = type(error).__new__(type(error))  # constructors take other arguments
    reason.args = error.args
    for note in getattr(error, "__notes__", ()):
        reason.add_note(note)
    return reason


# ---- options -------------------------------------------------------------------------------------


def explained(
    error: LinkError | RefusedError, option: str, given: object, needed: str
) -> PenstockError:
    """Return an OptionError for an error at the start of a query, or the error itself if no option
    is wrong. option, given: what names the streams or the target. needed: the right to it."""
    if isinstance(error, RefusedError):
        return _refusal(error, option, given, needed)
    place, cause = error.place, error.__cause__
    if isinstance(cause, http.client.BadStatusLine) and error.is_lasting:
        what = "AMQP" if error.reason.startswith("AMQP") else "no HTTP"
        return OptionError(place.option, place.http_url, f"{BOTH}: this port speaks {what}")
    if isinstance(cause, ssl.SSLError):
        expected = (
            f"a port with TLS and a trusted certificate, or http:// without TLS: {error.reason}"
        )
        return OptionError(place.option, place.http_url, expected)
    if isinstance(cause, socket.gaierror):
        return OptionError(place.option, place.http_url, f"the name of a host: {cause}")
    if place.amqp is not None and is_amqp_open(place):
        host, port = place.amqp
        expected = (
            f"httpUrl=http://{host}:port with the broker's HTTP port: AMQP answers at port {port} "
            f"of {host}, but not HTTP at {place.http_url} ({error.reason})"
        )
        return OptionError("httpUrl", None if place.option == "url" else place.http_url, expected)
    return error


def _refusal(error: RefusedError, option: str, given: object, needed: str) -> PenstockError:
    place = error.place
    reason = error.answer.get("reason")
    if reason is None or "error" not in error.answer:
        expected = f"the HTTP port of a Penstock broker: another server answered {error.status}"
        return OptionError(place.option, place.http_url, expected)
    if error.status == NOT_AUTHORIZED:
        expected = f"name and password of a user of {place.http_url}: {reason}"
        return OptionError("url", f"user {place.user!r}", expected)
    if error.status == FORBIDDEN:
        expected = f"{needed} for user {place.user!r} at {place.http_url}: {reason}"
        return OptionError(option, given, expected)
    if error.status == NOT_FOUND and str(reason).startswith("no vhost"):
        return OptionError("url", f"vhost {place.vhost!r}", f"a vhost of {place}: {reason}")
    if error.status == NOT_FOUND:
        return OptionError(option, given, f"what exists at {place}: {reason}")
    return error
