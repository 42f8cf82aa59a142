"""A channel's deliveries that are not settled yet, by delivery tag.

Delivery tags count up from 1 and are settled roughly in that order, so they are in a ring: a list
whose length is a power of two, at the place `tag & mask`, from the oldest open one (`base`) to the
next tag. When old deliveries stay open while many others are settled, the old ones are moved aside
into a dict, so the ring does not grow with the distance. Of a pending message only its place is
kept here; its body may have left RAM.

The channel counts the prefetch.

Hot: one call for each delivery, one for each ack.
"""

from typing import Final

from penstock.broker.broker_queue import Consumer
from penstock.broker.dispatch import Source
from penstock.native import mypyc_attr

RING_MIN: Final = 16
ASIDE_FROM: Final = 1024  # smaller rings are not worth it
UNACKED_BYTES: Final = 120  # what one costs in RAM, for the count: the object and its place


@mypyc_attr(acyclic=True)
class Delivered:
    """A message that was delivered: the source it is pending in, its tag there, and the consumer,
    or None after a basic.get."""

    __slots__ = ("consumer", "source", "tag")

    def __init__(self, source: Source, tag: int, consumer: Consumer | None) -> None:
        self.source: Source = source
        self.tag: int = tag
        self.consumer: Consumer | None = consumer


class Unacked:
    """The unacked deliveries of one channel. `count`: how many; `next_tag`: the next delivery
    tag."""

    def __init__(self) -> None:
        self.count: int = 0
        self.next_tag: int = 1
        self._base: int = 1  # nothing below it is open, but what is aside
        self._mask: int = RING_MIN - 1
        self._ring: list[Delivered | None] = [None] * RING_MIN
        self._aside: dict[int, Delivered] = {}  # below the base, ascending

    def add(self, source: Source, tag: int, consumer: Consumer | None) -> int:
        """Add a delivery that will be settled; return its delivery tag."""
        delivery_tag = self.next_tag
        if delivery_tag - self._base > self._mask:
            self._make_room()
        self._ring[delivery_tag & self._mask] = Delivered(source, tag, consumer)
        self.next_tag = delivery_tag + 1
        self.count += 1
        return delivery_tag

    def skip(self) -> int:
        """Return the delivery tag of a delivery that needs no settling (no_ack)."""
        delivery_tag = self.next_tag
        if not self.count:
            self._base = delivery_tag + 1
        elif delivery_tag - self._base > self._mask:
            self._make_room()
        self.next_tag = delivery_tag + 1
        return delivery_tag

    def get(self, delivery_tag: int) -> Delivered | None:
        """Return the open delivery of this tag, which stays open; None if there is none."""
        if self._base <= delivery_tag < self.next_tag:
            return self._ring[delivery_tag & self._mask]
        return self._aside.get(delivery_tag)

    def take(self, delivery_tag: int) -> Delivered | None:
        """Remove and return the open delivery of this tag; None if there is none."""
        if not self._base <= delivery_tag < self.next_tag:
            aside = self._aside.pop(delivery_tag, None)
            if aside is not None:
                self.count -= 1
            return aside
        at = delivery_tag & self._mask
        found = self._ring[at]
        if found is not None:
            self._ring[at] = None
            self.count -= 1
            if delivery_tag == self._base:
                self._advance()
        return found

    def _advance(self) -> None:
        base, ring, mask = self._base, self._ring, self._mask
        end = self.next_tag
        if self.count == len(self._aside):
            self._base = end
            return
        while base < end and ring[base & mask] is None:
            base += 1
        self._base = base

    def take_up_to(self, delivery_tag: int) -> list[Delivered]:
        """Remove and return all open deliveries up to this tag (0: all), oldest first."""
        end = self.next_tag if not delivery_tag else min(delivery_tag + 1, self.next_tag)
        taken: list[Delivered] = []
        if self._aside:
            taken = [d for tag, d in self._aside.items() if tag < end]
            self._aside = {tag: d for tag, d in self._aside.items() if tag >= end}
        ring, mask = self._ring, self._mask
        for tag in range(self._base, end):
            found = ring[tag & mask]
            if found is not None:
                ring[tag & mask] = None
                taken.append(found)
        self.count -= len(taken)
        self._base = max(self._base, end)
        if not self.count and len(ring) > RING_MIN:  # what a burst took is given back
            self._mask = RING_MIN - 1
            self._ring = [None] * RING_MIN
            self._base = self.next_tag
        return taken

    def open_up_to(self, delivery_tag: int) -> list[tuple[int, Delivered]]:
        """Return (tag, delivery) of all that are open up to this tag (0: all), oldest first; they
        stay open."""
        end = self.next_tag if not delivery_tag else min(delivery_tag + 1, self.next_tag)
        found = [(tag, d) for tag, d in self._aside.items() if tag < end]
        for tag in range(self._base, end):
            delivered = self._ring[tag & self._mask]
            if delivered is not None:
                found.append((tag, delivered))
        return found

    def put_back(self, taken: list[tuple[int, Delivered]]) -> None:
        """Add again what was taken: (delivery tag, delivery)."""
        self.count += len(taken)
        for delivery_tag, delivered in taken:
            if self._base <= delivery_tag:
                self._ring[delivery_tag & self._mask] = delivered
            else:
                self._aside[delivery_tag] = delivered
        self._aside = dict(sorted(self._aside.items()))

    def all(self) -> list[Delivered]:
        """Return all open deliveries, oldest first; they stay open."""
        ring, mask = self._ring, self._mask
        tags = range(self._base, self.next_tag)
        found = [ring[tag & mask] for tag in tags]
        return [*self._aside.values(), *[entry for entry in found if entry is not None]]

    def _make_room(self) -> None:
        """Enlarge the ring, which reaches from the base to the next tag, or move its old half
        aside."""
        old, old_mask = self._ring, self._mask
        size = len(old)
        in_ring = self.count - len(self._aside)
        if size > ASIDE_FROM and in_ring < size // 4:
            for tag in range(self._base, self._base + size // 2):
                found = old[tag & old_mask]
                if found is not None:
                    self._aside[tag] = found
                    old[tag & old_mask] = None
            self._base += size // 2
            return
        ring: list[Delivered | None] = [None] * (size * 2)
        mask = size * 2 - 1
        for tag in range(self._base, self._base + size):
            ring[tag & mask] = old[tag & old_mask]
        self._ring = ring
        self._mask = mask
