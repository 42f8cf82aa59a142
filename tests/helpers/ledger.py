"""Ledger: what was done to a storage engine, what was confirmed, and the judge of recovery.

A storage engine may forget only what it never confirmed, and only from the end. So the ledger keeps
every change with the LSN of its record, as data that a plain model (dicts, no segments, no files)
can apply; and for every operation of the file system how far each durability mode was settled just
then. After a crash and recovery `Ledger.check` demands:

  * one LSN, that of the end of the log that recovery found, at or above everything confirmed and
    not above anything ever appended;
  * the state is the model folded up to that LSN, exactly: queues, seqs, attempts, marks, topology.
    Hence all or nothing of a transaction, nothing invented, nothing twice, nothing out of order;
  * every live message is read as a consumer would read it, and its header and body are its own;
  * counts and bytes of queues and of segments equal reality;
  * reference counts in the store equal those recomputed from rows, slots and purged slots, and
    nothing else in the store is alive;
  * seqs go on above everything used or marked, ids and queue numbers are none that were given out;
  * no file is left that nothing names;
  * every stream has the records of the model, read as a reader would (stream_judge.py);
  * every batch is as far as the model says, and what it has still to move is staged;
  * every reader has leased what the model says, at the same ordinals (lease_model.py).

Bodies are made by `body_of` from a uid, so that no two are alike and each tells whose it is.

Failure: `Violation`, with what was wanted and what was found.
"""

import re

from penstock.message import START_SHIFT
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.pages.batches import BatchFacts, StagedPage
from penstock.storage.pages.staging import query_path
from penstock.storage.store.store_file import OWN_FILE
from tests.helpers.inside import live_seqs
from tests.helpers.lease_model import Leases, ModelLease, check_leases, leases_of, told
from tests.helpers.stream_judge import check_streams
from tests.helpers.uids import Content, Violation, body_of

__all__ = ["Change", "Content", "Judge", "Ledger", "Model", "Places", "Violation", "body_of"]

Change = tuple[object, ...]
Places = tuple[tuple[int, int], ...]  # (queue number, seq)
_TOP = re.compile(
    r"LOCK|\.vhost|CURRENT|(spill_)?reserve|wal|msg_store_(persistent|transient)|queues|streams|staging"
)
_LOG_FILES_MAX = 5  # in use after recovery, ahead, spares, one that is being deleted


ModelPage = tuple[StagedPage, tuple[Content, ...]]


class ModelBatch:
    """The last batch of a query: its pages and their rows, and which row is the next one; what its
    decision says of its content and its owner."""

    def __init__(self, number: int, pages: tuple[ModelPage, ...], facts: BatchFacts | None) -> None:
        self.number = number
        self.pages = pages
        self.facts = facts
        self.page = 0
        self.frame = 0
        self.holds: dict[int, int] = {}

    def copy(self) -> "ModelBatch":
        other = ModelBatch(self.number, self.pages, self.facts)
        other.page, other.frame, other.holds = self.page, self.frame, dict(self.holds)
        return other

    @property
    def is_done(self) -> bool:
        return self.page >= len(self.pages)


class Model:
    """The state of a vhost as a plain fold of changes; numbers are queue numbers."""

    __slots__ = (
        "attempts", "batches", "high", "keys", "leases", "marks", "names", "params", "queues",
        "readers", "streams",
    )  # fmt: skip

    def __init__(self) -> None:
        self.names: dict[bytes, int] = {}
        self.queues: dict[int, dict[int, Content]] = {}
        self.attempts: dict[int, dict[int, int]] = {}
        self.marks: dict[int, int] = {}
        self.high: dict[int, int] = {}  # one above the highest seq ever used
        self.params: dict[bytes, bytes] = {}
        self.keys: dict[bytes, dict[bytes, int]] = {}  # by queue: those seen, in order -> until
        self.streams: dict[int, list[Content]] = {}
        self.readers: dict[int, dict[str, tuple[int, int | None]]] = {}
        self.batches: dict[str, ModelBatch] = {}
        self.leases: Leases = {}

    def copy(self) -> "Model":
        other = Model()
        other.names = dict(self.names)
        other.queues = {n: dict(q) for n, q in self.queues.items()}
        other.attempts = {n: dict(a) for n, a in self.attempts.items()}
        other.marks = dict(self.marks)
        other.high = dict(self.high)
        other.params = dict(self.params)
        other.keys = {name: dict(keys) for name, keys in self.keys.items()}
        other.streams = {n: list(s) for n, s in self.streams.items()}
        other.readers = {n: dict(r) for n, r in self.readers.items()}
        other.batches = {query: batch.copy() for query, batch in self.batches.items()}
        other.leases = {key: lease.copy() for key, lease in self.leases.items()}
        return other

    def apply(self, change: Change) -> None:
        """One change; its first item names one of the methods below."""
        getattr(self, str(change[0]))(*change[1:])

    def put(self, content: Content, places: Places) -> None:
        for queue, seq in places:
            if queue in self.queues:
                self.queues[queue][seq] = content
                self.high[queue] = max(self.high[queue], seq + 1)

    def take(self, queue: int, seqs: tuple[int, ...]) -> None:
        if queue in self.queues:
            for seq in seqs:
                del self.queues[queue][seq]
                self.attempts[queue].pop(seq, None)

    def purge(self, queue: int, upper: int, kept: frozenset[int]) -> None:
        live = self.queues[queue]
        self.take(queue, tuple(seq for seq in live if seq < upper and seq not in kept))

    def declare(self, name: bytes, number: int) -> None:
        self.names[name] = number
        self.queues[number], self.attempts[number] = {}, {}
        self.marks[number] = self.high[number] = 0

    def delete(self, number: int) -> None:
        for name in [name for name, of in self.names.items() if of == number]:
            self.keys.pop(name, None)
        self.names = {n: q for n, q in self.names.items() if q != number}
        for part in (self.queues, self.attempts, self.marks, self.high, self.streams, self.readers):
            part.pop(number, None)
        self.leases = {key: x for key, x in self.leases.items() if key[0] != number}

    def lease(self, number: int, reader: str, seqs: tuple[int, ...]) -> None:
        self.leases.setdefault((number, reader), ModelLease()).seqs += seqs

    def commit_lease(self, number: int, reader: str, ordinal: int) -> None:
        self.take(number, self.leases[number, reader].take_below(ordinal))

    def release_lease(self, number: int, reader: str, ordinal: int) -> None:
        lease = self.leases[number, reader]
        lease.take_below(ordinal)
        lease.is_releasing = True
        if not lease.seqs:
            del self.leases[number, reader]

    def declare_stream(self, name: bytes, number: int) -> None:
        self.names[name] = number
        self.streams[number], self.readers[number] = [], {}

    def append(self, number: int, content: Content) -> None:
        if number in self.streams:
            self.streams[number].append(content)

    def decide(
        self, query: str, number: int, pages: tuple[ModelPage, ...], facts: BatchFacts | None
    ) -> None:
        self.batches[query] = ModelBatch(number, pages, facts)

    def slice(self, query: str, page: int, frame: int, streams: tuple[int, ...]) -> None:
        """A slice of a batch is moved; what it appends, or publishes, follows."""
        batch = self.batches[query]
        if page < len(batch.pages) and frame >= len(batch.pages[page][1]):
            page, frame = page + 1, 0
        batch.page, batch.frame = page, frame
        for number in streams:
            if number in self.streams:
                batch.holds.setdefault(number, len(self.streams[number]))

    def forget(self, query: str) -> None:
        del self.batches[query]

    def heads(self) -> dict[int, int]:
        """Of the streams that batches hold, where the heads wait."""
        held: dict[int, int] = {}
        for batch in self.batches.values():
            if not batch.is_done:
                for number, offset in batch.holds.items():
                    held[number] = min(held.get(number, offset), offset)
        return held

    def reader(self, number: int, name: str, at: tuple[int, int | None] | None) -> None:
        if at is None:
            self.readers[number].pop(name, None)
        else:
            self.readers[number][name] = at

    def requeue(self, queue: int, attempts: tuple[tuple[int, int], ...]) -> None:
        for seq, count in attempts:
            if seq in self.queues[queue]:
                self.attempts[queue][seq] = count

    def mark(self, queue: int, mark: int) -> None:
        self.marks[queue] = max(self.marks[queue], mark)

    def seen(self, queue: bytes, key: bytes, until_ms: int) -> None:
        keys = self.keys.setdefault(queue, {})
        keys.pop(key, None)
        keys[key] = until_ms

    def param(self, name: bytes, value: bytes) -> None:
        self.params[name] = value


class Ledger:
    """One life of an engine: from an open to a crash or a close.

    base: the model as of base_lsn. ids, numbers: every message id and queue number ever given out,
    also in earlier lives.
    """

    def __init__(self) -> None:
        self.base = Model()
        self.base_lsn = 0
        self.changes: list[tuple[int, Change]] = []
        self.doubtful: list[tuple[int, Change]] = []  # a call failed: it may have happened, or not
        self.ids: dict[int, int] = {}  # message id -> uid
        self.numbers: set[int] = set()
        self._settled: list[tuple[int, int, int, int]] = []  # operation, disk, os, last LSN
        self._folds: dict[int, Model] = {}

    # ---- what happens --------------------------------------------------------------------------

    def note(self, lsn: int, *changes: Change) -> None:
        """The record with this LSN made these changes."""
        for change in changes:
            self.changes.append((lsn, change))

    def doubt(self, lsn: int, *changes: Change) -> None:
        """A call failed whose record would have had this LSN, and may have it."""
        self.doubtful += [(lsn, change) for change in changes]

    def give_id(self, id: int, uid: int) -> None:
        """A message got this id; no id may mean two bodies."""
        if self.ids.setdefault(id, uid) != uid:
            raise Violation(f"id {id:#x} is given to message {uid}, it is that of {self.ids[id]}")

    def settle(self, operation: int, disk: int, os: int, last: int) -> None:
        """Known when this operation of the file system is about to be done."""
        self._settled.append((operation, disk, os, last))

    def watch(self, engine: StorageEngine, operation: int) -> None:
        """Note how far the engine has settled, after this operation."""
        log = engine.log
        self.settle(operation + 1, log.settled(DISK), log.settled(OS), log.last_lsn)

    def known(self, operation: int) -> tuple[int, int, int]:
        """(settled for disk, for os, last LSN) when the operation was done and the next not."""
        disk = os = last = self.base_lsn
        low, high = 0, len(self._settled)
        while low < high:
            middle = (low + high) // 2
            if self._settled[middle][0] <= operation + 1:
                low = middle + 1
            else:
                high = middle
        if low:
            _, disk, os, last = self._settled[low - 1]
        return disk, os, last

    def last_known(self) -> tuple[int, int, int]:
        """The same, now."""
        return self._settled[-1][1:] if self._settled else (self.base_lsn,) * 3

    # ---- what must be --------------------------------------------------------------------------

    def fold(self, lsn: int) -> Model:
        """The model up to this LSN; shared, not for change."""
        found = self._folds.get(lsn)
        if found is None:
            found = self.base.copy()
            for at, change in self.changes:
                if at <= lsn:
                    found.apply(change)
            self._folds[lsn] = found
        return found

    def restarted(self, lsn: int, model: Model) -> "Ledger":
        """The ledger of the next life, which recovery began with this state."""
        after = Ledger()
        after.base, after.base_lsn = model.copy(), lsn
        after.ids, after.numbers = dict(self.ids), set(self.numbers)
        return after

    def check(self, engine: StorageEngine, need: int, last: int) -> tuple[int, Model]:
        """Judge a state that was just recovered; `need`: confirmed, `last`: appended at most.
        Returns the LSN that it is as of and the model."""
        lsn = engine.recovered.end.last_lsn
        if lsn < need:
            raise Violation(f"confirmed up to {need}, recovered up to {lsn}")
        if lsn > last:
            raise Violation(f"recovered up to {lsn}, and {last} was the last record appended")
        model = self.fold(lsn)
        if any(at <= lsn for at, _ in self.doubtful):
            model = self._choose(engine, lsn, model)
        Judge(engine, self, model).check()
        return lsn, model

    def _choose(self, engine: StorageEngine, lsn: int, without: Model) -> Model:
        """Of the two allowed states the one that is nearer: with the failed call, or without."""
        model = self.base.copy()
        for at, change in sorted(self.changes + self.doubtful, key=lambda item: item[0]):
            if at <= lsn:
                model.apply(change)
        live = {n: set(live_seqs(q)) for n, q in engine.state.queues.items()}
        wanted = {n: set(q) for n, q in model.queues.items()}
        params = dict(engine.state.routing.parameters)
        same_params = {name: value for (_, name), value in params.items()} == model.params
        ends = {n: s.next_offset for n, s in engine.streams.by_number.items()}
        same_ends = ends == {n: len(s) for n, s in model.streams.items()}
        readers = {n: {r: (at.offset, at.kept_from) for r, at in s.readers.items()}
                   for n, s in engine.streams.by_number.items()}  # fmt: skip
        is_same = live == wanted and same_params and same_ends and readers == model.readers
        is_same = is_same and places_of(engine) == model_places(model)
        is_same = is_same and keys_of(engine) == model_keys(model)
        is_same = is_same and leases_of(engine) == told(model.leases)
        return model if is_same else without


class Judge:
    """Compares an engine that has just recovered with a model."""

    def __init__(self, engine: StorageEngine, ledger: Ledger, model: Model) -> None:
        self.engine = engine
        self.ledger = ledger
        self.model = model
        self.refs: dict[tuple[int, int], int] = {}  # (file, id) -> references wanted

    def check(self) -> None:
        """All of it; Violation."""
        engine, model = self.engine, self.model
        state = engine.state
        names = {name: queue.number for name, queue in state.routing.queues.items()}
        _same("queues by name", names, model.names)
        _same("queues", sorted(state.queues), sorted(model.queues))
        params = {name: value for (_, name), value in state.routing.parameters.items()}
        _same("parameters", params, model.params)
        _same("keys", keys_of(engine), model_keys(model))
        for number in model.queues:
            self._check_queue(state.queues[number])
        self._check_reaping()
        self._check_references()
        self._check_numbers()
        self._check_files()
        _same("batches", places_of(engine), model_places(model))
        self._check_staged()
        check_leases(engine, model.leases)
        check_streams(engine, model.streams, model.readers, model.heads())

    def _check_staged(self) -> None:
        """What a batch has still to move is there."""
        engine = self.engine
        for query, batch in self.model.batches.items():
            for page, _ in batch.pages[batch.page :]:
                path = f"{query_path(engine.path, query)}/{page.name}"
                if not engine.fs.exists(path):
                    raise Violation(f"{path} is gone, and its rows are not moved")

    def _check_queue(self, queue: QueueIndex) -> None:
        want = self.model.queues[queue.number]
        at = f"queue {queue.number}"
        seqs = live_seqs(queue)
        _same(f"{at}: live seqs", seqs, sorted(want))
        _same(f"{at}: attempts", queue.attempts, self.model.attempts[queue.number])
        total = sum(content[1] for content in want.values())
        _same(f"{at}: count and bytes", (queue.count, queue.bytes), (len(want), total))
        mark, high = self.model.marks[queue.number], self.model.high[queue.number]
        if self.engine.recovered.is_clean:
            _same(f"{at}: mark", queue.mark, mark)
        else:
            _same(f"{at}: mark", queue.mark, min(mark, queue.next_seq))
            if queue.next_seq % queue.slots or queue.next_seq < mark:
                raise Violation(f"{at}: next seq {queue.next_seq}, mark {mark}, unclean stop")
        if queue.next_seq < high:
            raise Violation(f"{at}: next seq {queue.next_seq}, {high - 1} was used")
        for number, segment in queue.segments.items():
            inside = segment.seqs(queue.slots)
            found = self._check_messages(queue, inside, want) if inside else (0, 0)
            _same(
                f"{at}: entries, bytes, store entries of segment {number}",
                (segment.count, segment.bytes, segment.stores), (len(inside), *found),
            )  # fmt: skip
        if set(queue.section) - set(want):
            raise Violation(f"{at}: rows of dead entries {sorted(set(queue.section) - set(want))}")

    def _check_messages(
        self, queue: QueueIndex, seqs: list[int], want: dict[int, Content]
    ) -> tuple[int, int]:
        """Read the live messages of one segment; (bytes, how many are placed in the store)."""
        total = stores = 0
        for seq, message in zip(seqs, self.engine.read(queue, seqs), strict=True):
            uid, size, header = want[seq]
            at = f"queue {queue.number}, seq {seq}"
            body = self.engine.load_body(queue, seq, message)
            if body != body_of(uid, size):
                raise Violation(f"{at}: the body is {body[:20]!r}, it should be that of {uid}")
            _same(f"{at}: header", message.header, header)
            _same(f"{at}: message of the id", self.ledger.ids.get(message.id), uid)
            total += size
            row = queue.section.get(seq)
            if message.store_file:
                stores += 1
                self._want(message.store_file, message.id)
            elif row is not None and row.body_file:
                self._want(row.body_file, message.id)
            if message.size:
                message.body = None
        return total, stores

    def _want(self, file: int, id: int) -> None:
        if not file & OWN_FILE:
            found = self.engine.state.store.file_of(file)
            if found is None:
                raise Violation(f"no store file answers for number {file}")
            file = found.lo
        self.refs[file, id] = self.refs.get((file, id), 0) + 1

    def _check_reaping(self) -> None:
        """What was purged and is still to be released counts as a reference."""
        state = self.engine.state
        for (number, segment), bits in state.reaping.items():
            queue = state.index_of(number)
            if queue is None:
                raise Violation(f"purged slots of queue {number}, which is not there at all")
            refs, faults = state.purged_refs(queue, segment, bits)
            if faults:
                raise Violation(f"a purged slot cannot be read: {faults[0]}")
            for id, file, _ in refs:
                self._want(file, id)

    def _check_references(self) -> None:
        store = self.engine.state.store
        found = {(file, id): store.refs(file, id) for file, id in self.refs}
        _same("references of stored bodies", found, self.refs)
        if store.live_count != len(self.refs):
            raise Violation(
                f"{store.live_count} bodies are alive in the store, "
                f"{len(self.refs)} are referred to"
            )

    def _check_numbers(self) -> None:
        """Ids and queue numbers go on beyond everything ever given out."""
        state = self.engine.state
        if any(id >> START_SHIFT >= state.factory.start for id in self.ledger.ids):
            raise Violation(f"start number {state.factory.start} was used before")
        if any(number >= state.next_queue for number in self.ledger.numbers):
            raise Violation(f"next queue number {state.next_queue} was given out before")

    def _check_files(self) -> None:
        """Every name in the directory is one that something needs."""
        engine = self.engine
        fs, path, state = engine.fs, engine.path, engine.state
        top = {name for name in fs.list(path) if not _TOP.fullmatch(name)}
        _same("files of the directory", top, {f"checkpoint-{engine.checkpoints.number}"})
        known: dict[str, QueueIndex] = {}
        for queue in (*state.queues.values(), *state.dying.values()):
            known[queue.path.rpartition("/")[2]] = queue
        for name in fs.list(path + "/queues"):
            if name not in known:
                raise Violation(f"queues/{name} belongs to no queue")
            self._check_queue_files(known[name], name)
        numbers = {str(file.number) for file in state.store.files}
        bins = 0
        for name in fs.list(path + "/msg_store_persistent"):
            if fs.is_dir(f"{path}/msg_store_persistent/{name}"):
                bins += len(fs.list(f"{path}/msg_store_persistent/{name}"))
            elif name.partition(".")[0] not in numbers or name.endswith(".new"):
                raise Violation(f"msg_store_persistent/{name} belongs to no file of the store")
        _same("own files", bins, sum(1 for file, _ in self.refs if file & OWN_FILE))
        log = fs.list(path + "/wal")
        if len(log) > _LOG_FILES_MAX:
            raise Violation(f"log files are left: {log}")

    def _check_queue_files(self, queue: QueueIndex, directory: str) -> None:
        for name in self.engine.fs.list(queue.path):
            stem, _, ending = name.rpartition(".")
            if name == ".queue_name":
                continue
            key = (queue.number, int(stem))
            if ending not in ("qi", "qs") or (
                int(stem) not in queue.segments and key not in self.engine.state.reaping
            ):
                raise Violation(f"queues/{directory}/{name} belongs to no segment")


Keys = dict[bytes, list[tuple[bytes, int]]]
Moved = dict[str, tuple[int, int, int, BatchFacts | None]]


def places_of(engine: StorageEngine) -> Moved:
    """query -> (number of its last batch, page, frame, facts) of an engine."""
    batches = engine.state.batches.by_query
    return {query: (b.number, b.page, b.frame, b.facts) for query, b in batches.items()}


def model_places(model: Model) -> Moved:
    return {query: (b.number, b.page, b.frame, b.facts) for query, b in model.batches.items()}


def keys_of(engine: StorageEngine) -> Keys:
    """The keys that windows of queues have, in order."""
    windows = engine.windows.by_name.items()
    return {name[1:]: list(window.keys.items()) for name, window in windows if window.keys}


def model_keys(model: Model) -> Keys:
    return {name: list(keys.items()) for name, keys in model.keys.items()}


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Violation(f"{what}: {found!r}, should be {wanted!r}")
