"""The library for asyncio: the same names as in `penstock`, with await.

    async with penstock.aio.open("jobs.d") as box:      # or "amqp://guest:guest@localhost/"
        q = await box.queue("resize", max_attempts=5)
        await q.put(b"picture 7")
        async with q.get(timeout=5) as job:
            await work(job.body)

A box belongs to the loop that it was opened in, a transaction to the task that opened it.
`import penstock.aio` and `from penstock import aio` are the same. To type checkers `open` has the
options of a directory. What a broker needs is loaded when one is opened.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.aio.alone import open_stream, persist
from penstock.aio.box import AsyncBox as Box
from penstock.aio.box import AsyncJob as Job
from penstock.aio.box import AsyncQueue as Queue
from penstock.aio.box import AsyncStream as Stream
from penstock.aio.box import Opening

if TYPE_CHECKING:
    from penstock.aio.directory import open_directory as open  # noqa: A004  # as gzip.open is
else:
    # The annotation is quoted: `make site` would take this `open` for the one above.
    def open(path: str | Path, **options: Any) -> "Opening[Box]":  # noqa: A001
        """Open a box as penstock.open does: `box = await open(...)`, or `async with open(...) as
        box:`."""
        from penstock.amqp_url import is_url

        if is_url(path):
            from penstock.aio.remote import open_remote_async

            return open_remote_async(str(path), **options)
        from penstock.aio.directory import open_directory

        return open_directory(path, **options)


__all__ = ["open", "open_stream", "persist", "Box", "Queue", "Job", "Stream"]
