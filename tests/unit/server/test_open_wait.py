"""How long connection.open waits for a vhost that starts, on a clock that a test moves."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config import Config
from penstock.errors import INTERNAL_ERROR, AMQPConnectionError
from penstock.server.supervisor import Supervisor
from penstock.server.watched_vhost import VhostDown


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            assert timeout is not None, "nothing would ever happen again"
            self.now_s += max(timeout, 0.0)
            return select(0)

        selector.select = jump

    def time(self) -> float:
        return self.now_s


class StartingVhost:
    """A vhost that is ready after some seconds, or is down then."""

    def __init__(self, ready_s: float, *, is_down: bool = False) -> None:
        self.ready_s = ready_s
        self.is_down = is_down
        self.name = "v"
        self.handed_over_s: list[float] = []

    def check_refused(self, user: str) -> None:
        """Nobody is refused."""

    async def ready(self) -> None:
        await asyncio.sleep(self.ready_s)
        if self.is_down:
            raise VhostDown("v", "it has failed")

    def reason(self) -> str:
        return "it waits for space on the disk"

    def hand_over(self, *_: object) -> None:
        self.handed_over_s.append(asyncio.get_running_loop().time())


def opened_at(vhost: StartingVhost, settings: Config) -> float:
    """Seconds until the client is answered. AMQPConnectionError: it is refused."""
    node: Any = SimpleNamespace(
        settings=settings, is_known=lambda name: True, vhost=lambda name: vhost,
        _check_connections=lambda vhost, user: None, _are_events_wanted=False,
    )  # fmt: skip
    node._hand_over = partial(Supervisor._hand_over, node)

    async def ask(_vhosts: object) -> None:
        pass

    account = SimpleNamespace(identity=lambda vhost: object(), ask=ask)
    login: Any = SimpleNamespace(leftover=b"", sock=None, account=account, records=None)
    facts: Any = SimpleNamespace(vhost="v", user="ann", name="c1")
    loop = JumpingLoop()
    try:
        loop.run_until_complete(Supervisor._admit(node, login, facts))
    finally:
        vhost.ready_s = loop.now_s
        loop.close()
    assert vhost.handed_over_s == [loop.now_s]
    return loop.now_s


@pytest.mark.parametrize("ready_s", [0.0, 5.0, 29.9])
def test_a_client_waits_for_its_vhost(ready_s: float) -> None:
    assert opened_at(StartingVhost(ready_s), Config()) == pytest.approx(ready_s)


@pytest.mark.parametrize(("open_s", "ready_s"), [(30.0, 30.1), (30.0, 1e6), (2.0, 2.1)])
def test_after_open_s_it_is_refused_with_the_reason(open_s: float, ready_s: float) -> None:
    settings = Config() if open_s == 30.0 else Config(open_s=open_s)
    vhost = StartingVhost(ready_s)
    with pytest.raises(AMQPConnectionError) as caught:
        opened_at(vhost, settings)
    assert caught.value.code == INTERNAL_ERROR
    assert "vhost 'v' has not started yet: it waits for space on the disk" in str(caught.value)
    assert vhost.ready_s == pytest.approx(open_s)
    assert vhost.handed_over_s == []


def test_a_vhost_that_is_down_is_said_at_once() -> None:
    vhost = StartingVhost(3.0, is_down=True)
    with pytest.raises(AMQPConnectionError, match="it has failed"):
        opened_at(vhost, Config())
    assert vhost.ready_s == pytest.approx(3.0)
