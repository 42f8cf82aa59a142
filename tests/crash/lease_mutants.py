"""Negative controls of leases: each promise broken by one line, to see that the lives notice.

As in mutants.py, whose finder runs them; the lives are those of lease_lives.py.
"""

from tests.crash.mutants import LEASES, Mutant

LEASE_MUTANTS = (
    Mutant(
        "leases-left-out", "checkpoint",
        "        self._leases = state.leases.capture()\n",
        "        self._leases = []\n",
        LEASES,
    ),
    Mutant(
        "leases-not-restored", "checkpoint",
        "    _load_leases(state, manifest)\n    _load",
        "    _load",
        LEASES,
    ),
    Mutant(
        "leased-and-on-no-slot", "[4]",
        "                    part.write(fresh)\n",
        "                    pass\n",
        LEASES,
    ),
    Mutant(
        "a-purge-takes-what-is-leased", "lease",
        "            kept = kept + self.leases.runs_of(queue.number)\n",
        "            pass\n",
        LEASES,
    ),
    Mutant(
        "a-record-for-each-operation", "lease",
        "        if len(ops) > 1:\n            return self._append_list(ops, mode, names_store)\n",
        "        for op in ops[:-1]:\n"
        "            self.log.append(op.type, op.flags, op.count, op.data, mode)\n"
        "        ops = ops[-1:]\n",
        LEASES,
    ),
    Mutant(
        "transient-and-not-logged", "lease",
        "            lsn = journal.append(operations, mode, names_store=work.names_store)\n",
        "            logged = [x for x in operations if not isinstance(x, Publish)]\n"
        "            lsn = journal.append(logged, mode, names_store=work.names_store)\n",
        LEASES,
    ),
    Mutant(
        "stored-and-not-said", "[2]",
        "                self.names_store = True\n",
        "                self.names_store = False\n",
        LEASES,
    ),
    Mutant(
        "a-part-of-a-slice-stays-alive", "lease",
        "    for run in [*runs, *parted]:\n",
        "    for run in runs:\n",
        LEASES,
    ),
    Mutant(
        "references-are-kept", "format",
        "            if run[4]:\n                refs += [\n",
        "            if run[4] > 1:\n                refs += [\n",
        LEASES,
    ),
    Mutant(
        "a-release-is-forgotten", "lease",
        "            lease.is_releasing = True\n            if",
        "            if",
        LEASES,
    ),
    Mutant(
        "leases-of-a-deleted-queue", "lease",
        "        self._apply_leased(self.leases.delete(queue.number), is_leased=False)\n",
        "",
        LEASES,
    ),
)  # fmt: skip
