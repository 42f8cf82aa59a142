"""Text that all dumps share: lines, bodies, queue names and batches.

A line is the position in decimal, in a column of ten, two blanks, and a text. Bodies may be large
or private, so a body is shown by its size, its plain CRC-32 and its first bytes, which is enough to
distinguish two bodies. A batch is one line for its record in the log. In a checkpoint it is one
line, one for each page that it has not moved yet, and one for each stream that it holds
(`batches.py` has the formats). Data that cannot be decoded is a ValueError, which the caller shows
as damage.
"""

from typing import Final

from penstock.fast_crc import crc32
from penstock.storage.pages import batches
from penstock.storage.pages.batches import Batch, BatchFacts, BatchRecord, StagedPage

SHOWN_BYTES: Final = 24


def at(position: int, text: str) -> str:
    """Return one line."""
    return f"{position:10}  {text}"


def body_text(body: bytes) -> str:
    """Return the size, checksum and first bytes of a body."""
    more = " ..." if len(body) > SHOWN_BYTES else ""
    return f"body of {len(body)} bytes, crc {crc32(body):08x}, {body[:SHOWN_BYTES]!r}{more}"


def is_zero(data: bytes) -> bool:
    """Return whether all bytes are zeros."""
    return not data.strip(b"\0")


def queue_title(name: bytes) -> str:
    """Return a queue's name for people. A part of a queue with priorities or delays is a queue of
    its own on disk; the text after a zero byte in its name is the part."""
    whole, _, part = name.decode("utf-8", "replace").partition("\0")
    return f"{whole} (part {part})" if part else whole


def batch_text(found: BatchRecord, flags: int) -> str:
    """Return a BATCH record in words."""
    title = f"query {found.query!r} batch {found.number}"
    if flags in (batches.DECIDED, batches.DECIDED_BY):
        pages = ", ".join([_page_text(page) for page in found.pages]) or "no pages"
        facts = "" if found.facts is None else f" {_facts_text(found.facts)}"
        return f"decided {title} time {found.time_us} target {found.target!r}{facts}: {pages}"
    if flags == batches.PROGRESS:
        return f"progress {title} page {found.page} frame {found.frame}"
    if flags == batches.ADOPTED:
        return (
            f"adopted {title} page {found.page} by stream {found.stream} offset {found.base} "
            f"time {found.time_us}"
        )
    return f"forgotten {title}"


def section_lines(batch: Batch) -> list[str]:
    """Return the lines of a query's last batch in a checkpoint."""
    state = "done" if batch.is_done else f"at page {batch.page} frame {batch.frame}"
    first = (
        f"query {batch.query!r} batch {batch.number} {state} of {batch.page_count} pages, "
        f"{batch.rows} rows, {batch.bytes} bytes, time {batch.time_us} target {batch.target!r}"
    )
    holds = [f"  holds stream {n} at offset {offset}" for n, offset in batch.holds.items()]
    facts = [] if batch.facts is None else [f"  {_facts_text(batch.facts)}"]
    return [first, *[f"  {_page_text(page)}" for page in batch.pages], *holds, *facts]


def _facts_text(facts: BatchFacts) -> str:
    gapless = " gapless" if facts.is_gapless else ""
    return (
        f"content {facts.rows} rows checksum {facts.checksum:016x}{gapless} of user "
        f"{facts.owner.user!r} first target {facts.owner.target!r}"
    )


def _page_text(page: StagedPage) -> str:
    return f"{page.name} id {page.page_id:016x} rows {page.rows} bytes {page.bytes}"
