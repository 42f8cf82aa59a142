"""`penstock.aio`: the library's face for asyncio, where its users look for it.

The box in a directory is in `penstock.embedded.aio`, that on a broker in
`penstock.client.remote_aio`; here is what opens either, and loads the second only if it is asked
for. A stream that stands alone is in `penstock.embedded.alone_aio`. `import penstock.aio` and
`from penstock import aio` are the same. As for `penstock.open`, to type checkers it is a Box that
is opened.
"""

from typing import TYPE_CHECKING

from penstock.embedded.aio import Box, Job, Queue
from penstock.embedded.alone_aio import open_stream, persist
from penstock.embedded.awaited_stream import AwaitedStream as Stream

if TYPE_CHECKING:
    from penstock.embedded.aio import open  # noqa: A004  # as gzip.open is
else:
    from penstock.client.opening import open_any_aio as open  # noqa: A004

__all__ = ["open", "open_stream", "persist", "Box", "Queue", "Job", "Stream"]
