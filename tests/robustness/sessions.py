"""Sessions of real clients as bytes: how they are recorded, and how they are spoiled.

`python -m tests.robustness.sessions` records, against a broker of its own, what pika, py-amqp and
aio-pika send from the protocol header to connection.close, one file each in corpus/. Names of
queues are fixed and delivery tags follow from the order, so that the bytes can be sent again
blindly, at once, and mean the same.

``spoil`` makes a broken session of one: bits flipped, bytes cut, lengths changed, frames repeated,
swapped and dropped. The same seed gives the same bytes. A session that fails a test belongs in
corpus/ as a file; all files there are replayed as they are, too.
"""

import asyncio
import contextlib
import random
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import aio_pika
import amqp
import pika

from tests.helpers.live_broker import Broker, LiveBroker

CORPUS = Path(__file__).parent / "corpus"
QUEUE = "fuzz.queue"
EXCHANGE = "fuzz.exchange"


def frames_of(session: bytes) -> list[bytes]:
    """The protocol header, then the frames; what is no whole frame is the last piece."""
    pieces = [session[:8]]
    at = 8
    while len(session) - at >= 8:
        end = at + 8 + int.from_bytes(session[at + 3 : at + 7])
        if end > len(session):
            break
        pieces.append(session[at:end])
        at = end
    return [*pieces, session[at:]] if at < len(session) else pieces


def spoil(session: bytes, rng: random.Random) -> bytes:
    """A session with one to four mistakes, most of them behind the handshake."""
    for _ in range(rng.randint(1, 4)):
        frames = frames_of(session)
        first = 4 if len(frames) > 6 and rng.random() < 0.9 else 0
        at = rng.randrange(first, len(frames))
        mistake = rng.choice(MISTAKES)
        frames[at] = mistake(frames[at], rng)
        if rng.random() < 0.1:
            other = rng.randrange(first, len(frames))
            frames[at], frames[other] = frames[other], frames[at]
        session = b"".join(frames)
    return session


def _flip(frame: bytes, rng: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _flip_inside(frame: bytes, rng: random.Random) -> bytes:
    """The frame stays a frame; what it says is changed."""
    if len(frame) < 9:
        return frame
    data = bytearray(frame)
    data[rng.randrange(7, len(data) - 1)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(data)


def _cut_inside(frame: bytes, rng: random.Random) -> bytes:
    """A shorter payload, with its length put right."""
    payload = frame[7:-1][: rng.randrange(max(1, len(frame) - 8))]
    return frame[:3] + len(payload).to_bytes(4) + payload + frame[-1:]


def _grow_inside(frame: bytes, rng: random.Random) -> bytes:
    payload = bytearray(frame[7:-1])
    at = rng.randrange(len(payload) + 1)
    payload[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
    return frame[:3] + len(payload).to_bytes(4) + bytes(payload) + frame[-1:]


def _cut(frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(len(frame))]


def _repeat(frame: bytes, rng: random.Random) -> bytes:
    return frame * rng.choice((2, 3, 50))


def _drop(_frame: bytes, _rng: random.Random) -> bytes:
    return b""


def _insert(frame: bytes, rng: random.Random) -> bytes:
    return frame + rng.randbytes(rng.choice((1, 8, 100)))


def _lengthen(frame: bytes, rng: random.Random) -> bytes:
    """Another length than there is."""
    size = rng.choice((0, 1, 131_064, 131_065, 1 << 20, (1 << 32) - 1, rng.randrange(1000)))
    return frame[:3] + size.to_bytes(4) + frame[7:]


def _other_channel(frame: bytes, rng: random.Random) -> bytes:
    return frame[:1] + rng.choice((0, 2, 2047, 2048, 65_535)).to_bytes(2) + frame[3:]


def _other_method(frame: bytes, rng: random.Random) -> bytes:
    class_id = rng.choice((10, 20, 40, 50, 60, 85, 90, 9000, 30, 0))
    method_id = rng.choice((10, 11, 20, 21, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120))
    return frame[:7] + class_id.to_bytes(2) + method_id.to_bytes(2) + frame[11:]


MISTAKES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _flip_inside, _flip_inside, _flip_inside, _cut_inside, _grow_inside, _cut, _repeat,
    _drop, _insert, _lengthen, _other_channel, _other_method,
)  # fmt: skip


# --- recording ---


def record(broker: Broker, session: Callable[[Broker], None]) -> bytes:
    """What the client of `session` sends, by way of a proxy."""
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client, socket.create_connection((broker.host, broker.port)) as there:
                back = threading.Thread(target=copy, args=(there, client, None), daemon=True)
                back.start()
                copy(client, there, sent)
                back.join()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        session(Broker("127.0.0.1", server.getsockname()[1]))
        serving.join()
    return b"".join(sent)


def copy(source: socket.socket, sink: socket.socket, sent: list[bytes] | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            if sent is not None:
                sent.append(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def pika_session(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "topic", auto_delete=True)
    channel.queue_declare(
        QUEUE, exclusive=True,
        arguments={"x-max-priority": 3, "x-message-ttl": 60_000, "x-dead-letter-exchange": ""},
    )  # fmt: skip
    channel.queue_bind(QUEUE, EXCHANGE, "a.#")
    channel.confirm_delivery()
    for i in range(3):
        properties = pika.BasicProperties(
            headers={"n": i, "deep": {"list": [1, "two", True]}}, priority=i, expiration="50000",
            content_type="text/plain", message_id="m", timestamp=1_700_000_000,
        )  # fmt: skip
        channel.basic_publish(EXCHANGE, "a.b", b"body" * 20, properties, mandatory=True)
    for tag in (1, 2):
        channel.basic_get(QUEUE)
        channel.basic_nack(tag, requeue=tag == 1)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(QUEUE, lambda *_: None, consumer_tag="tag")
    channel.basic_cancel("tag")
    channel.queue_purge(QUEUE)
    other = connection.channel()
    other.tx_select()
    other.basic_publish("", QUEUE, b"x" * 5000)
    other.tx_commit()
    other.tx_rollback()
    channel.queue_unbind(QUEUE, EXCHANGE, "a.#")
    channel.queue_delete(QUEUE)
    connection.close()


def py_amqp_session(broker: Broker) -> None:
    with amqp.Connection(f"{broker.host}:{broker.port}", heartbeat=0) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, exclusive=True, arguments={"x-expires": 60_000})
        channel.exchange_declare(EXCHANGE, "headers", auto_delete=True)
        channel.queue_bind(QUEUE, EXCHANGE, arguments={"x-match": "any", "kind": "a"})
        channel.basic_publish(
            amqp.Message("text", application_headers={"kind": "a"}, delivery_mode=2), EXCHANGE
        )
        channel.basic_get(QUEUE)
        channel.basic_recover(requeue=True)
        channel.basic_get(QUEUE)
        channel.basic_ack(2)
        channel.basic_publish(amqp.Message(b"\0" * 200_000), routing_key=QUEUE)
        channel.queue_delete(QUEUE)
        channel.close()


def aio_pika_session(broker: Broker) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker.url + "?heartbeat=0") as connection:
            channel = await connection.channel()
            exchanges = [
                await channel.declare_exchange(f"{EXCHANGE}.{n}", "fanout", auto_delete=True)
                for n in range(2)
            ]
            await exchanges[1].bind(exchanges[0])
            queue = await channel.declare_queue(QUEUE, exclusive=True)
            await queue.bind(exchanges[1])
            for number in range(3):
                await exchanges[0].publish(aio_pika.Message(b"%d" % number), "")
            await queue.delete(if_empty=False)

    asyncio.run(work())


def main() -> None:
    """Records all sessions anew."""
    with tempfile.TemporaryDirectory() as directory, LiveBroker(Path(directory) / "data") as broker:
        for session in (pika_session, py_amqp_session, aio_pika_session):
            data = record(broker, session)
            path = CORPUS / f"{session.__name__.removesuffix('_session')}.bin"
            path.write_bytes(data)
            print(f"{path}: {len(data)} bytes, {len(frames_of(data))} frames")


if __name__ == "__main__":
    main()
