import asyncio
import os
import socket

import pytest

from penstock.server import control
from penstock.server.control import (
    HEADER,
    PIECE_BYTES,
    ControlError,
    Facts,
    Pieces,
)
from penstock.server.poller import READ
from penstock.server.polling_loop import run
from penstock.server.process_link import (
    PACKETS_PER_WRITE,
    AskedCall,
    LinkEndedError,
    ProcessLink,
)
from tests.helpers.builds import pure_only


class End:
    """A link whose messages are kept."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: list[tuple[Facts, bytes, list[int]]] = []
        self.why: str | None = None
        self.changed = asyncio.Event()
        self.link = ProcessLink(sock, self._closed, self._message, self._called)
        self.asked: list[AskedCall] = []

    def _message(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        self.messages.append((facts, data, descriptors))
        self.changed.set()

    def _called(self, asked: AskedCall) -> None:
        self.asked.append(asked)
        self.changed.set()

    async def called(self) -> AskedCall:
        async with asyncio.timeout(240):
            while not self.asked:
                self.changed.clear()
                await self.changed.wait()
        return self.asked.pop(0)

    def _closed(self, why: str) -> None:
        self.why = why
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(240):
            while len(self.messages) < count:
                self.changed.clear()
                await self.changed.wait()

    async def ended(self) -> None:
        async with asyncio.timeout(240):
            while self.why is None:
                self.changed.clear()
                await self.changed.wait()


def ends() -> tuple[End, End]:
    left, right = control.pair()
    return End(left), End(right)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 20, PIECE_BYTES, 5 * PIECE_BYTES + 3])
def test_a_message_comes_out_as_it_went_in(size: int) -> None:
    data = bytes(i & 255 for i in range(size))
    packets = [b"".join(parts) for parts in control.news({"do": "x", "text": "é"}, data)]
    assert all(len(packet) <= PIECE_BYTES + 1 for packet in packets)
    assert [packet[0] for packet in packets] == [1] * (len(packets) - 1) + [0]
    pieces = Pieces()
    *rest, message = [pieces.add(packet) for packet in packets]
    assert not any(rest)
    assert message is not None
    assert (message.facts(), message.data) == ({"do": "x", "text": "é"}, data)


@pytest.mark.parametrize(
    "whole",
    [b"", b"\0" * 12, HEADER.pack(0, 0, 9) + b"{}", HEADER.pack(9, 0, 0)],
)
def test_what_is_no_message_is_refused(whole: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Pieces().add(b"\0" + whole)


@pure_only
def test_a_message_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Pieces()
    monkeypatch.setattr(control, "MESSAGE_BYTES_MAX", 2 * PIECE_BYTES)
    assert pieces.add(b"\1" + bytes(PIECE_BYTES)) is None
    with pytest.raises(ValueError, match="a message of more than 120000 bytes"):
        pieces.add(b"\1" + bytes(PIECE_BYTES))


@pytest.mark.parametrize("vhost", [None, "", "/", "a\0b", "\udcff"])
def test_a_call_is_answered_in_parts_or_refused(vhost: str | None) -> None:
    async def scenario() -> None:
        left, right = ends()
        one = asyncio.ensure_future(left.link.call("a", vhost, b"{}"))
        two = asyncio.ensure_future(left.link.call("b", vhost, bytes(200_000)))
        first, second = await right.called(), await right.called()
        assert (first.op, first.vhost, first.args) == ("a", vhost, b"{}")
        second.refuse(ControlError(404, "NOT_FOUND - é"))
        client, server = socket.socketpair()
        first.answer([b"[1,", bytes(100_000), b"]"], server, is_long=True)
        data, (descriptor,), is_long = await one
        assert is_long
        assert data == b"[1," + bytes(100_000) + b"]"
        socket.close(descriptor)
        with pytest.raises(ControlError, match="NOT_FOUND - é") as refused:
            await two
        assert refused.value.code == 404
        three = asyncio.ensure_future(right.link.call("c", None, b""))
        (await left.called()).refuse(KeyError("x"))
        with pytest.raises(ControlError, match="KeyError: 'x'"):
            await three
        late = asyncio.ensure_future(left.link.call("d", None, b""))
        await right.called()
        right.link.close()
        with pytest.raises(LinkEndedError, match="closed by the other side"):
            await late
        with pytest.raises(LinkEndedError, match="has ended"):
            await left.link.call("e", None, b"")
        client.close()

    run(scenario())


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    async def scenario() -> None:
        left, right = ends()
        with pytest.raises(TimeoutError):
            await left.link.call("a", None, b"", 0.0)
        client, server = socket.socketpair()
        (await right.called()).answer([b"1"], server)
        right.link.send({"do": "next"})
        await left.until(1)
        assert client.recv(1) == b""
        left.link.close()
        right.link.close()
        client.close()

    run(scenario())


def test_messages_keep_their_order_also_while_nobody_reads() -> None:
    async def scenario() -> None:
        left, right = ends()
        poller, descriptor = right.link._poller, right.link._descriptor
        poller.watch(descriptor, right.link, 0)
        for n in range(50):
            left.link.send({"n": n}, bytes(100_000))
        assert left.link.waiting > 0
        poller.watch(descriptor, right.link, READ)
        await right.until(50)
        assert [facts["n"] for facts, _, _ in right.messages] == list(range(50))
        assert {len(data) for _, data, _ in right.messages} == {100_000}
        assert left.link.waiting == 0
        left.link.close()
        await right.ended()

    run(scenario())


def test_a_socket_is_handed_over_with_its_message_and_closed_here() -> None:
    async def scenario() -> None:
        left, right = ends()
        client, server = socket.socketpair()
        left.link.send({"do": "connection"}, bytes(200_000), server)
        left.link.send({"do": "next"})
        await right.until(2)
        assert server.fileno() == -1
        (facts, data, descriptors), (_, _, none) = right.messages
        assert (facts, len(data), none) == ({"do": "connection"}, 200_000, [])
        with socket.socket(fileno=descriptors[0]) as handed, client:
            handed.sendall(b"hello")
            assert client.recv(5) == b"hello"
        left.link.close()
        right.link.close()

    run(scenario())


def test_the_other_side_learns_of_the_end_and_nothing_leaks() -> None:
    async def scenario() -> None:
        left, right = ends()
        client, server = socket.socketpair()
        right.link._poller.watch(right.link._descriptor, right.link, 0)
        left.link.send({}, bytes(10_000_000))
        left.link.send({}, b"", server)
        left.link.close()
        assert server.fileno() == -1
        after, again = socket.socketpair()
        left.link.send({}, b"", after)  # after the end: closed, not sent
        assert after.fileno() == -1
        right.link._poller.watch(right.link._descriptor, right.link, READ)
        await right.ended()
        assert right.messages == []
        client.close()
        again.close()

    before = len(os.listdir("/proc/self/fd"))
    run(scenario())
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_understood_ends_the_link() -> None:
    async def scenario() -> None:
        ours, theirs = control.pair()
        end = End(ours)
        theirs.send(b"\0" + HEADER.pack(0, 0, 2) + b"[]")
        await end.ended()
        assert end.why is not None
        assert "malformed message" in end.why
        theirs.close()

    run(scenario())


def test_a_pass_sends_only_so_many_packets_though_there_is_room() -> None:
    async def scenario() -> None:
        left, right = ends()
        count = 2 * PACKETS_PER_WRITE + 1
        left.link.write([packet for n in range(count) for packet in control.news({"n": n})])
        assert left.link.waiting == count - PACKETS_PER_WRITE
        await right.until(count)
        assert [facts for facts, _, _ in right.messages] == [{"n": n} for n in range(count)]
        assert left.link.waiting == 0
        left.link.close()
        await right.ended()

    run(scenario())
