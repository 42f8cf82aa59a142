"""What a dump says of batches: their records in the log, their sections in a checkpoint.

One line for a record, and for a section one for the batch, one for each page that it still has to
move and one for each stream that it holds. See `dump.py` for the lines, `batches.py` for the
formats. What cannot be read is a ValueError, which the caller shows as damage.
"""

from penstock.storage import batches
from penstock.storage.batches import Batch, BatchFacts, BatchRecord, StagedPage


def batch_text(found: BatchRecord, flags: int) -> str:
    """A BATCH record in words."""
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
    """The last batch of a query, as a checkpoint has it."""
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
