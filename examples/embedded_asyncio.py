"""A service of asyncio that takes orders and works them off later, durably.

    python examples/embedded_asyncio.py [DIRECTORY]

A hundred clients put an order each, at the same time: they share a few syncs. Three workers consume
them beside the loop's other work. The same program with threads differs by the word await.
"""

import asyncio
import contextlib
import sys

from penstock import aio

CLIENTS = 100


async def client(q: aio.Queue, number: int) -> None:
    await q.put(b"order %d" % number)  # it is on disk now


async def worker(q: aio.Queue, done: list[bytes]) -> None:
    async with contextlib.aclosing(q.consume(timeout=0.5)) as jobs:
        async for job in jobs:
            await asyncio.sleep(0)  # here would be the work
            done.append(job.body)


async def main(directory: str) -> None:
    async with aio.open(directory) as box:
        q = await box.queue("orders")
        done: list[bytes] = []
        before = int(box.info()["syncs"])
        workers = [asyncio.create_task(worker(q, done)) for _ in range(3)]
        await asyncio.gather(*[client(q, number) for number in range(CLIENTS)])
        syncs = int(box.info()["syncs"]) - before
        await asyncio.gather(*workers)
        print(f"{len(done)} orders done; {CLIENTS} confirmed by {syncs} syncs")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "asyncio.d"))
