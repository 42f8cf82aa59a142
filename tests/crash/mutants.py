"""Negative controls: each rule broken by one line, to see that the crash tests notice.

A test that cannot fail proves nothing. So each `Mutant` is a copy of the package, not compiled, in
which one text, which must stand there exactly once, is replaced; and a finder, in a process of its
own, runs random lives and triples against that copy until something is noticed:

    python -m tests.crash.mutants NAME...     make the copies, run the finders, print a table
    python -m tests.crash.mutants --find ...  the finder itself, with the copy in PYTHONPATH

What counts as noticed: a violation of the ledger's promises, an assertion or error of the engine
where there should be none, or a hang. `control` is the copy with nothing replaced: it must pass as
many runs as the slowest mutant needed.

The names follow the crash model that the design was first proved with.
"""

import argparse
import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "penstock"
RUNS_MAX = 400
QUEUES = "queues:"  # begins the plans of lives of queues; behind it a script, or nothing for all
QUEUE_IMAGES = 20  # of one life of queues
STREAMS = "streams"  # the plan of lives with streams
LEASES = "leases"  # and of those with leases
STREAM_IMAGES = 20
BATCHES = "batches"  # the plan of lives with batches
DISKS = "disks"  # the plan of stores on several disks, and of moves
SECONDS_MAX = 120
CONTROL_RUNS = 60  # of the copy with nothing replaced
CONTROL_RUNS_FEW = 12
CONTROL_RUNS_FROM = 100_000  # crash images from which on all of them are made


class Mutant:
    """name; the rule it breaks; a text of penstock/storage, and what replaces it; the plan of
    random lives that is likeliest to notice."""

    def __init__(self, name: str, rule: str, old: str, new: str, plan: str = "all") -> None:
        self.name = name
        self.rule = rule
        self.old = old
        self.new = new
        self.plan = plan

    def __repr__(self) -> str:
        return self.name


CONTROL = Mutant("control", "", "", "")

MUTANTS = (
    Mutant(
        "slots-decide", "[1]",
        'bits = bytes(s.bitmap) if s.bitmap is not None and s.count != s.hi - s.lo else b""',
        'bits = b""',
    ),
    Mutant(
        "bodies-not-synced", "[2]",
        "return self.unsynced.has_any()",
        "return False",
    ),
    Mutant(
        "soft-bodies-not-synced", "[2]",
        "if self._named_lsn > self._store_lsn and self._store.has_unsynced():",
        "if False:",
    ),
    Mutant(
        "missing-body-ignored", "[2]",
        "if found.lsn > end.claim:",
        "if False:",
    ),
    Mutant(
        "late-snapshot", "[3]",
        "        copy = segment.copy(self.epoch)\n",
        "        copy = segment\n        copy.epoch = self.epoch\n",
    ),
    Mutant(
        "late-snapshot-of-the-store", "[3]",
        "        self._captured.append(self._state(file))\n",
        "",
    ),
    Mutant(
        "late-snapshot-of-topology", "[3]",
        "            self._captured = self.snapshot()\n        return self._captured",
        "            self._captured = self.snapshot()\n        return self.snapshot()",
    ),
    Mutant(
        "cut-inside-group", "[3]",
        "        self._close_group()\n        segment = self._pool.in_use[-1]\n"
        "        return segment.n",
        "        segment = self._pool.in_use[-1]\n        return segment.n",
    ),
    Mutant(
        "purged-left-out", "[4]",
        "if self._is_whole or x.is_purged or x.lsn > durable:",
        "if not x.is_purged and x.lsn > durable:",
        "purges",
    ),
    Mutant(
        "skip-if-acked", "[4]",
        "if self._is_whole or x.is_purged or x.lsn > durable:",
        "if x.is_purged:",
        "slices",
    ),
    Mutant(
        "data-not-synced", "[5]",
        "            for file in files:\n                file.sync()\n",
        "",
    ),
    Mutant(
        "manifest-not-synced", "[5]",
        "        file.pwrite(data, 0)\n        try:\n            file.sync()\n",
        "        file.pwrite(data, 0)\n        try:\n            pass\n",
    ),
    Mutant(
        "log-deleted-early", "[5]",
        "        self.phase = SYNC\n",
        "        self.phase = SYNC\n        journal.log.release_before(self._head.log_segment)\n",
    ),
    Mutant(
        "current-not-synced", "[5]",
        'path + "/CURRENT")\n    try:\n        fs.sync_dir(path)\n',
        'path + "/CURRENT")\n    try:\n        pass\n',
    ),
    Mutant(
        "unlink-segment-early", "[6]",
        "        journal.commit([Release(number, segment, refs)], OS)\n",
        "        journal.commit([Release(number, segment, refs)], OS)\n"
        '        delete(journal.fs, [f"{queue.path}/{segment}.qi"] if queue else [], [])\n',
    ),
    Mutant(
        "unlink-store-before-manifest", "[6]",
        "            self._replaced += self._paths(member)\n",
        "            for path in self._paths(member):\n                self.fs.unlink(path)\n",
    ),
    Mutant(
        "new-log-without-dirsync", "[7]",
        "        fs.rename(new, path)\n        fs.sync_dir(directory)\n",
        "        fs.rename(new, path)\n",
    ),
    Mutant(
        "new-log-without-sync", "[7]",
        "        file.sync()\n        fs.rename(new, path)\n",
        "        fs.rename(new, path)\n",
    ),
    # That the *log* is read from the cache alone is no mutant: recovery's checkpoint writes anew
    # whatever it took from there before anything is confirmed. test_log_file.py asks for the sync.
    Mutant(
        "recovery-syncs-log-only", "[8]",
        "\n            handle.sync()\n            handle.drop_cache()\n",
        "\n            pass\n",
        "cache",
    ),
    Mutant(
        "recovery-logs-early", "[8]",
        "        self.log.start(found.end, found.end.next_number)\n",
        "        self.log.start(found.end, found.end.next_number)\n"
        '        self.log.append(record.NOP, 0, 0, b"", DISK)\n        self.log.flush()\n',
    ),
    Mutant(
        "stale-cache-read", "[8]",
        "\n            handle.drop_cache()\n",
        "\n",
        "cache",
    ),
    Mutant(
        "seqs-continue", "[9]",
        "self.skip_to(-(-top // self.slots) * self.slots)",
        "self.skip_to(top)",
    ),
    Mutant(
        "seq-below-mark", "[9]",
        "top = max(self.next_seq, self.mark)",
        "top = self.next_seq",
    ),
    Mutant(
        "ids-continue", "[9]",
        "self.log.start(found.end, found.end.next_number)",
        "self.log.start(found.end, found.end.next_number); found.state.factory.start -= 1",
    ),
    Mutant(
        "queue-number-reused", "[9]",
        "        state.next_queue += QUEUE_NUMBER_JUMP\n",
        "",
    ),
    Mutant(
        "sync-retried", "[10]",
        "        self.file.sync()\n        return result",
        "        try:\n            self.file.sync()\n        except OSError:\n"
        "            self.file.sync()\n        return result",
        "syncs",
    ),
    Mutant(
        "failed-write-ignored", "[10]",
        "            self._fail(segment.path, error)\n            return\n"
        "        self._written(run)",
        "            pass\n        self._written(run)",
        "writes",
    ),
    Mutant(
        "durable-lsn-guessed", "[11]",
        "segment.seed, group.length, first_lsn, self.durable_lsn, group.count",
        "segment.seed, group.length, first_lsn, group.last_lsn, group.count",
    ),
    Mutant(
        "seal-without-sync", "[11]",
        "            if self.durable_lsn < self.written_lsn:\n",
        "            if False:\n",
    ),
    Mutant(
        "torn-always", "[11]",
        "        if rest.claim >= walk.next_lsn:\n",
        "        if False:\n",
        "tail",
    ),
    Mutant(
        "headers-after-not-read", "[11]",
        "        rest.scan(walk.segment, walk.group_offset, walk.next_lsn)\n",
        "",
        "tail",
    ),
    Mutant(
        "no-idle-header", "[11]",
        "            segment.file.pwrite(header, end)\n",
        "            pass\n",
        "tail",
    ),
    Mutant(
        "no-end-marker", "[11]",
        "            place.file.pwrite(marker, CHAIN_OFFSET)\n",
        "            pass\n",
        "tail",
    ),
    Mutant(
        "idle-header-says-written", "[11]",
        "segment.seed, 0, self.written_lsn + 1, self.durable_lsn, 0",
        "segment.seed, 0, self.written_lsn + 1, self.written_lsn, 0",
    ),
    Mutant(
        "end-marker-says-written", "[11]",
        "segment.number, self._last_end, self.durable_lsn, self.durable_lsn, True",
        "segment.number, self._last_end, self.written_lsn, self.written_lsn, True",
    ),
    Mutant(
        "shrunk-without-sync", "[11]",
        "            and self.durable_lsn == self.written_lsn\n",
        "",
        "trim",
    ),
    Mutant(
        "old-log-goes-when-it-shrinks", "[6]",
        "        self._pool.replace_ahead()\n        self._leave_old()\n",
        "        self._pool.replace_ahead()\n        self._leave_old()\n"
        "        self.release_before(segment.number)\n",
        "trim",
    ),
    Mutant(
        "retired-body-file-goes-at-once", "[6]",
        "            self.unsynced.finish(writing)\n\n    def dead_bytes",
        "            self.unsynced.finish(writing)\n            self._remove(file)\n"
        "            self.fs.unlink(self.tables.rdq_path(file.number))\n\n    def dead_bytes",
        "trim",
    ),
    Mutant(
        "directory-synced-on-one-disk", "[13]",
        "        for _, directory in self._others(path):\n"
        "            self.below.sync_dir(directory)\n",
        "",
        DISKS,
    ),
    Mutant(
        "vhost-gone-on-one-disk", "[13]",
        "                    # Durable before the vhost is deleted: "
        "one of the same name would find it.\n"
        "                    self.below.sync_dir(self.roots[kind])\n",
        "",
        DISKS,
    ),
    Mutant(
        "vhost-made-on-one-disk", "[13]",
        "                # Durable before `.vhost` says that the vhost is whole.\n"
        "                self.below.sync_dir(self.roots[kind])\n",
        "",
        DISKS,
    ),
    Mutant(
        "places-not-synced", "[13]",
        '    fs.rename(f"{directory}/{name}.new", f"{directory}/{name}")\n'
        "    sync_dir(fs, directory)\n",
        '    fs.rename(f"{directory}/{name}.new", f"{directory}/{name}")\n',
        DISKS,
    ),
    Mutant(
        "moved-files-not-synced", "[13]",
        "                _sync(target.sync, new)\n",
        "",
        DISKS,
    ),
    Mutant(
        "moved-names-not-synced", "[13]",
        '                self._copy_tree(f"{old}/{name}", f"{new}/{name}")\n'
        "        sync_dir(fs, new)\n",
        '                self._copy_tree(f"{old}/{name}", f"{new}/{name}")\n',
        DISKS,
    ),
    Mutant(
        "old-files-go-before-places", "[13]",
        "            write_places(fs, path, places)\n            self._delete_left(places)\n",
        "            self._delete_left(places)\n            write_places(fs, path, places)\n",
        DISKS,
    ),
    Mutant(
        "unfinished-copy-is-kept", "[13]",
        '            self._empty(kind, root or f"{self._path}/{VHOSTS}")\n\n    def _give_up',
        "\n    def _give_up",
        DISKS,
    ),
    Mutant(
        "dequeue-without-ids", "format",
        "for m in messages if m.store_file]",
        "for m in messages if m.store_file and m.id % 3]",
    ),
    Mutant(
        "reaping-left-out", "checkpoint",
        "self._reaping = dict(state.reaping)",
        "self._reaping = {}",
    ),
    Mutant(
        "purge-forgets-unacked", "format",
        "        data = record.purge_data(self.queue, self.upper, self.kept)\n"
        "        return Op(record.PURGE, 0, len(self.kept), data)\n",
        "        return Op(record.PURGE, 0, 0, record.purge_data(self.queue, self.upper, []))\n",
    ),
    Mutant(
        "rows-left-out", "checkpoint",
        "            small.section.rows.update(small.fresh)\n",
        "",
    ),
    Mutant(
        "takes-owned", "transaction",
        "return not self.counts.live_count and not self.owned and not",
        "return not self.counts.live_count and not",
    ),
    Mutant(
        "parts-applied-at-once", "transaction",
        "        replay.parts.setdefault(transaction, {})[at.lsn] = at.segment, at.offset\n",
        "        replay.parts.setdefault(transaction, {})[at.lsn] = at.segment, at.offset\n"
        "        apply_all([op for op in ops if op.type == record.DEQUEUE], self, at)\n",
    ),
    Mutant(
        "decided-is-not-rolled-forward", "transaction",
        "    if not replay.decided:\n        return\n",
        "    return\n",
        "parts",
    ),
    Mutant(
        "one-part-is-rolled-forward", "transaction",
        "            for part_lsn in list(self.parts.get(transaction, {})):\n",
        "            for part_lsn in list(self.parts.get(transaction, {}))[:1]:\n",
        "parts",
    ),
    Mutant(
        "move-in-two-records", "format",
        "        lsn = journal.commit(moves, mode)\n",
        "        taken = [x for one in entries for x in dequeues_of(queue, [one])]\n"
        "        journal.append(taken, mode)\n"
        "        lsn = journal.append([move.publish for move in moves], mode)\n"
        "        journal.apply(moves, lsn, mode)\n",
    ),
    Mutant(
        "keys-not-in-checkpoints", "[3]",
        "return [(window, window.cut()) for window in windows]",
        "return [(window, window.cut()) for window in windows][:0]",
        "keys",
    ),
    Mutant(
        "keys-not-logged", "[1]",
        "        self.seen.append(Seen(window.name, key, until_ms))",
        "        window.add(key, until_ms)",
        "keys",
    ),
)  # fmt: skip


@functools.cache
def _copy() -> Path:
    """The one copy of the package, where the bytecode of what is not replaced stays from one
    mutant to the next. It goes when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-mutants-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(SOURCE, directory / "penstock", ignore=without)
    return directory


@functools.cache
def _texts() -> dict[Path, str]:
    """The text of each module, by its path in the package."""
    return {path.relative_to(SOURCE): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def module_of(mutant: Mutant) -> Path:
    """The path in the package of the module in which its text stands. Raises AssertionError if that
    is not in one place."""
    found = [path for path, text in _texts().items() if mutant.old in text]
    if len(found) != 1 or _texts()[found[0]].count(mutant.old) != 1:
        raise AssertionError(f"{mutant}: its text must stand exactly once, not in {found}")
    return found[0]


@contextlib.contextmanager
def build(mutant: Mutant) -> Iterator[Path]:
    """A directory with a copy of the package in which the one text is replaced, until the end."""
    directory = _copy()
    if not mutant.old:
        yield directory
        return
    found = module_of(mutant)
    module = directory / "penstock" / found
    _replace(module, _texts()[found].replace(mutant.old, mutant.new))
    try:
        yield directory
    finally:
        _replace(module, _texts()[found])


def _replace(module: Path, text: str) -> None:
    """Write it; its bytecode goes, which Python might take for that of the new text."""
    module.write_text(text)
    Path(cache_from_source(str(module))).unlink(missing_ok=True)


def control_runs(crash_images: int) -> int:
    """How often a finder looks at the copy with nothing replaced, which the tests of lives look at
    anyway: often enough to see that it does not notice what is right."""
    return CONTROL_RUNS if crash_images >= CONTROL_RUNS_FROM else CONTROL_RUNS_FEW


def find(mutant: Mutant, runs: int = RUNS_MAX) -> tuple[int, str]:
    """(runs until it was noticed, what was noticed); (runs, "") if it never was."""
    with build(mutant) as directory:
        environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.crash.mutants", "--find", str(runs)]
        command += ["--plan", mutant.plan]
        try:
            done = subprocess.run(
                command, env=environment, cwd=ROOT, capture_output=True, text=True,
                timeout=SECONDS_MAX, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return runs, f"hangs for more than {SECONDS_MAX} s"
    lines = done.stdout.splitlines()
    if done.returncode not in (0, 1) or not lines:
        raise AssertionError(f"the finder of {mutant} failed: {done.stderr[-2000:]}")
    return int(lines[0]), "\n".join(lines[1:])


def finder(runs: int, plan: str) -> int:
    """Look for a violation with whatever package is in the path; 1 if there was one."""
    import penstock.storage.engine  # only the finder may have imported the copy
    from tests.crash import random_lives
    from tests.crash.enumerate import Unit
    from tests.crash.images import Counts

    assert not Path(penstock.storage.engine.__file__).is_relative_to(SOURCE), "this is no copy"
    if plan == DISKS:
        return _disks_finder(runs)
    if plan in (STREAMS, BATCHES, LEASES):
        return _unit_finder(runs, plan)
    if plan.startswith(QUEUES):
        return _queue_finder(runs, plan.removeprefix(QUEUES))
    counts = Counts()
    for run in range(1, runs + 1):
        if run % 3 or plan != "all":
            story = random_lives.attempt(run, counts, plan)
        else:
            _, story = Unit(run, run * 97 % len(Unit.TRIPLES), 0, 30).run()
        if story:
            print(f"{run}\n{story}")
            return 1
    print(runs)
    return 0


def _disks_finder(runs: int) -> int:
    """The same with stores on several disks: moves, the enumeration, vhosts made and deleted."""
    from tests.crash import two_disks
    from tests.crash.images import Counts

    counts = Counts()
    for run in range(1, runs + 1):
        story = two_disks.attempt(run, counts) or two_disks.attempt_vhosts(run, counts)
        if not story and run % 3 == 0:
            unit = two_disks.Unit(run, run * 97 % len(two_disks.Unit.TRIPLES), 0, 30)
            _, story = unit.run()
        if story:
            print(f"{run}\n{story}")
            return 1
    print(runs)
    return 0


def _unit_finder(runs: int, plan: str) -> int:
    """The same with lives of a vhost that has streams, or batches too, or leases."""
    from tests.crash import batch_lives, lease_lives, stream_lives, triple_unit

    kinds: dict[str, type[triple_unit.Unit]] = {
        STREAMS: stream_lives.Unit, BATCHES: batch_lives.Unit, LEASES: lease_lives.Unit,
    }  # fmt: skip
    kind = kinds[plan]
    for run in range(1, runs + 1):
        _, story = kind(run, run * 97 % len(kind.TRIPLES), 0, STREAM_IMAGES).run()
        if story:
            print(f"{run}\n{story}")
            return 1
    print(runs)
    return 0


def _queue_finder(runs: int, script: str) -> int:
    """The same with lives of queues: of one script, or all in turn, or random ones."""
    from tests.crash import queue_lives

    names = [script] if script else [*queue_lives.SCRIPTS, queue_lives.RANDOM]
    for run in range(1, runs + 1):
        life = queue_lives.Life(run, names[run % len(names)], run, QUEUE_IMAGES)
        _, story = queue_lives.run_life(life)
        if story:
            print(f"{run}\n{story}")
            return 1
    print(runs)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--find", type=int)
    parser.add_argument("--plan", default="all")
    parser.add_argument("--runs", type=int, default=RUNS_MAX)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.find:
        return finder(options.find, options.plan)
    silent = 0
    for mutant in (CONTROL, *MUTANTS):
        if options.names and mutant.name not in options.names:
            continue
        runs, noticed = find(mutant, options.runs)
        first = noticed.splitlines()[0][:110] if noticed else "-"
        print(f"{mutant.name:30} {mutant.rule:12} {runs:4} {first}", flush=True)
        silent += mutant is not CONTROL and not noticed
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
