"""The dump of a checkpoint file: its header, its sections, and all that is in them.

A section whose checksum does not match is marked and not decoded; the next one is looked for where
its length says. See `dump.py` for the lines, `checkpoint.py` and `store_state.py` for the formats.
"""

import struct
from collections.abc import Iterator

from penstock.fast_crc import crc32
from penstock.storage import checkpoint, leases
from penstock.storage.batches import decode_section
from penstock.storage.checkpoint import Manifest
from penstock.storage.dump_text import at, section_lines
from penstock.storage.leases import Lease
from penstock.storage.queue_index import IndexSegment, Section
from penstock.storage.record_types import lease_runs_text
from penstock.storage.routing_table import topology_text
from penstock.storage.store_state import FileState
from penstock.storage.streams import StreamSection

_FILE = struct.Struct(">4sHHQQI")
_SECTION = struct.Struct(">III")

KINDS = {
    checkpoint.END: "END", checkpoint.HEAD: "HEAD", checkpoint.TOPOLOGY: "TOPOLOGY",
    checkpoint.QUEUE: "QUEUE", checkpoint.STORE: "STORE", checkpoint.REAPING: "REAPING",
    checkpoint.STREAM: "STREAM", checkpoint.LEASE: "LEASE",
    checkpoint.BATCH: "BATCH",
}  # fmt: skip


def dump(data: bytes) -> Iterator[str]:
    """The lines of a checkpoint file."""
    if len(data) < _FILE.size:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, crc = _FILE.unpack_from(data)
    text = (
        f"header {magic!r} version {version} flags {flags}"
        f"{' (clean)' if flags & checkpoint.CLEAN else ''} vhost {vhost:016x} number {number}"
    )
    is_good = magic == checkpoint.MAGIC and crc32(data[: _FILE.size - 4]) == crc
    yield at(0, text if is_good else "DAMAGED " + text)
    manifest = Manifest()
    position, place = _FILE.size, 0
    while position < len(data):
        if position + _SECTION.size > len(data):
            yield at(position, f"DAMAGED, cut off at {len(data)}")
            return
        kind, length, crc = _SECTION.unpack_from(data, position)
        section = data[position + _SECTION.size : position + _SECTION.size + length]
        text = f"section {place} {KINDS.get(kind, kind)}, {length} bytes"
        seed = checkpoint.section_seed(vhost, number, kind, place)
        if len(section) != length or crc32(section, seed) != crc:
            yield at(position, "DAMAGED " + text)
        else:
            yield at(position, text)
            try:
                for line in _section(manifest, kind, section):
                    yield at(position, "  " + line)
            except (ValueError, struct.error, IndexError) as error:
                yield at(position, f"  DAMAGED: {error}")
        position += _SECTION.size + length
        place += 1


def _section(  # noqa: C901 - a case for each kind
    manifest: Manifest, kind: int, data: bytes
) -> Iterator[str]:
    if kind == checkpoint.END:
        yield f"{int.from_bytes(data, 'big')} sections before it"
        return
    known = len(manifest.topology)
    numbers = set(manifest.queues)
    checkpoint.apply_section(manifest, kind, data)
    if kind == checkpoint.HEAD:
        head = manifest.head
        yield (
            f"cut {head.cut_lsn} log segment {head.log_segment} position {head.log_position} "
            f"start {head.start} next queue {head.next_queue} slots {head.segment_slots} "
            f"next store file {head.next_store_file} next own file {head.next_own_file}"
        )
    elif kind == checkpoint.TOPOLOGY:
        for record in manifest.topology[known:]:
            yield topology_text(record)
    elif kind == checkpoint.QUEUE:
        for number in set(manifest.queues) - numbers:
            yield from _queue(number, manifest.queues[number], manifest.head.segment_slots)
    elif kind == checkpoint.STORE:
        yield from _state(FileState.decode(data))
    elif kind == checkpoint.REAPING:
        for (queue, segment), bits in manifest.reaping.items():
            yield f"queue {queue} segment {segment}: purged slots {bits.hex()}"
    elif kind == checkpoint.STREAM:
        number, stream = next(reversed(manifest.streams.items()))
        yield from _stream(number, stream)
    elif kind == checkpoint.LEASE:
        yield from _lease(leases.decode(data))
    elif kind == checkpoint.BATCH:
        yield from section_lines(decode_section(data))


def _lease(lease: Lease) -> Iterator[str]:
    yield (
        f"queue {lease.queue} reader {lease.reader!r} id {lease.id.hex()} committed "
        f"{lease.committed} next {lease.next} latest time {lease.last_s}"
        f"{', is being released' if lease.is_releasing else ''}"
    )
    for one in lease.slices:
        runs = ", ".join(lease_runs_text(one.runs()))
        yield f"  from {one.ordinal} time {one.time_ms} floor {one.floor_s}: {runs}"


def _stream(number: int, section: StreamSection) -> Iterator[str]:
    p = section.position
    yield (
        f"stream {number} id {section.stream_id.hex()} first {p.first_offset} next "
        f"{p.next_offset} page {p.page_base} position {p.page_bytes} last time {p.last_time_us}"
    )
    for name, reader in section.readers.items():
        kept = "" if reader.kept_from is None else f" keeps from {reader.kept_from}"
        yield f"  reader {name!r} offset {reader.offset}{kept} time {reader.time_ms}"


def _queue(number: int, section: Section, slots: int) -> Iterator[str]:
    yield (
        f"queue {number} next seq {section.next_seq} mark {section.mark} "
        f"count {section.count} bytes {section.bytes}"
    )
    for segment in section.segments.values():
        yield "  " + _segment_text(segment, slots)
    for seq, row in section.rows.items():
        m = row.message
        expiry = f" expiry {m.expiry_ms}" if m.expiry_ms else ""
        yield (
            f"  row seq {seq} id {m.id:#x} size {m.size} time {m.time}{expiry} "
            f"store file {m.store_file} body file {row.body_file} header {m.header!r}"
        )
    for seq, attempts in section.attempts.items():
        yield f"  attempts seq {seq}: {attempts}"


def _segment_text(segment: IndexSegment, slots: int) -> str:
    alive = "all" if segment.bitmap is None else f"bitmap {segment.bitmap.hex()}"
    return (
        f"segment {segment.number} seqs {segment.lo}..{segment.hi} of {slots}, {alive}, count "
        f"{segment.count} bytes {segment.bytes} stores {segment.stores} "
        f"latest expiry {segment.expiry_ms}"
    )


def _state(state: FileState) -> Iterator[str]:
    own = state.own
    if own is not None:
        yield (
            f"own files: next {own.next_number} base {own.base} live {own.live_count} "
            f"bytes {own.live_bytes}"
        )
        for number in own.numbers():
            yield f"  file {number} references {own.refs(number)}"
        return
    counts = state.counts
    yield (
        f"file {state.number} answers for {state.lo}..{state.hi} "
        f"{'sealed' if state.is_sealed else 'unsealed'} entries {counts.count} live "
        f"{counts.live_count} bytes {state.total_bytes} valid {counts.valid_bytes}"
    )
    ids = state.ids
    for place in range(counts.count):
        if counts.refs(place):
            id = "" if ids is None else f" id {ids[place]:#x}"
            yield f"  entry {place}{id} references {counts.refs(place)}"
