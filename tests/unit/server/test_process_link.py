import asyncio
import os
import socket

import pytest

from penstock.server import process_link
from penstock.server.process_link import PIECE_BYTES, Facts, ProcessLink, decode, encode


class End:
    """A link whose messages are kept."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: list[tuple[Facts, bytes, list[int]]] = []
        self.why: str | None = None
        self.changed = asyncio.Event()
        self.link = ProcessLink(sock, self._message, self._closed)

    def _message(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        self.messages.append((facts, data, descriptors))
        self.changed.set()

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
    left, right = process_link.pair()
    return End(left), End(right)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 20, PIECE_BYTES, 5 * PIECE_BYTES + 3])
def test_a_message_comes_out_as_it_went_in(size: int) -> None:
    data = bytes(i & 255 for i in range(size))
    packets = encode({"do": "x", "text": "é"}, data)
    assert all(len(packet) <= PIECE_BYTES + 1 for packet in packets)
    assert [packet[0] for packet in packets] == [1] * (len(packets) - 1) + [0]
    assert decode(b"".join(packet[1:] for packet in packets)) == ({"do": "x", "text": "é"}, data)


@pytest.mark.parametrize("whole", [b"", b"\0\0\0\5{}", b"\0\0\0\2[]", b"\0\0\0\2{,"])
def test_what_is_no_message_is_refused(whole: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which of them does not matter
        decode(whole)


def test_messages_keep_their_order_also_while_nobody_reads() -> None:
    async def scenario() -> None:
        left, right = ends()
        loop = asyncio.get_running_loop()
        loop.remove_reader(right.link._sock)
        for n in range(50):
            left.link.send({"n": n}, bytes(100_000))
        assert left.link.waiting > 0
        loop.add_reader(right.link._sock, right.link._readable)
        await right.until(50)
        assert [facts["n"] for facts, _, _ in right.messages] == list(range(50))
        assert {len(data) for _, data, _ in right.messages} == {100_000}
        assert left.link.waiting == 0
        left.link.close()
        await right.ended()

    asyncio.run(scenario())


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

    asyncio.run(scenario())


def test_the_other_side_learns_of_the_end_and_nothing_leaks() -> None:
    async def scenario() -> None:
        left, right = ends()
        client, server = socket.socketpair()
        asyncio.get_running_loop().remove_reader(right.link._sock)
        left.link.send({}, bytes(10_000_000))
        left.link.send({}, b"", server)
        left.link.close()
        assert server.fileno() == -1
        after, again = socket.socketpair()
        left.link.send({}, b"", after)  # after the end: closed, not sent
        assert after.fileno() == -1
        asyncio.get_running_loop().add_reader(right.link._sock, right.link._readable)
        await right.ended()
        assert right.messages == []
        client.close()
        again.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_understood_ends_the_link() -> None:
    async def scenario() -> None:
        ours, theirs = process_link.pair()
        end = End(ours)
        theirs.send(b"\0\0\0\0\2[]")
        await end.ended()
        assert end.why is not None
        assert "malformed message" in end.why
        theirs.close()

    asyncio.run(scenario())
