"""The judge of streams after a recovery, and the reader who has pages mapped while all goes on.

`check_streams` reads every stream of an engine as a reader does, up to its head, and compares with
the plain lists of a model: nothing lost, nothing twice, no offset that is not a record's; first
offsets are page borders; readers are where they said; times do not go back; no file is left that
belongs to nothing.

`Mapped` stands for a process that maps pages up to the head that writeMeta says, the one promise
that is about bytes: from the moment of its publication no byte below a head may change, and no file
be cut below it, while its owner works, dies and recovers. It looks at each operation of the file
system.
"""

from penstock.errors import CorruptionError
from penstock.storage.engine import StorageEngine
from penstock.storage.pages.stream_meta import WRITE_META, decode_head
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.pages.streams import StoredStream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.simulated_disk import Change
from tests.helpers.uids import Content, Violation, body_of

Readers = dict[int, dict[str, tuple[int, int | None]]]


def check_streams(
    engine: StorageEngine, wanted: dict[int, list[Content]], readers: Readers,
    held: dict[int, int] | None = None,
) -> None:  # fmt: skip
    """Every stream of an engine that has just recovered is as the model says; Violation. held: the
    heads that batches hold."""
    streams = engine.streams.by_number
    if sorted(streams) != sorted(wanted):
        raise Violation(f"streams {sorted(streams)}, should be {sorted(wanted)}")
    for number, stream in streams.items():
        at = f"stream {number}"
        records = wanted[number]
        ends = (stream.next_offset, stream.head_offset)
        head = len(records) if held is None else held.get(number, len(records))
        if ends != (len(records), head):
            raise Violation(f"{at}: next offset and head {ends}, should be {len(records)}, {head}")
        check_records(stream, records)
        found = {name: (r.offset, r.kept_from) for name, r in stream.readers.items()}
        if found != readers[number]:
            raise Violation(f"{at}: readers {found}, should be {readers[number]}")
        _check_files(engine, stream)
        view = StreamView(engine.fs, stream.path)
        seen = (view.first_offset(), view.head().next_offset)
        view.close()
        if seen != (stream.first_offset, stream.head_offset):
            raise Violation(f"{at}: who reads beside its owner sees {seen}")
    known = {stream.path.rpartition("/")[2] for stream in streams.values()}
    for name in engine.fs.list(engine.path + "/streams"):
        if name not in known:
            raise Violation(f"streams/{name} belongs to no stream")


def check_records(stream: StoredStream, records: list[Content]) -> None:
    """What a reader gets from the first offset to the head are these records; Violation."""
    wanted = stream.first_offset
    last_time = 0
    while wanted < stream.head_offset:
        found = stream.queue.read(wanted, 7, 1 << 20)
        if not found:
            raise Violation(f"nothing at {wanted}, the head is {stream.head_offset}")
        for one in found:
            uid, size, header = records[wanted]
            if one.offset != wanted or one.payload != body_of(uid, size) or one.meta != header:
                text = f"{one!r} at offset {wanted}, should be message {uid}"
                raise Violation(f"stream {stream.number}: {text}")
            if one.time_us < last_time:
                raise Violation(f"stream {stream.number}: time goes back at offset {wanted}")
            last_time = one.time_us
            if stream.queue.find(one.time_us) > wanted:
                raise Violation(f"stream {stream.number}: offset {wanted} is not found by its time")
            wanted += 1


def _check_files(engine: StorageEngine, stream: StoredStream) -> None:
    """Pages follow one another from the first one on, and there is nothing else."""
    fs = engine.fs
    bases = []
    for name in fs.list(stream.path):
        stem, _, ending = name.partition(".")
        if ending == "page":
            bases.append(int(stem))
        elif ending == "idx":
            if not fs.exists(f"{stream.path}/{stem}.page"):
                raise Violation(f"{stream.path}/{name} is an index without a page")
        elif name not in ("allMeta", "readMeta", "writeMeta", ".queue_name"):
            raise Violation(f"{stream.path}/{name} belongs to nothing")
    base = stream.queue.position().page_base
    if [b for b in bases if not stream.first_offset <= b <= base]:
        text = f"pages {bases}, first offset {stream.first_offset}, active page {base}"
        raise Violation(f"{stream.path}: {text}")


class Mapped:
    """Readers of all streams on a file system, who never see a byte change. `seen`: path of a page
    -> its bytes below the head."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.fs = fs
        self.seen: dict[str, bytes] = {}
        self._apply_below = fs._apply
        fs._apply = self._apply  # type: ignore[method-assign]  # to see every operation

    def map_all(self, directory: str) -> None:
        """Map what is on the disk now: a reader who outlives the owner's process."""
        if self.fs.exists(directory):
            for name in self.fs.list(directory):
                path = f"{directory}/{name}/{WRITE_META}"
                if self.fs.exists(path):
                    self._publish(path)

    def _apply(self, kind: str, path: str, change: Change) -> None:
        self._apply_below(kind, path, change)
        if "/staging/" in path and kind == "pwrite":  # it may be a page of a stream, too
            for page in self.seen:
                self._look(kind, page)
        if "/streams/" not in path:
            return
        if kind in ("unlink", "rmdir", "rename"):
            self.seen.pop(path, None)
        elif path.endswith(".page"):
            self._look(kind, path)
        elif path.endswith("/" + WRITE_META) and kind == "pwrite":
            self._publish(path)

    def _look(self, kind: str, path: str) -> None:
        before = self.seen.get(path)
        if before is not None and self.fs.exists(path):
            now = self.fs.read(path)[: len(before)]
            if now != before:
                at = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
                          len(now))  # fmt: skip
                text = f"{kind} of {path} changes byte {at}, and a reader has {len(before)}"
                raise Violation(text)

    def _publish(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        try:
            head = decode_head(path, self.fs.read(path))
        except CorruptionError:
            return  # half written, by a fault
        for name in self.fs.list(directory):
            stem, _, ending = name.partition(".")
            if ending != "page" or int(stem) > head.page_base:
                continue
            content = self.fs.read(f"{directory}/{name}")
            if int(stem) == head.page_base:
                if len(content) < head.page_bytes:
                    text = f"the head is at byte {head.page_bytes} of a page of {len(content)}"
                    raise Violation(f"{directory}/{name}: {text}")
                content = content[: head.page_bytes]
            self.seen[f"{directory}/{name}"] = content
