"""`penstock.aio`: the library's face for asyncio, where its users look for it.

Everything is in `penstock.embedded.aio`; here are its names, so that `import penstock.aio` and
`from penstock import aio` are the same.
"""

from penstock.embedded.aio import Box, Job, Queue, open  # noqa: A004  # as gzip.open is

__all__ = ["open", "Box", "Queue", "Job"]
