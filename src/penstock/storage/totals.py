"""StorageTotals: what all queues of one engine together have done since it was opened.

The parts that count for themselves (the log, checkpoints) keep their own counts. These are of
queues, which come and go, so that a sum over those that are there would fall when one is deleted.
Each is added to once for a run of messages.
"""

from penstock.counts import DISK_S, Histogram


class StorageTotals:
    """One for each engine. betas, gammas, deltas: how many messages became such when they left RAM.
    paged_in: messages that were read back. read_ahead_hits, read_ahead_misses: runs that were read
    before a get needed them, and those that a get waited for."""

    def __init__(self) -> None:
        self.betas: int = 0
        self.gammas: int = 0
        self.deltas: int = 0
        self.paged_out_bytes: int = 0
        self.paged_in: int = 0
        self.paged_in_bytes: int = 0
        self.page_in_runs: int = 0
        self.page_in_seconds: Histogram = Histogram(DISK_S)
        self.read_ahead_hits: int = 0
        self.read_ahead_misses: int = 0

    def page_in(self, messages: int, size: int, seconds: float) -> None:
        """Count a read of a run, of `size` bytes of RAM."""
        self.paged_in += messages
        self.paged_in_bytes += size
        self.page_in_runs += 1
        self.page_in_seconds.record(seconds)
