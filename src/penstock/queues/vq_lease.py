"""Leases of a VariableQueue: what leaves it for a reader, and what comes back.

A lease takes heads as a fetch does: in order, never one that is expired or held by a record that is
not settled. But what is taken is not pending here: once the engine has the LEASE it is on its slot,
its bit is set in the index, and this queue knows it no more. So a million leased messages cost
nothing, and no step of paging ever sees them; `ready_on_disk` leaves them out.

    take       heads leave the queue, with their bodies; nobody has them, for the time of one call
    untake     the lease came to nothing: they are where they were
    leased     the engine has the record: the delivered mark is raised, transient messages (which
               live on as persistent ones, at other seqs) are released
    returning  rows of leased messages that are about to be released; what may fail is done here
    readmit    they are ready, at their old places, as what is requeued

A first delivery otherwise waits for the delivered mark (delivered_mark.py). Here it does not: the
mark is raised in the very record that leases, which is what the reader's answer waits for.

A message without a good body is set aside as it is in a fetch.
"""

from abc import abstractmethod

from penstock.errors import CorruptionError
from penstock.message import Entry
from penstock.queues import inhaler, purger, vq_requeue
from penstock.queues.rows import Row
from penstock.queues.vq_pending import VqPending
from penstock.queues.vq_state import alpha_bytes
from penstock.shared_body import SharedMessage
from penstock.storage.lease_engine import Taken
from penstock.storage.queue_index import QueueIndex


class VqLease(VqPending):
    """The base of VariableQueue above VqPending."""

    @abstractmethod
    def _read_run(self) -> bool:
        """The next run of q3 becomes q4. False if there is none."""

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        state = self.state
        entries: list[Entry] = []
        bodies: list[bytes] = []
        left = bytes_max
        try:
            while len(entries) < messages_max and (state.head_in_ram() or self._refill()):
                size = self._take_run(entries, bodies, messages_max, left, now_ms)
                if size < 0:
                    break
                left -= size
            if state.is_lazy and state.q4:
                purger.push_q4(state, len(state.q4))
        except BaseException:
            self._untake(entries)
            raise
        state.rates.n_out += len(entries)
        self._after()
        if not entries:
            return []
        return [Taken(self._index, entries, bodies, self._mark_for(entries))]

    def _refill(self) -> bool:
        """The head is not in RAM: what comes next is read. False if nothing does."""
        inhaler.settle(self.state, purger.load_rows(self.state))
        return self.state.head_in_ram() or (self.state.len > 0 and self._read_run())

    def _take_run(
        self, entries: list[Entry], bodies: list[bytes], messages_max: int, bytes_max: int,
        now_ms: int,
    ) -> int:  # fmt: skip
        """Take from q4 until it is empty or there are enough; bytes of the bodies. -1: what comes
        next is not to be taken now."""
        state, q4 = self.state, self.state.q4
        taken = cost = n = 0
        is_over = False
        holds = self.mark.holds
        try:
            while len(entries) < messages_max and state.head_in_ram():
                entry = q4[0]
                message = entry.message
                size = message.size
                is_over = (taken + size > bytes_max and len(entries) > 0) or (
                    0 < message.expiry_ms <= now_ms
                )
                if not is_over and holds:
                    is_over = self._is_held(entry.seq)
                if is_over:
                    break
                body = message.body
                if body is None:
                    try:
                        body = self._body(entry)
                    except CorruptionError as error:
                        q4.popleft()
                        cost += alpha_bytes(message)
                        inhaler.set_aside(state, entry.seq, size, error)
                        continue
                q4.popleft()
                if isinstance(message, SharedMessage):
                    message.shared.leave(state.shared)
                cost += alpha_bytes(message)
                taken += size
                n += 1
                entries.append(entry)
                bodies.append(body)
        finally:
            state.alpha_bytes -= cost
            state.len -= n
            state.bytes -= taken
        return -1 if is_over else taken

    def _body(self, entry: Entry) -> bytes:
        body = self._with_body(entry).body
        assert body is not None, "asked for with its body"
        return body

    def _is_held(self, seq: int) -> bool:
        rate = self.state.rates.out
        return self.mark.waits_for(seq, has_mark=False, out_per_s=rate) is not None

    def may_take(self) -> bool:
        state = self.state
        if not state.len:
            return False
        if not self.mark.holds:
            return True
        head = self.head()
        return head is not None and not self._is_held(head.tag)

    def leased_count(self) -> int:
        return self._index.leased.count

    def _mark_for(self, entries: list[Entry]) -> int:
        """The mark that is to be logged with a lease of these."""
        for entry in reversed(entries):
            if entry.message.persistent:
                return self.mark.beyond(entry.seq, self.state.rates.out)
        return 0

    def untake(self, taken: list[Taken]) -> None:
        for one in taken:
            self._untake(one.entries)
        self._after()

    def _untake(self, entries: list[Entry]) -> None:
        state = self.state
        state.len += len(entries)
        state.bytes += sum([entry.message.size for entry in entries])
        state.join(entries)
        vq_requeue.put_back(state, entries, [])

    def leased(self, taken: list[Taken], lsn: int) -> None:
        mark = self.mark
        for one in taken:
            for entry in one.entries:
                if not entry.message.persistent:
                    self._release(entry)
                elif entry.seq >= mark.delivered:
                    mark.delivered = entry.seq + 1
            if one.mark:
                mark.logged(one.mark, lsn)
            if self._counted:
                self._counted.difference_update([entry.seq for entry in one.entries])
        self._checked()

    # ---- coming back ---------------------------------------------------------------------------

    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        return inhaler.rows_on_disk(self.state, seqs, set())

    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        state = self.state
        state.len += len(seqs)
        state.bytes += sum([row.size for row in rows])
        state.rates.n_in += len(rows)
        good = {row.seq for row in rows}
        for seq in seqs:
            if seq not in good:
                text = f"the slot of leased seq {seq} does not verify"
                inhaler.set_aside(state, seq, 0, CorruptionError(index.path, 0, text))
        vq_requeue.put_back(state, [], rows)
        self._after()
        if purger.is_over(state):
            self.paging.step(purger.SLICE_MESSAGES, purger.SLICE_BYTES)
        self._checked()
