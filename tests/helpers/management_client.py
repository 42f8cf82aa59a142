"""ManagementClient: requests to RabbitMQ's HTTP API, as clients send them."""

import contextlib
import http.client
import json
from dataclasses import dataclass
from typing import Any

from tests.helpers.asgi_client import basic
from tests.helpers.live_broker import LiveBroker


@dataclass(frozen=True, slots=True)
class Got:
    """One answer. body: JSON, None if it is empty."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> Any:
        return self.body["reason"]


class ManagementClient:
    """Asks as one user. Each request has a connection of its own."""

    def __init__(self, broker: LiveBroker, user: str = "guest", password: str = "guest") -> None:
        self.broker = broker
        self._login = basic(user, password)

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Got:
        """The answer. path: below /api/. body: bytes, or what is sent as JSON, without a type."""
        assert self.broker.http_port is not None
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with contextlib.closing(
            http.client.HTTPConnection(self.broker.host, self.broker.http_port, timeout=120)
        ) as connection:
            known = {"Authorization": self._login, **(headers or {})}
            connection.request(method, f"/api/{path}", data, known)
            reply = connection.getresponse()
            found = reply.read()
            return Got(
                reply.status, json.loads(found) if found else None,
                {name.lower(): value for name, value in reply.getheaders()},
            )  # fmt: skip

    def get(self, path: str) -> Any:
        """The body of a 200."""
        got = self.ask("GET", path)
        assert got.status == 200, got
        return got.body
