"""Staging: a task's rows become tokens, and the driver makes one batch of the tokens of all tasks.

    task     rows -> frames -> pages, each a POST -> tokens         `Stager.stage`
    driver   all tokens -> one PUT: the broker decides the batch    `commit_batch`

Nothing is visible before the PUT, and after it everything is, once: the broker has written down
the query and the number of its last batch, with the number and the checksum of its rows, in the
same record that decides it. The same batch again is "already done". So it does not matter how often
a task ran (retries, speculation: only the tokens of the attempts that Spark took are told), nor how
often the driver comes back with the same batch. Another batch with that number, or an older number,
is a BatchConflictError: two jobs share a queryId, or a checkpoint was deleted, copied or restored.
With sameRows=false another batch with the last number counts as the same: for queries whose rows
come out differently when Spark does a batch again.

A streaming query reports each batch, also those without rows, and the number before. So the broker
notices that it was restored from a backup which is older than the query's checkpoint: batches are
missing there. failOnDataLoss=false goes on without them.

    delivery=exactly-once    query of Spark, batch of Spark, committed by the driver
    delivery=idempotent      each task commits its partition as query "<query>/<partition>": no step
                             of the driver, and rows visible earlier, partition by partition. It
                             holds if a replay gives each partition the same rows
    a batch write            query "job-<random>", batch 0; or as queryId and batchId say

Not here: what is Spark's (sink.py), columns (sink_columns.py).
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError
from penstock.spark.sink_columns import SinkColumns, check_keys
from penstock.spark.sink_options import SinkOptions
from penstock.spark.staging_frames import FrameMaker
from penstock.spark.staging_link import PageUpload, SinkError, StagingLink, Token

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True)
class StagedRows:
    """What a task staged: tokens of the broker, and where its rows go."""

    query: str
    batch: int
    tokens: tuple[Token, ...] = ()
    rows: int = 0
    exchanges: frozenset[str] = field(default_factory=frozenset)
    keys: frozenset[tuple[str, str]] = field(default_factory=frozenset)


class Stager:
    """Stages the rows of one task. partition, attempt: of Spark's task."""

    def __init__(
        self, options: SinkOptions, columns: SinkColumns, query: str, batch: int, partition: int,
        attempt: int, *, link: StagingLink | None = None,
    ) -> None:  # fmt: skip
        self._options = options
        self._columns = columns
        self._key = (query, batch, partition, attempt)
        self._link = link_of(options) if link is None else link
        told = target_of(options, [] if options.exchange is None else [options.exchange])
        self._target = {} if told.get("exchanges") == [] else {"target": json.dumps(told)}
        self._rng = random.SystemRandom()
        self._frames = FrameMaker()
        self._upload: PageUpload | None = None
        self._tokens: list[Token] = []
        self._rows = 0

    def stage(self, batches: "Iterable[RecordBatch]") -> StagedRows:
        """All rows; back when they are on the broker's disk. SinkError, OptionError."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._stage(batch)
            self._end_page()
        finally:
            if self._upload is not None:
                self._upload.close()
        query, number, _, _ = self._key
        exchanges, keys = frozenset(self._columns.exchanges), frozenset(self._columns.keys)
        return StagedRows(query, number, tuple(self._tokens), self._rows, exchanges, keys)

    def _stage(self, batch: "RecordBatch") -> None:
        bodies, metas = self._columns.bodies(batch), self._columns.metas(batch)
        chunks = self._frames.chunks(bodies, metas)
        while True:
            try:
                chunk = next(chunks, None)
            except ValueError as error:
                raise OptionError("column value", "too long", str(error)) from None
            if chunk is None:
                return
            if chunk.has_new_page:
                self._end_page()
                self._upload = PageUpload(self._link, self._key, self._target, self._rng)
            assert self._upload is not None
            self._upload.send(chunk.data)
            self._rows += chunk.rows

    def _end_page(self) -> None:
        if self._upload is not None:
            self._tokens.append(self._upload.finish())
            self._upload = None


def commit_batch(
    options: SinkOptions, parts: Sequence[StagedRows], *, previous: int | None = None,
    link: StagingLink | None = None,
) -> str:  # fmt: skip
    """Publish what the tasks staged, all of one batch, in the order of the partitions: "committed",
    or "already done"; "" if there are no rows, and that is not to be reported. previous: the number
    of the batch before, if the broker is to notice batches that are missing. SinkError,
    BatchConflictError."""
    tokens = [token for part in parts for token in part.tokens]
    if not tokens and (previous is None or not parts):
        return ""
    keys = {(part.query, part.batch) for part in parts}
    if len(keys) != 1:
        raise SinkError(f"parts of {len(keys)} batches in one: {sorted(keys)}")
    ((query, batch),) = keys
    exchanges = set[str]().union(*[part.exchanges for part in parts])
    if not tokens and options.exchange:
        exchanges.add(options.exchange)
    target = target_of(options, exchanges)
    pairs: list[tuple[str, str]] | None = None
    if options.queue is None and options.is_mandatory:
        pairs = sorted(set[tuple[str, str]]().union(*[part.keys for part in parts]))
        check_keys(len(pairs))
    link = link_of(options) if link is None else link
    return link.commit(
        query, batch, target if tokens or target.get("exchanges") != [] else None, tokens, pairs,
        previous=previous, is_first_kept=not options.has_same_rows,
    )  # fmt: skip


def target_of(options: SinkOptions, exchanges: Iterable[str]) -> dict[str, Any]:
    """Where a batch goes, as the broker is told."""
    target: dict[str, Any] = {"queue": options.queue}
    if options.queue is None:
        target = {"exchanges": sorted(exchanges)}
    if options.dead_letter_to is not None:
        target["dead_letter_to"] = options.dead_letter_to
    return target


def abort_batch(
    options: SinkOptions, query: str, batch: int, *, link: StagingLink | None = None
) -> None:
    """Drop what tasks staged of a batch, unless it is decided. Never an error."""
    link = link_of(options) if link is None else link
    link.abort(query, batch)


def link_of(options: SinkOptions) -> StagingLink:
    """To the broker that the options name."""
    assert options.place is not None
    return StagingLink(options.place, options.target, options.timeout_s)
