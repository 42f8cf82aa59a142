"""Connections in the state a test needs, and the bytes of a client that talks to them.

Nothing here does I/O: a session is a list of frames. `opened` is a server's Connection behind its
handshake with channel 1 open; `pair` is that and a client's Connection that talked to it.
"""

from penstock.codec import spec
from penstock.codec.frames import PROTOCOL_HEADER, content_frames, method_frame
from penstock.codec.method import Method
from penstock.protocol.connection import CLIENT, SERVER, Connection

FRAME_MAX = 131072
PERSISTENT = b"\x10\x00\x02"


def frame(channel: int, method: Method) -> bytes:
    """A method as the frame it travels in."""
    return method_frame(channel, method.encode())


def raw(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    """A frame of any type and end."""
    size = len(payload).to_bytes(4, "big")
    return bytes((kind,)) + channel.to_bytes(2, "big") + size + payload + bytes((end,))


def publish(
    channel: int = 1,
    key: str = "q",
    body: bytes = b"body",
    *,
    exchange: str = "",
    mandatory: bool = False,
    properties: bytes = PERSISTENT,
    frame_max: int = FRAME_MAX,
) -> bytes:
    """A message as a client sends it."""
    method = spec.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory)
    return frame(channel, method) + content_frames(channel, properties, body, frame_max)


def route(key: str = "q", exchange: str = "", bits: int = 0) -> bytes:
    """A publish's route as events carry it."""
    parts = [bytes((len(text),)) + text.encode() for text in (exchange, key)]
    return b"".join(parts) + bytes((bits,))


def handshake(*, frame_max: int = FRAME_MAX, channel_max: int = 2047) -> list[bytes]:
    """What a client sends until connection.open: the server's answers go between them."""
    tune_ok = spec.ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=60)
    return [
        PROTOCOL_HEADER,
        frame(0, spec.ConnectionStartOk(response=b"\0guest\0guest")),
        frame(0, tune_ok) + frame(0, spec.ConnectionOpen(virtual_host="/")),
    ]


def opened(channel: int = 1, **options: int) -> Connection:
    """A server's Connection that is open, with one open channel (none if 0)."""
    server = Connection(SERVER, **options)  # type: ignore[arg-type]
    hello, start_ok, rest = handshake(frame_max=server.frame_max, channel_max=server.channel_max)
    server.receive(hello)
    server.send(0, spec.ConnectionStart())
    server.receive(start_ok)
    tune = spec.ConnectionTune(channel_max=server.channel_max, frame_max=server.frame_max)
    server.send(0, tune)
    server.receive(rest)
    server.send(0, spec.ConnectionOpenOk())
    if channel:
        open_channel(server, channel)
    return server


def open_channel(server: Connection, channel: int) -> None:
    """channel.open and its answer."""
    server.receive(frame(channel, spec.ChannelOpen()))
    server.send(channel, spec.ChannelOpenOk())


def pair() -> tuple[Connection, Connection]:
    """(server, client), both open, channel 1 open."""
    server = Connection(SERVER)
    client = Connection(CLIENT)
    server.receive(PROTOCOL_HEADER)
    client.receive(server.send(0, spec.ConnectionStart()))
    server.receive(client.send(0, spec.ConnectionStartOk()))
    client.receive(server.send(0, spec.ConnectionTune(channel_max=2047, frame_max=FRAME_MAX)))
    server.receive(client.send(0, spec.ConnectionTuneOk(channel_max=2047, frame_max=FRAME_MAX)))
    server.receive(client.send(0, spec.ConnectionOpen()))
    client.receive(server.send(0, spec.ConnectionOpenOk()))
    server.receive(client.send(1, spec.ChannelOpen()))
    client.receive(server.send(1, spec.ChannelOpenOk()))
    return server, client
