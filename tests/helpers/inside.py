"""What tests do inside of parts of the product that nothing else needs."""

import gc
import struct
from collections.abc import Callable

from penstock.broker.dispatch import Dispatch
from penstock.fast_crc import crc32
from penstock.protocol.connection import Connection
from penstock.protocol.states import ChannelState
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.store.message_store import MessageStore


def live_seqs(queue: QueueIndex) -> list[int]:
    """All live persistent seqs, ascending."""
    return [seq for n in sorted(queue.segments) for seq in queue.segments[n].seqs(queue.slots)]


def sync_now(store: MessageStore) -> None:
    """Take a sync op, run it here and note its result. Raises SyncFailedError."""
    store.unsynced.synced(store.unsynced.take()())


def encode_frame(seed: int, rel: int, time_us: int, payload: bytes, meta: bytes) -> bytes:
    """A frame of a page. rel: offset - base of the page."""
    checked = struct.pack("<IIIq", len(payload), len(meta), 0, time_us) + payload + meta
    return crc32(checked, seed ^ (rel & 0xFFFFFFFF)).to_bytes(4, "little") + checked


def is_channel_open(connection: Connection, channel: int) -> bool:
    """Whether the peer may use the channel and we have not closed it."""
    known = connection._channels.get(channel)
    return known is not None and known.state in (ChannelState.OPENING, ChannelState.OPEN)


def is_log_awaited(dispatch: Dispatch) -> bool:
    """Whether something waits until the log is ready for a large record."""
    return bool(dispatch.engine.journal._waiting)


def awaited_lsn(dispatch: Dispatch) -> int:
    """The highest LSN that something waits for, 0 if nothing does."""
    waiting = max([lsn for lsn, _, _ in dispatch._waiting], default=0)
    return max(waiting, dispatch.engine.log.last_lsn) if dispatch._unconfirmed else waiting


def in_cycles(act: Callable[[], None]) -> list[str]:
    """The names of the types of Penstock's objects that `act` leaves in cycles."""
    gc.collect()
    gc.disable()
    try:
        act()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted(
            type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("penstock.")
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
