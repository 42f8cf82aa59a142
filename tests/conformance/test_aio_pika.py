"""aio-pika: robust connections over a cut line, RPC, exchanges bound to exchanges, many confirms.

Each test runs a loop of its own. The line is cut by a proxy in the same loop, so that the broker
and the client both see the connection break; the robust client must find all it had declared.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest
from aio_pika.patterns import RPC, Master

from tests.helpers.live_broker import Broker

pytestmark = [
    pytest.mark.real,
    # What a client library leaves behind when its loop ends is not ours to mend.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LIMIT_S = 60


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(limited())


class Proxy:
    """Passes bytes on to the broker, until it is told to cut all lines."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server | None = None

    async def __aenter__(self) -> "Proxy":
        self.server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.server is not None
        self.server.close()
        self.cut()

    @property
    def url(self) -> str:
        assert self.server is not None
        port = self.server.sockets[0].getsockname()[1]
        return f"amqp://{self.broker.user}:{self.broker.password}@127.0.0.1:{port}/"

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.broker.host, self.broker.port)
        self.writers += [writer, back]
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


def test_a_robust_client_finds_everything_after_the_line_was_cut(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with Proxy(broker) as proxy:
            connection = await aio_pika.connect_robust(proxy.url, reconnect_interval=0.1)
            channel = await connection.channel()
            await channel.set_qos(10)
            exchange = await channel.declare_exchange(name, "topic", auto_delete=True)
            exclusive = await channel.declare_queue(f"{name}.mine", exclusive=True)
            durable = await channel.declare_queue(name, durable=True)
            await exclusive.bind(exchange, "a.*")
            taken: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: Any) -> None:
                await message.ack()
                taken.put_nowait(message.body)

            await exclusive.consume(take)
            await durable.consume(take)
            for round_number in range(3):
                again = asyncio.Event()
                connection.reconnect_callbacks.add(lambda *_, e=again: e.set())
                mine, kept = (b"%s %d" % (word, round_number) for word in (b"mine", b"kept"))
                await exchange.publish(aio_pika.Message(mine), "a.b")
                await channel.default_exchange.publish(aio_pika.Message(kept), name)
                came: set[bytes] = set()
                while not came >= {mine, kept}:  # an ack that the cut swallowed brings one again
                    came.add(await taken.get())
                if round_number < 2:
                    proxy.cut()
                    await again.wait()
                    await connection.ready()
            await durable.delete(if_unused=False, if_empty=False)
            await connection.close()

    run(work())


def test_remote_procedure_calls(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with await aio_pika.connect_robust(broker.url) as connection:
            rpc = await RPC.create(await connection.channel())

            async def multiply(*, x: int, y: int) -> int:
                if y < 0:
                    raise ValueError("negative")
                return x * y

            await rpc.register(name, multiply, auto_delete=True)
            results = await asyncio.gather(
                *(rpc.call(name, kwargs={"x": i, "y": 2}) for i in range(100))
            )
            assert results == [2 * i for i in range(100)]
            with pytest.raises(ValueError, match="negative"):
                await rpc.call(name, kwargs={"x": 1, "y": -1})
            with pytest.raises(aio_pika.exceptions.MessageProcessError):
                await rpc.call(f"{name}.unknown", kwargs={})

    run(work())


def test_master_and_worker(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with await aio_pika.connect_robust(broker.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(5)
            master = Master(channel)
            done: list[int] = []
            finished = asyncio.Event()

            async def task(*, number: int) -> None:
                done.append(number)
                if len(done) == 200:
                    finished.set()

            worker = await master.create_worker(name, task, auto_delete=True)
            for number in range(200):
                await master.create_task(name, kwargs={"number": number})
            await finished.wait()
            assert sorted(done) == list(range(200))
            await worker.close()

    run(work())


def test_confirms_of_many_publishes_at_once(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, durable=True)
            publish: Callable[..., Awaitable[Any]] = channel.default_exchange.publish
            message = aio_pika.Message(b"x" * 300, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await asyncio.gather(*(publish(message, name) for _ in range(2000)))
            queue = await channel.declare_queue(name, durable=True)
            assert queue.declaration_result.message_count == 2000
            await queue.delete(if_empty=False)

    run(work())


def test_exchanges_bound_to_exchanges(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            exchanges = [
                await channel.declare_exchange(f"{name}.{n}", "fanout", auto_delete=True)
                for n in range(5)
            ]
            for source, destination in itertools.pairwise(exchanges):
                await destination.bind(source)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(exchanges[-1])
            await exchanges[0].publish(aio_pika.Message(b"through five"), "k")
            message = await queue.get(timeout=LIMIT_S)
            assert message.body == b"through five"
            await message.ack()
            # An exchange that deletes itself goes with its last binding, and that one's source too.
            await exchanges[2].unbind(exchanges[1])
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.declare_exchange(f"{name}.0", passive=True)

    run(work())


def test_a_transaction_as_a_context(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name, exclusive=True)
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"kept"), name)
            with contextlib.suppress(ZeroDivisionError):
                async with channel.transaction():
                    await channel.default_exchange.publish(aio_pika.Message(b"lost"), name)
                    raise ZeroDivisionError
            assert (await queue.get(timeout=LIMIT_S)).body == b"kept"
            assert await queue.get(fail=False) is None

    run(work())
