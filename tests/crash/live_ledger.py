"""The ledger of the kill loop: what the clients were told, and what must be found after the kill.

It lives in the test's process, which is not killed. A message is *sent* (nothing known),
*confirmed* or *refused*; a transaction is *open*, *asked* (commit sent, answer unknown) or
*committed*. The
audit after each restart empties every queue inside a transaction, so that what it took can never
come back, and then the rules are asked one by one:

- everything confirmed and not settled is there; nothing is there that was never sent, or damaged;
- a transaction is there with all its parts or with none, its acknowledgement included;
- what was seen before comes again only with redelivered set;
- first sights of one queue come in the order of publishing;
- a message that dies is in its queue or among the dead letters, in one of them, and once.

Not here: the clients (live_clients.py), who kills (test_live_broker.py).
"""

import zlib
from collections import Counter
from dataclasses import dataclass, field

TX_QUEUES = ("tx.a", "tx.b", "tx.c")


def make_body(queue: str, number: int, padding: bytes) -> bytes:
    """queue, number and a checksum, then what fills it up."""
    head = b"%s %d " % (queue.encode(), number)
    return head + b"%08x " % zlib.crc32(head + padding) + padding


def read_body(data: bytes) -> tuple[str, int]:
    """(queue, number). Raises AssertionError if one byte is not as sent."""
    queue, number, checksum, padding = data.split(b" ", 3)
    head = b"%s %s " % (queue, number)
    assert zlib.crc32(head + padding) == int(checksum, 16), f"damaged: {data[:60]!r}"
    return queue.decode(), int(number)


@dataclass
class Transaction:
    """number: the same in all queues. taken: what it acknowledges of "work", or -1."""

    number: int
    taken: int = -1
    state: str = "open"


@dataclass
class Ledger:
    """One broker's whole history. Numbers go up over all cycles; one writer for each queue."""

    next_number: int = 0
    sent: dict[str, list[int]] = field(default_factory=dict)
    confirmed: dict[str, set[int]] = field(default_factory=dict)
    refused: dict[str, set[int]] = field(default_factory=dict)
    settled: dict[str, set[int]] = field(default_factory=dict)  # acks sent: may or may not be known
    over: dict[str, set[int]] = field(default_factory=dict)  # taken in a transaction that committed
    seen: dict[str, set[int]] = field(default_factory=dict)
    first_seen: dict[str, list[int]] = field(default_factory=dict)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    events: int = 0
    mistakes: list[str] = field(default_factory=list)

    def new_number(self) -> int:
        self.next_number += 1
        return self.next_number

    def sending(self, queue: str, number: int) -> None:
        self.sent.setdefault(queue, []).append(number)

    def confirm(self, queue: str, number: int, is_good: bool) -> None:
        (self.confirmed if is_good else self.refused).setdefault(queue, set()).add(number)
        self.events += 1

    def settle(self, queue: str, number: int) -> None:
        self.settled.setdefault(queue, set()).add(number)
        self.events += 1

    def see(self, queue: str, data: bytes, is_redelivered: bool) -> int:
        """A delivery from `queue`, which may be another than it was published to. Its number."""
        origin, number = read_body(data)
        seen = self.seen.setdefault(queue, set())
        if number in seen:
            if not is_redelivered:
                self.mistakes.append(f"{queue}: {number} came again and looked fresh")
        else:
            seen.add(number)
            self.first_seen.setdefault(queue, []).append(number)
        if number in self.over.get(queue, ()):
            self.mistakes.append(f"{queue}: {number} was taken in a transaction and came again")
        known = number in self.transactions if origin in TX_QUEUES else True
        if not known or (origin not in TX_QUEUES and number not in self._sent_set(origin)):
            self.mistakes.append(f"{queue}: {number} was never sent")
        return number

    def _sent_set(self, queue: str) -> set[int]:
        numbers = self.sent.get(queue, [])
        cache = self.__dict__.setdefault("_sets", {})
        known, count = cache.get(queue, (set(), 0))
        if count < len(numbers):
            known.update(numbers[count:])
            cache[queue] = (known, len(numbers))
        return known  # type: ignore[no-any-return]

    # --- the audit ---

    def audit(self, found: dict[str, list[int]]) -> list[str]:
        """Judges what was found, the numbers of each queue; forgets the cycle. Mistakes, if any."""
        for queue, numbers in found.items():
            for number, count in Counter(numbers).items():
                if count > 1:
                    self.mistakes.append(f"{queue}: {number} is there {count} times")
        for one in self.transactions.values():
            if one.taken >= 0 and one.state != "open":  # judged with its transaction
                self.settled.setdefault("work", set()).add(one.taken)
            if one.taken >= 0 and one.state == "committed":
                self.over.setdefault("work", set()).add(one.taken)
        for queue in ("plain", "work"):
            self._audit_kept(queue, set(found[queue]))
        self._audit_transactions(found)
        for alive, dead in (("retry", "dead"), ("brief", "expired")):
            self._audit_moved(alive, set(found[alive]), dead, set(found[dead]))
        for queue in found:
            self._audit_order(queue)
            self.over.setdefault(queue, set()).update(found[queue])
        self._forget()
        told, self.mistakes = self.mistakes, []
        return told

    def _missing(self, queue: str, there: set[int]) -> set[int]:
        return self.confirmed.get(queue, set()) - there - self.over.get(queue, set())

    def _audit_kept(self, queue: str, there: set[int]) -> None:
        lost = self._missing(queue, there) - self.settled.get(queue, set())
        self.mistakes += [f"{queue}: {number} was confirmed and is lost" for number in sorted(lost)]

    def _audit_transactions(self, found: dict[str, list[int]]) -> None:
        places = {queue: set(found[queue]) for queue in TX_QUEUES}
        work = set(found["work"])
        for number, one in self.transactions.items():
            count = sum(number in there for there in places.values())
            parts = [count == len(TX_QUEUES)] if count in (0, len(TX_QUEUES)) else []
            if one.taken >= 0:
                parts.append(one.taken not in work)
            wanted = {"open": {False}, "asked": {False, True}, "committed": {True}}[one.state]
            if count not in (0, len(TX_QUEUES)) or len(set(parts)) > 1 or parts[0] not in wanted:
                self.mistakes.append(
                    f"transaction {number} ({one.state}): in {count} of {len(TX_QUEUES)} queues, "
                    f"took {one.taken}, which is {'in' if one.taken in work else 'not in'} work"
                )

    def _audit_moved(self, alive: str, kept: set[int], dead: str, moved: set[int]) -> None:
        for number in sorted(kept & moved):
            self.mistakes.append(f"{number} is in {alive} and in {dead}")
        gone = self.over.get(dead, set())
        for number in sorted(self._missing(alive, kept | moved) - gone):
            self.mistakes.append(f"{alive}: {number} was confirmed and is neither there nor {dead}")
        for number in sorted((kept | moved) & gone):
            self.mistakes.append(f"{number} was taken from {dead} and is back")

    def _audit_order(self, queue: str) -> None:
        numbers = self.first_seen.get(queue, [])
        if queue != "dead" and numbers != sorted(numbers):
            at = next(i for i, n in enumerate(numbers[1:]) if n < numbers[i])
            self.mistakes.append(f"{queue}: first {numbers[at]}, then {numbers[at + 1]}")

    def _forget(self) -> None:
        """What the audit has seen to: it is over, and never comes again."""
        for table in (self.confirmed, self.settled, self.first_seen):
            for queue in table:
                table[queue] = type(table[queue])()
        self.transactions.clear()
