"""Negative controls of batches: each promise broken by one line, to see that the lives notice.

As in mutants.py, whose finder runs them; the lives are those of batch_lives.py.
"""

from tests.crash.mutants import BATCHES, Mutant

BATCH_MUTANTS = (
    Mutant(
        "decided-again", "already done",
        "        if number <= table.last_number(query):\n            return False\n",
        "        if number < table.last_number(query):\n            return False\n",
        BATCHES,
    ),
    Mutant(
        "progress-in-a-record-of-its-own", "exactly once",
        "            operations.append(BatchChange(batch, batches.PROGRESS))\n",
        "            self._journal.commit([BatchChange(batch, batches.PROGRESS)], 3)\n",
        BATCHES,
    ),
    Mutant(
        "batches-left-out", "checkpoint",
        "        *((BATCH, data) for data in batches),\n",
        "",
        BATCHES,
    ),
    Mutant(
        "staged-deleted-early", "[6]",
        "        self.dead_staged, state.batches.dead = state.batches.dead, []\n",
        "        self.dead_staged, state.batches.dead = state.batches.dead, []\n"
        "        delete(journal.fs, staged_files(journal.path, self.dead_staged), [])\n",
        BATCHES,
    ),
    Mutant(
        "adopted-header-not-synced", "adoption",
        "            file.pwrite(_header_of(writer), 0)\n            _sync(file)\n",
        "            file.pwrite(_header_of(writer), 0)\n",
        BATCHES,
    ),
    Mutant(
        "adopted-name-not-synced", "adoption",
        '        sync_dir(fs, path.rpartition("/")[0])\n\n    def _write_index(',
        "\n    def _write_index(",
        BATCHES,
    ),
    Mutant(
        "adoption-not-done-again", "adoption",
        "                adoption.run(is_recovery=True)\n",
        "                pass\n",
        BATCHES,
    ),
    Mutant(
        "head-before-the-files", "adoption",
        "        self.is_placed = False\n        self.written_count = 0\n",
        "        self.is_placed = True\n",
        BATCHES,
    ),
    Mutant(
        "swept-though-decided", "sweep",
        "                if place in self.kept:\n                    self.gone.discard(place)\n"
        "                    continue\n",
        "",
        BATCHES,
    ),
    Mutant(
        "head-not-held", "all or nothing",
        "            if 0 <= stream.held_at < turn.position.next_offset:\n                break\n",
        "",
        BATCHES,
    ),
    Mutant(
        "head-not-held-after-a-crash", "all or nothing",
        "            stream.queue.finish_restore(stream.held_at)\n",
        "            stream.queue.finish_restore()\n",
        BATCHES,
    ),
    Mutant(
        "holds-forgotten-by-a-checkpoint", "all or nothing",
        "        if not batch.is_done:\n            state.streams.hold(batch)\n",
        "",
        BATCHES,
    ),
    Mutant(
        "facts-forgotten-by-a-checkpoint", "already done",
        "    if batch.facts is not None:\n        parts.append(_facts(batch.facts))\n",
        "",
        BATCHES,
    ),
    Mutant(
        "facts-forgotten-by-a-replay", "already done",
        "    return BatchRecord(query, number, time_us, target, pages, facts=facts)\n",
        "    return BatchRecord(query, number, time_us, target, pages)\n",
        BATCHES,
    ),
    Mutant(
        "head-moves-in-steps", "all or nothing",
        "                _merge_turns(stream, offset, lsn)\n",
        "",
        BATCHES,
    ),
)  # fmt: skip
