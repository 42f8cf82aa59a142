"""StagedRig: an OperationRig with what a sink would have staged in its vhost, and commits of it.

`stage` writes sealed pages as the HTTP process does, from (routing key, body) or whole headers, and
gives their tokens, as JSON has them; `commit` asks for commit_batch of them.
"""

import random
from typing import Any

from penstock.access.permissions import Identity
from penstock.codec.properties import BasicProperties
from penstock.queues.amqp_headers import FORMAT_BYTE, short_string
from penstock.storage.files.data_directory import sync_dir
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.pages.page import PAGE_HEADER_BYTES, page_seed, scan_frames
from penstock.storage.pages.staging import (
    StagedPageWriter,
    query_directory,
    staged_checksum,
    staging_path,
)
from tests.helpers.inside import encode_frame
from tests.helpers.operation_rig import Asked, OperationRig

QUERY = "query-1"
Token = dict[str, object]


def header(key: str, exchange: str = "", **properties: Any) -> bytes:
    """A message's stored header; persistent unless it is said otherwise."""
    given = {"delivery_mode": 2, **properties}
    address = short_string(exchange.encode()) + short_string(key.encode())
    return FORMAT_BYTE + address + BasicProperties(**given).encode()


class Stager:
    """Writes staged pages into the vhost directory `path`."""

    def __init__(self, fs: FileSystem, path: str, *, seed: int = 1) -> None:
        self.fs = fs
        self.path = path
        self._rng = random.Random(seed)

    def stage(
        self, batch: int, *pages: list[tuple[bytes, bytes]], query: str = QUERY,
        partition: int = 0, time_us: int = 1, name: str = "",
    ) -> list[Token]:  # fmt: skip
        """A page for each list of (header, body); their tokens. name: the end of the attempt's."""
        attempt = f"0-{self._rng.randbytes(4).hex()}{name}"
        directory = query_directory(self.fs, staging_path(self.path), query)
        tokens: list[Token] = []
        for k, frames in enumerate(pages):
            id = self._rng.getrandbits(64)
            stem = f"{batch}.{partition}.{attempt}.{k}"
            writer = StagedPageWriter(self.fs, directory, stem, id, time_us)
            seed = page_seed(id)
            data = b"".join(
                [encode_frame(seed, i, 0, body, meta) for i, (meta, body) in enumerate(frames)]
            )
            end = PAGE_HEADER_BYTES + len(data)
            rows = b"".join(scan_frames(data, PAGE_HEADER_BYTES, seed, 0, 0, end).rows)
            writer.append(rows, data)
            checksum = staged_checksum(data, rows, PAGE_HEADER_BYTES, seed, 0)
            page = writer.seal()
            writer.sync()
            writer.close()
            tokens.append(
                {
                    "name": page.name, "page_id": f"{id:016x}", "rows": page.rows,
                    "bytes": page.bytes, "checksum": f"{checksum:016x}",
                }
            )  # fmt: skip
        sync_dir(self.fs, directory)
        return tokens


class StagedRig(OperationRig):
    """See the head of this module."""

    lives = 0

    def start(self) -> None:
        super().start()
        self.lives += 1
        self.stager = Stager(self.fs, self.vhost.path, seed=self.lives)

    def stage(self, batch: int, *pages: list[tuple[bytes, bytes]], **more: Any) -> list[Token]:
        """See Stager.stage; staged now."""
        return self.stager.stage(batch, *pages, **{"time_us": self.clock.wall_us(), **more})

    def commit(
        self, batch: int, tokens: list[Token], query: str = QUERY, *, target: object = None,
        keys: object = None, user: Identity | None = None, **more: object,
    ) -> Asked:  # fmt: skip
        """Ask for a commit, by default to the queue "q", as the operator or for a user."""
        if user is not None:
            more["as_user"] = user.facts()
        return self.ask(
            "commit_batch", query=query, batch=batch, target=target or {"queue": "q"},
            pages=tokens, mandatory_keys=keys, **more,
        )  # fmt: skip

    def committed(self, batch: int, tokens: list[Token], **more: Any) -> Any:
        """The answer of a commit, and the batch is where it belongs, if it can be."""
        asked = self.commit(batch, tokens, **more)
        self.roll()
        return asked.result

    def roll(self) -> None:
        """Turns and ticks until batches have come as far as they can."""
        for _ in range(50):
            self.turn()
            self.tick(0.002)

    def row(self, query: str = QUERY) -> Any:
        """What list_batches says of a query."""
        (found,) = [row for row in self.result("list_batches") if row["query"] == query]
        return found

    def bodies(self, queue: str = "q") -> list[bytes]:
        """Of all messages that are ready."""
        return [found["body"] for found in self.result("peek", queue=queue, count=1000)["messages"]]


def plain(key: str, *bodies: bytes, **properties: Any) -> list[tuple[bytes, bytes]]:
    """Frames with the same header."""
    meta = header(key, **properties)
    return [(meta, body) for body in bodies]
