"""Admission: which requests are answered at all, before anybody asks who sent them.

    400   a request with both Content-Length and Transfer-Encoding: a proxy in front may have taken
          another end for its body than we do, and what follows would be somebody else's request
    421   a Host that is none of ours: a page in a browser reached us under a name of its own choice
    403   an Origin that is none of ours, for anything but reading: another site's page asks, with
          the name and password that a browser has remembered
    415   JSON that does not say that it is (requests.json_body)

Our own hosts are localhost and names below it, numeric addresses, this machine's name, the host
that the broker listens at, and those of the option `http_hosts`; "*" there is any. `/health` is
answered whatever its Host is, for it tells nothing.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers

from penstock.http.http_errors import HttpError

ANY: Final = "*"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Admission:
    """hosts: names that are ours, besides those that always are."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts if host)

    def check(self, method: str, headers: Headers) -> None:
        """HttpError: the request is not answered."""
        host = headers.get("host")
        if host is not None and not self.is_ours(host):
            raise HttpError(
                421, f"host {host!r} is not known here: expected localhost, an address or the "
                "machine's name, or set the option http_hosts",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and method not in SAFE_METHODS and not self._is_our_origin(origin):
            raise HttpError(403, f"a page of {origin!r} may not change anything here")

    def is_ours(self, host: str) -> bool:
        """Is it a name of ours? host: as in the header, with or without a port."""
        if ANY in self._hosts:
            return True
        name = host_name(host)
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True

    def _is_our_origin(self, origin: str) -> bool:
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and self.is_ours(host)


def check_framing(headers: Headers) -> None:
    """HttpError 400: where the body ends can be taken in two ways."""
    if "content-length" in headers and "transfer-encoding" in headers:
        error = HttpError(400, "expected Content-Length or Transfer-Encoding, found both")
        error.headers["Connection"] = "close"
        raise error


def host_name(host: str) -> str:
    """The name or address in a Host header: in lower case, without port, brackets and last dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.lower().rstrip(".")
