"""Negative controls of streams: each promise broken by one line, to see that the lives notice.

As in mutants.py, whose finder runs them; the lives are those of stream_lives.py.
"""

from tests.crash.mutants import STREAMS, Mutant

STREAM_MUTANTS = (
    Mutant(
        "head-before-settled", "settled",
        "if turn.lsn > log.settled(turn.mode) or turn",
        "if turn",
        STREAMS,
    ),
    Mutant(
        "pages-not-synced", "[5]",
        "        names, directories = names + pages, directories + page_directories\n",
        "",
        STREAMS,
    ),
    Mutant(
        "frames-not-written-before-the-sync", "[5]",
        "        state.streams.write()  # at least up to the captured positions\n",
        "",
        STREAMS,
    ),
    Mutant(
        "pages-unlinked-before-readmeta", "[6]",
        "        tail = stream_meta.encode_tail(self.first_base)\n",
        "        for base in self.bases if unlink else ():\n"
        "            unlink_page(self.fs, self.path, base)\n"
        "        tail = stream_meta.encode_tail(self.first_base)\n",
        STREAMS,
    ),
    Mutant(
        "readmeta-not-believed", "[6]",
        "        self.pages.first_base = stream_meta.read_tail(fs, path)\n",
        "        self.pages.first_base = 0\n",
        STREAMS,
    ),
    Mutant(
        "stream-deleted-early", "[6]",
        "        self.deleted.append(stream)\n",
        "        self.deleted.append(stream)\n        remove_tree(self.fs, stream.path)\n",
        STREAMS,
    ),
    Mutant(
        "declared-before-it-is-there", "[7]",
        "                sync_dir(journal.fs, table.path)\n",
        "                assert table.path\n",
        STREAMS,
    ),
    Mutant(
        "ordinals-taken-for-offsets", "transaction",
        "            found = found._replace(offset=first_seqs[found.stream] + found.offset)\n",
        "            found = found._replace(offset=found.offset)\n",
        STREAMS,
    ),
    Mutant(
        "times-of-now", "[12]",
        "        self.append(stream, lsn, mode, time_us, found.meta,",
        "        self.append(stream, lsn, mode, time_us + 1, found.meta,",
        STREAMS,
    ),
    Mutant(
        "readers-left-out", "checkpoint",
        "        stream.readers = dict(section.readers)\n",
        "",
        STREAMS,
    ),
    Mutant(
        "taken-away-before-durable", "[6]",
        "        is_durable = journal.log.durable_lsn >= stream.last_lsn\n",
        "        is_durable = True\n",
        STREAMS,
    ),
    Mutant(
        "taken-away-from-a-reader", "retention",
        "hold = None if kept is None else Hold(kept, hold_age_s, hold_bytes)\n",
        "hold = None\n",
        STREAMS,
    ),
    Mutant(
        "a-page-that-begins-elsewhere", "[12]",
        "            or (self.is_restoring and self.next_offset == self.pages.first_base)\n",
        "",
        STREAMS,
    ),
    Mutant(
        "later-pages-stay", "[8]",
        "        if base not in known and base >= first:\n",
        "        if False:\n",
        STREAMS,
    ),
)  # fmt: skip
