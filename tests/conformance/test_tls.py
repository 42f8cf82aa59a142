"""aio-pika over TLS, with a client's certificate. For pika see tests/server/test_tls.py, for Node,
Go and Java tls_clients."""

import asyncio

import aio_pika
import pytest

from tests.helpers.live_broker import LiveBroker
from tests.helpers.tls_files import TlsFiles

pytestmark = [pytest.mark.real, pytest.mark.penstock_only]


def test_aio_pika(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    async def use() -> list[bytes]:
        url = f"amqps://guest:guest@localhost:{tls_broker.tls_port}/"
        async with await aio_pika.connect_robust(url, ssl_context=tls_files.client("client")) as c:
            channel = await c.channel()
            queue = await channel.declare_queue("aio-pika", durable=True)
            for body in (b"x" * 1_000_000, b"", b"last"):
                await channel.default_exchange.publish(aio_pika.Message(body), queue.name)
            found = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        found.append(message.body)
                    if message.body == b"last":
                        return found
        return []

    assert asyncio.run(use()) == [b"x" * 1_000_000, b"", b"last"]
