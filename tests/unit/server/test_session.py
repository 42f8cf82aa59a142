import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.codec.frames import HEARTBEAT_FRAME, method_frame
from penstock.codec.spec import BasicPublish
from penstock.errors import StoppedError
from penstock.server.hub import FIRST_BYTES, HIGH_WATER_BYTES, Hub, Session
from penstock.server.poller import Poller
from penstock.server.polling_loop import PollingLoop, polling_loop
from penstock.server.tls_records import BAD_RECORD_MAC, TlsRecords, TrafficKey
from tests.helpers.inside import in_cycles


class FakeHandler:
    """Notes what happens; answers as it is told."""

    def __init__(self, session: Session, heartbeat_s: float) -> None:
        self.outlet = session.outlet
        self.facts = SimpleNamespace(name="a -> b", heartbeat_s=heartbeat_s)
        self.connection = SimpleNamespace(is_broken=False)
        self.is_closing = False
        self.received = b""
        self.log: list[object] = []
        self.changed = asyncio.Event()
        self.on_receive: Callable[[bytes], None] | None = None

    def note(self, what: object) -> None:
        self.log.append(what)
        self.changed.set()

    def receive(self, data: bytes) -> None:
        self.received += data
        self.changed.set()
        if self.on_receive is not None:
            self.on_receive(data)

    def writable(self, is_writable: bool) -> None:
        self.note(is_writable)

    def lost(self) -> None:
        self.note("lost")

    def shutdown(self, code: int, text: str) -> None:
        self.note((code, text))
        self.is_closing = True

    async def until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self.changed.clear()
            await self.changed.wait()


class FakeVhost:
    """Turns are counted."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(failed=None)
        self.turns = 0
        self.output_bytes = 0
        self.has_room = True
        self.on_turn: Callable[[], None] | None = None

    def turn(self) -> bool:
        self.turns += 1
        if self.on_turn is not None:
            self.on_turn()
        return False

    def completed(self) -> bool:
        return self.turn()

    def tick(self) -> float:
        return 60.0

    def add_output(self, _user: str, delta: int) -> None:
        self.output_bytes += delta

    def has_output_room(self, _user: str) -> bool:
        return self.has_room


class Rig:
    """A hub with one session, and the client's end of its socket."""

    def __init__(self) -> None:
        self.vhost = FakeVhost()
        self.failures: list[BaseException] = []
        self.hub = Hub(self.vhost, self.failures.append, poller_here())
        self.client, self.server = socket.socketpair()
        self.client.setblocking(False)
        self.server.setblocking(False)
        self.session: Session
        self.handler: FakeHandler

    async def start(
        self, leftover: bytes, heartbeat_s: float, records: TlsRecords | None = None
    ) -> None:
        self.hub.start()
        self.session = self.hub.adopt(self.server, "", records)
        self.handler = FakeHandler(self.session, heartbeat_s)
        handler: Any = self.handler
        self.session.start(handler, leftover)

    async def read(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size:
            piece = await loop.sock_recv(self.client, size - len(data))
            if not piece:
                break
            data += piece
        return data


def poller_here() -> Poller:
    """The poller of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PollingLoop)
    return loop.poller


def run_polling(main: Coroutine[Any, Any, None]) -> None:
    """Run it on a loop with a poller."""
    with asyncio.Runner(loop_factory=polling_loop) as runner:
        runner.run(main)


def with_session(
    scenario: Callable[[Rig], Awaitable[None]], leftover: bytes = b"", heartbeat_s: float = 0,
    records: TlsRecords | None = None,
) -> None:  # fmt: skip
    async def run() -> None:
        rig = Rig()
        await rig.start(leftover, heartbeat_s, records)
        try:
            async with asyncio.timeout(240):
                await scenario(rig)
        finally:
            rig.client.close()
            rig.hub.stop()
            assert not rig.hub.sessions
            assert rig.vhost.output_bytes == 0

    run_polling(run())


def test_what_was_read_before_comes_first() -> None:
    async def scenario(rig: Rig) -> None:
        rig.client.send(b"later")
        await rig.handler.until(lambda: rig.handler.received == b"first later")

    with_session(scenario, b"first ")


def test_output_leaves_at_the_end_of_the_turn() -> None:
    async def scenario(rig: Rig) -> None:
        rig.handler.on_receive = lambda _: rig.session.outlet.send(b"1")
        turned = asyncio.Event()

        def turn() -> None:
            rig.session.outlet.send(b"2")
            with pytest.raises(BlockingIOError):
                rig.client.recv(9)
            turned.set()

        rig.vhost.on_turn = turn
        rig.client.send(b"x")
        await turned.wait()
        assert rig.client.recv(9) == b"12"

    with_session(scenario)


def test_many_clients_share_a_turn() -> None:
    async def scenario(rig: Rig) -> None:
        before = rig.vhost.turns
        for _ in range(100):
            rig.hub.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rig.vhost.turns == before + 1

    with_session(scenario)


def test_one_that_does_not_read_is_not_read_and_its_output_is_counted() -> None:
    async def scenario(rig: Rig) -> None:
        outlet, handler = rig.session.outlet, rig.handler
        sent = 0
        while outlet.is_writable:
            outlet.send(bytes(100_000))
            sent += 100_000
            outlet.flush()
        assert handler.log == [False]
        assert rig.vhost.output_bytes == rig.session.waiting_bytes > HIGH_WATER_BYTES
        rig.client.send(b"more")
        for _ in range(5):
            await asyncio.sleep(0)
        assert handler.received == b""
        assert len(await rig.read(sent)) == sent
        await handler.until(lambda: handler.received == b"more")
        assert handler.log == [False, True]
        assert outlet.is_writable

    with_session(scenario)


def test_output_that_waits_counts_from_its_first_byte() -> None:
    async def scenario(rig: Rig) -> None:
        session = rig.session
        sent = 0
        while not session.waiting_bytes:
            session.write([bytes(10_000)])
            sent += 10_000
        assert 0 < session.waiting_bytes <= 10_000
        assert rig.vhost.output_bytes == session.waiting_bytes
        session.write([bytes(1000), bytes(500)])
        sent += 1500
        assert rig.vhost.output_bytes == session.waiting_bytes
        assert session.outlet.is_writable
        assert len(await rig.read(sent)) == sent
        assert rig.vhost.output_bytes == 0
        while not session.waiting_bytes:
            session.write([bytes(10_000)])
        session.abort()
        assert rig.vhost.output_bytes == 0

    with_session(scenario)


def test_what_waits_keeps_no_body() -> None:
    """A view is of a body that may be a thousand times as large."""

    async def scenario(rig: Rig) -> None:
        session = rig.session
        body = bytearray(b"x" * 100_000)
        sent = 0
        while not session.waiting_bytes:
            session.write([memoryview(body)[:50_000], memoryview(body)[50_000:]])
            sent += len(body)
        session.write([memoryview(body)])
        sent += len(body)
        body.clear()  # BufferError if there is a view of it
        assert await rig.read(sent) == b"x" * sent

    with_session(scenario)


def test_without_room_for_its_user_nothing_more_is_taken_once_something_waits() -> None:
    async def scenario(rig: Rig) -> None:
        rig.vhost.has_room = False
        session = rig.session
        sent = 0
        while not session.waiting_bytes:
            assert session.outlet.is_writable
            session.write([bytes(10_000)])
            sent += 10_000
        assert not session.outlet.is_writable
        assert rig.handler.log == [False]
        assert len(await rig.read(sent)) == sent
        await rig.handler.until(lambda: rig.handler.log == [False, True])

    with_session(scenario)


def test_the_core_has_the_reins() -> None:
    async def scenario(rig: Rig) -> None:
        rig.session.outlet.pause()
        rig.session.outlet.pause()
        rig.client.send(b"x")
        for _ in range(5):
            await asyncio.sleep(0)
        assert rig.handler.received == b""
        rig.session.outlet.resume()
        await rig.handler.until(lambda: rig.handler.received == b"x")

    with_session(scenario)


def test_a_flood_rests_beside_a_single_publish() -> None:
    publish = method_frame(1, BasicPublish(routing_key="q").encode())
    flood = bytes(FIRST_BYTES)

    async def scenario(rig: Rig) -> None:
        rig.session.received(flood, len(flood))
        assert rig.session.is_read
        # Its time is long: none of it may be over when the flood comes.
        assert not rig.hub.pace.is_quick("another", publish, rig.hub.loop.time() + 3600)
        rig.session.received(bytes(2 * len(flood)), 2 * len(flood))
        assert not rig.session.is_read
        rig.client.send(b"more")
        await rig.handler.until(lambda: rig.handler.received.endswith(b"more"))

    with_session(scenario)


def test_the_last_words_arrive_although_the_client_goes_on_sending() -> None:
    async def scenario(rig: Rig) -> None:
        rig.client.send(bytes(10_000))
        rig.session.outlet.send(b"close")
        rig.session.outlet.close(client_first=False)
        rig.client.send(bytes(10_000))
        assert await rig.read(100) == b"close"
        assert rig.handler.received == b""
        rig.client.shutdown(socket.SHUT_WR)
        await rig.handler.until(lambda: rig.handler.log == ["lost"])

    with_session(scenario)


def test_a_client_that_said_goodbye_closes_first() -> None:
    async def scenario(rig: Rig) -> None:
        rig.hub.linger_s = 3600.0
        rig.session.outlet.send(b"close-ok")
        rig.session.outlet.close(client_first=True)
        assert await rig.read(8) == b"close-ok"
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            rig.client.recv(1)
        rig.client.close()
        await rig.handler.until(lambda: rig.handler.log == ["lost"])

    with_session(scenario)


def test_one_that_does_not_close_after_its_goodbye_is_closed() -> None:
    async def scenario(rig: Rig) -> None:
        rig.hub.linger_s = 0.01
        rig.session.outlet.send(b"close-ok")
        rig.session.outlet.close(client_first=True)
        assert await rig.read(100) == b"close-ok"
        await rig.handler.until(lambda: rig.handler.log == ["lost"])

    with_session(scenario)


def test_a_session_that_has_ended_is_freed() -> None:
    """It is in no cycle: see tests/unit/broker/test_no_cycles.py."""

    async def scenario(rig: Rig) -> None:
        def begin_and_end() -> None:
            client, server = socket.socketpair()
            server.setblocking(False)
            session = rig.hub.adopt(server)
            handler: Any = FakeHandler(session, 0)
            session.start(handler, b"")
            session.outlet.send(b"x")
            session.abort()
            rig.hub.turn()
            session.outlet.send(b"x")
            session.outlet.close(client_first=False)
            client.close()

        assert in_cycles(begin_and_end) == []

    with_session(scenario)


def test_one_that_has_ended_leaves_its_descriptor_to_the_next() -> None:
    """The number is given to the next connection, maybe before the pace of the last one is over."""

    async def scenario(rig: Rig) -> None:
        number = rig.server.fileno()
        client, server = socket.socketpair()
        rig.session.pause("pace")
        rig.session.abort()
        with client:
            os.dup2(server.fileno(), number)
            server.close()
            next_session = rig.hub.adopt(socket.socket(fileno=number))
            handler: Any = FakeHandler(next_session, 0)
            next_session.start(handler, b"")
            rig.session.resume("pace")
            client.send(b"x")
            await handler.until(lambda: handler.received == b"x")
            next_session.abort()

    with_session(scenario)


def test_a_client_that_leaves_is_lost_once() -> None:
    async def scenario(rig: Rig) -> None:
        rig.client.shutdown(socket.SHUT_RDWR)
        await rig.handler.until(lambda: "lost" in rig.handler.log)
        rig.session.outlet.send(b"nobody")
        rig.session.outlet.close(client_first=False)
        rig.session.shutdown(320, "again")
        assert rig.handler.log == ["lost"]

    with_session(scenario)


def test_an_internal_error_closes_this_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        def fail(_data: bytes) -> None:
            raise KeyError("k")

        rig.handler.on_receive = fail
        rig.client.send(b"x")
        await rig.handler.until(lambda: bool(rig.handler.log))
        assert rig.handler.log == [(541, "KeyError: 'k'")]
        assert rig.failures == []

    with_session(scenario)
    assert "an internal error" in caplog.text


def test_a_failure_of_the_storage_is_the_end_of_the_vhost() -> None:
    async def scenario(rig: Rig) -> None:
        failure = StoppedError("sync failed")

        def fail(_data: bytes) -> None:
            rig.vhost.engine.failed = failure
            raise StoppedError("later")

        rig.handler.on_receive = fail
        turns = rig.vhost.turns
        rig.client.send(b"x")
        assert await rig.read(1) == b""
        assert rig.failures == [failure]
        assert rig.vhost.turns == turns
        assert rig.handler.log == []

    with_session(scenario)


def test_heartbeats_go_out_when_nothing_else_does_and_silence_ends_it() -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.read(len(HEARTBEAT_FRAME)) == HEARTBEAT_FRAME
        while await rig.read(8) == HEARTBEAT_FRAME:
            pass
        await rig.handler.until(lambda: rig.handler.log == ["lost"])

    with_session(scenario, heartbeat_s=0.05)


def test_whoever_beats_is_kept() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(12):
            assert await rig.read(8) == HEARTBEAT_FRAME
            rig.client.send(HEARTBEAT_FRAME)
        assert rig.handler.log == []

    with_session(scenario, heartbeat_s=0.05)


def test_whoever_is_not_read_may_be_silent() -> None:
    async def scenario(rig: Rig) -> None:
        rig.session.outlet.pause()
        for _ in range(12):
            assert await rig.read(8) == HEARTBEAT_FRAME
        assert rig.handler.log == []

    with_session(scenario, heartbeat_s=0.02)


# ---- TLS -----------------------------------------------------------------------------------------


def both_sides() -> tuple[TlsRecords, TlsRecords]:
    """The records of a server and of its client."""
    cipher = "TLS_AES_256_GCM_SHA384"
    one, other = (lambda: TrafficKey(cipher, bytes(48))), (lambda: TrafficKey(cipher, bytes(47)))
    return TlsRecords(cipher, one(), other()), TlsRecords(cipher, other(), one())


async def plain_of(rig: Rig, client: TlsRecords, size: int) -> bytes:
    """Read so many plain bytes, or up to close_notify."""
    loop = asyncio.get_running_loop()
    plain = b""
    while len(plain) < size and not client.is_ended:
        data = await loop.sock_recv(rig.client, 65536)
        assert data, "the end without close_notify"
        plain += client.opened(data)
    return plain


def test_records_are_opened_and_sealed() -> None:
    records, client = both_sides()

    async def scenario(rig: Rig) -> None:
        rig.handler.on_receive = lambda data: rig.session.outlet.send(data.upper())
        first, second = client.sealed([b"first "]), client.sealed([b"second"])
        rig.client.send(first[0] + second[0][:7])
        await rig.handler.until(lambda: rig.handler.received == b"first ")
        rig.client.send(second[0][7:])
        assert await plain_of(rig, client, 12) == b"FIRST SECOND"

    with_session(scenario, records=records)


def test_what_waits_for_a_slow_client_of_tls_is_sealed_once() -> None:
    records, client = both_sides()

    async def scenario(rig: Rig) -> None:
        data = bytes(range(256)) * 20_000
        rig.session.outlet.send(data)
        rig.session.outlet.send(b"more")
        rig.hub.wake()
        await rig.handler.until(lambda: rig.handler.log == [False])
        assert rig.session.waiting_bytes > HIGH_WATER_BYTES
        assert await plain_of(rig, client, len(data) + 4) == data + b"more"

    with_session(scenario, records=records)


def test_a_client_of_tls_asks_for_new_keys() -> None:
    records, client = both_sides()

    async def scenario(rig: Rig) -> None:
        rig.handler.on_receive = lambda data: rig.session.outlet.send(data)
        rig.client.send(client.key_update(asks=True) + client.sealed([b"text"])[0])
        assert await plain_of(rig, client, 4) == b"text"
        assert await plain_of(rig, client, 0) == b""

    with_session(scenario, records=records)


def test_close_notify_ends_the_session_as_the_end_of_file_does() -> None:
    records, client = both_sides()

    async def scenario(rig: Rig) -> None:
        rig.client.send(client.sealed([b"last"])[0] + client.goodbye())
        await rig.handler.until(lambda: rig.handler.log == ["lost"])
        assert rig.handler.received == b"last"
        assert await plain_of(rig, client, 1) == b""

    with_session(scenario, records=records)


def test_the_last_words_are_followed_by_close_notify() -> None:
    records, client = both_sides()

    async def scenario(rig: Rig) -> None:
        rig.session.outlet.send(b"close")
        rig.session.outlet.close(client_first=False)
        assert await plain_of(rig, client, 100) == b"close"

    with_session(scenario, records=records)


def test_a_wrong_record_is_answered_with_its_alert() -> None:
    records, _client = both_sides()

    async def scenario(rig: Rig) -> None:
        rig.client.send(b"\x17\3\3\0\x20" + bytes(32))
        await rig.handler.until(lambda: rig.handler.log == ["lost"])
        assert rig.handler.received == b""
        alert = await rig.read(100)
        assert alert == both_sides()[0].goodbye(BAD_RECORD_MAC)

    with_session(scenario, records=records)
