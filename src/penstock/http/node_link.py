"""NodeLink: what the HTTP process knows of the broker, and how it asks.

Over the link to the supervisor come the users, anew after each change, and the answers to what is
asked here: any operation that the control socket knows (server.control). So this process opens no
database and holds no lock, and a vhost that is started again in between is waited for by the
supervisor.

Once the link has ended nothing can be asked any more, and whoever waits is told.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.access.known_users import KnownUsers
from penstock.errors import INTERNAL_ERROR
from penstock.http.http_errors import HttpError
from penstock.server.control import ControlError, from_json, to_json
from penstock.server.process_link import Facts

CALL_S: Final = 60.0


class NodeLink:
    """users: as the broker has them. send(facts): one message over the link."""

    def __init__(self, users: KnownUsers, send: Callable[[Facts], None]) -> None:
        self.users = users
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._calls_n = 0

    async def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """The result of an operation that may be asked for twice: one that fails because its vhost
        ended meanwhile is asked again, of the next life. ControlError: it is refused. HttpError
        503: no answer."""
        try:
            return await self._call(op, vhost, args)
        except ControlError as error:
            if error.code != INTERNAL_ERROR:
                raise
        return await self._call(op, vhost, args)

    async def call_once(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """The same of an operation that does more when it is asked for twice."""
        return await self._call(op, vhost, args)

    async def _call(self, op: str, vhost: str | None, args: dict[str, object]) -> object:
        self._calls_n += 1
        number = self._calls_n
        answer = self._calls[number] = self._loop.create_future()
        self._send({"do": "call", "n": number, "op": op, "vhost": vhost, "args": to_json(args)})
        try:
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            raise HttpError(503, "the broker has not answered") from None
        finally:
            self._calls.pop(number, None)

    def result(self, facts: dict[str, Any]) -> None:
        """An answer has come."""
        answer = self._calls.get(facts["id"])
        if answer is None or answer.done():
            return
        fault = facts.get("error")
        if fault is not None:
            answer.set_exception(ControlError(fault["code"], fault["text"]))
        else:
            answer.set_result(from_json(facts.get("result")))

    def gone(self) -> None:
        """The supervisor has."""
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(HttpError(503, "the broker stops"))
