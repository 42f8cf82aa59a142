"""Negative controls of the queues: rules of theirs broken by one line, as mutants.py does it.

    python -m tests.crash.queue_mutants [NAME...]    make the copies, run the finders, print a table

Each says which promise it breaks and the script of queue_lives.py that is likeliest to notice.
"""

import sys

from tests.crash.mutants import QUEUES, Mutant, find

RUNS_MAX = 60

QUEUE_MUTANTS = (
    Mutant(
        "mark-not-waited-for", "redelivered",
        "        if not has_mark or seq < self._settled:\n",
        "        if True:\n",
        QUEUES + "marks",
    ),
    Mutant(
        "mark-forgotten", "redelivered",
        "self.delivered: int = min(index.mark, index.next_seq)",
        "self.delivered: int = 0",
        QUEUES + "requeue",
    ),
    Mutant(
        "pending-not-materialised", "lost",
        "found = [entry for entry in state.ram_pending.values() if not entry.on_slot]",
        "found: list[Entry] = []",
        QUEUES + "purging",
    ),
    Mutant(
        "arrivals-not-materialised", "lost",
        "found = _newest(state.q1, least, below, n)",
        "found = _newest(deque(), least, below, n)",
        QUEUES + "random",
    ),
    Mutant(
        "looks-not-far-enough", "lost",
        "max(self._on_slots_below, entries[-1].seq + 1)",
        "max(self._on_slots_below, entries[-1].seq + 4)",
        QUEUES + "random",
    ),
    Mutant(
        "transients-materialised", "transient",
        "e.seq < below and e.message.persistent]\n",
        "e.seq < below]\n",
        QUEUES + "random",
    ),
    Mutant(
        "paged-out-unwritten", "lost",
        "            if entry.seq not in section:\n                fresh.append(entry)\n",
        "            if entry.seq not in section and entry.seq % 3:\n"
        "                fresh.append(entry)\n",
        QUEUES + "paging",
    ),
    Mutant(
        "requeued-to-the-wrong-end", "order",
        "q4.extendleft(reversed(entries[:n]))",
        "q4.extend(entries[:n])",
        QUEUES + "requeue",
    ),
    Mutant(
        "attempts-not-logged", "attempts",
        "            self.engine.requeue(self._index, counted, mode)\n",
        "            for seq, n in counted:\n                self._index.set_attempts(seq, n)\n",
        QUEUES + "requeue",
    ),
    Mutant(
        "stale-read-ahead", "order",
        "            if first > row.seq:\n                continue  # fetched meanwhile\n",
        "            first = min(first, row.seq)\n",
        QUEUES + "read ahead",
    ),
    Mutant(
        "delta-not-before-q2", "order",
        "    part = state.q2 if state.delta.count else state.q3\n",
        "    part = state.q3\n",
        QUEUES + "flowing",
    ),
    Mutant(
        "q1-before-the-rest-is-back", "order",
        "    if state.q1 and not state.q3.count:\n",
        "    if state.q1 and state.fits():\n",
        QUEUES + "random",
    ),
    Mutant(
        "transient-comes-back-persistent", "transient",
        "flags = ON_SLOT | (0 if slot.seq in transients else PERSISTENT)",
        "flags = ON_SLOT | PERSISTENT",
        QUEUES + "flowing",
    ),
    Mutant(
        "count-not-written", "attempts",
        "        self.engine.wait(lsn, OS)\n        self._counted.add(seq)\n",
        "        self._counted.add(seq)\n",
        QUEUES + "random",
    ),
    Mutant(
        "suspects-not-counted", "attempts",
        "        if seq < self._suspect_below and ack_required and message.persistent:\n",
        "        if False:\n",
        QUEUES + "random",
    ),
    Mutant(
        "moved-in-two-records", "one place",
        "                lsn, _ = engine.move(\n"
        "                    self._index, self._moving(tag, message), durable, "
        "header, mode, expiry_ms\n"
        "                )\n",
        "                engine.publish(durable, header, body, mode, expiry_ms)\n"
        "                lsn = engine.dequeue(self._index, [self._moving(tag, message)], mode)\n",
        QUEUES + "dead letters",
    ),
    Mutant(
        "pending-in-delta", "one place",
        "if s not in ram and s not in paged and s not in aside]",
        "if s not in ram and s not in aside]",
        QUEUES + "requeue",
    ),
    Mutant(
        "hold-ignored", "held",
        "                if held <= seq and engine.log.settled(mode) < lsn:\n",
        "                if False:\n",
        QUEUES + "random",
    ),
    Mutant(
        "due-too-early", "delays",
        "heap[0][0] > now_ms)",
        "heap[0][0] > now_ms + 900)",
        QUEUES + "random",
    ),
    Mutant(
        "due-time-forgotten", "delays",
        "self.header(header, expiry_ms), mode, due_ms)",
        "self.header(header, expiry_ms), mode, 0)",
        QUEUES + "delays",
    ),
    Mutant(
        "pinned-part-deleted", "lost",
        "if is_over and not bucket.pins and is_empty:",
        "if is_over and is_empty:",
        QUEUES + "transactions",
    ),
    Mutant(
        "purge-kills-paged-pending", "lost",
        "        return merge(in_ram, paging.kept_by_purge(state), key=seq_of)\n",
        "        return iter(in_ram)\n",
        QUEUES + "purging",
    ),
    Mutant(
        "deleted-in-two-records", "one place",
        "        with self._engine.journal.one_record(mode) as one:\n"
        "            self.delays.delete(mode)\n",
        "        self.delays.delete(mode)\n"
        "        with self._engine.journal.one_record(mode) as one:\n",
        QUEUES + "purging",
    ),
    Mutant(
        "own-expiry-lost", "expiry",
        "return self._headers.with_(header, expiry_ms=expiry_ms) if expiry_ms else header\n",
        "return header\n",
        QUEUES + "delays",
    ),
)  # fmt: skip


def main() -> int:
    silent = 0
    for mutant in QUEUE_MUTANTS:
        if sys.argv[1:] and mutant.name not in sys.argv[1:]:
            continue
        runs, noticed = find(mutant, RUNS_MAX)
        first = noticed.splitlines()[0][:110] if noticed else "-"
        print(f"{mutant.name:30} {mutant.rule:12} {runs:4} {first}", flush=True)
        silent += not noticed
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
