"""MemoryShares: divides the node's memory among its vhosts: half equally, half by what each holds.

A vhost divides its share among its queues by the same rule. A vhost that holds much needs more, and
one that holds nothing must have room for its first messages. The shares never add up to more than
the whole, also while they change: first the shares that shrink are set, and those that grow when
the others have confirmed.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.clock import until_next
from penstock.server.watched_process import RUNNING, STARTING
from penstock.server.watched_vhost import WatchedVhost

SMALLEST_CHANGE: Final = 64  # a change of less than a 64th is not sent


class MemoryShares:
    """Sets the share of each vhost. vhosts: by name, changed by the owner. period_s: between two
    divisions."""

    def __init__(
        self, vhosts: Mapping[str, WatchedVhost], whole_bytes: int, period_s: float
    ) -> None:
        self._vhosts = vhosts
        self._whole_bytes = whole_bytes
        self._period_s = period_s

    def set_whole(self, whole_bytes: int) -> None:
        """Set how much there is; the next division is of that."""
        self._whole_bytes = whole_bytes

    def make_room(self, newcomer: WatchedVhost) -> None:
        """Set the share of a vhost that is about to start, and shrink the others for it. They have
        done so before it holds anything."""
        depths = self._depths() | {newcomer.name: 0}
        for name, number in divide(self._whole_bytes, depths).items():
            vhost = self._vhosts[name]
            if vhost is newcomer:
                vhost.memory_bytes = number
            elif number < vhost.memory_bytes:
                vhost.set_memory(number)

    async def run(self) -> None:
        """Divide the memory again every period, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(until_next(loop.time(), self._period_s))
            depths = self._depths()
            now = {name: self._vhosts[name].memory_bytes for name in depths}
            shrinking, growing = changes(now, divide(self._whole_bytes, depths))
            confirmed = []
            for name, number in shrinking.items():
                answer = loop.create_future()
                confirmed.append(answer)
                vhost = self._vhosts[name]
                vhost.on_memory = lambda answer=answer: answer.done() or answer.set_result(None)
                vhost.set_memory(number)
            if confirmed:  # one that does not answer in time has its share all the same
                await asyncio.wait(confirmed, timeout=self._period_s)
            now = {name: self._vhosts[name].memory_bytes for name in self._depths()}
            for name, number in fits(self._whole_bytes, now, growing).items():
                if name in self._vhosts:
                    self._vhosts[name].set_memory(number)

    def _depths(self) -> dict[str, int]:
        return {
            name: vhost.depth_bytes
            for name, vhost in self._vhosts.items()
            if vhost.state in (RUNNING, STARTING)
        }


def divide(whole_bytes: int, depths: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes for each vhost. depths: bytes that it holds, ready and unacked."""
    if not depths:
        return {}
    equal = whole_bytes // 2 // len(depths)
    by_depth = whole_bytes - whole_bytes // 2
    total = sum(depths.values())
    if not total:
        return dict.fromkeys(depths, whole_bytes // len(depths))
    return {name: equal + by_depth * depth // total for name, depth in depths.items()}


def changes(
    now: Mapping[str, int], wanted: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return (shares that shrink, shares that grow) with their new bytes. Small changes are left
    out."""
    shrinking: dict[str, int] = {}
    growing: dict[str, int] = {}
    for name, number in wanted.items():
        before = now.get(name, 0)
        if abs(number - before) * SMALLEST_CHANGE < max(before, 1):
            continue
        if number < before:
            shrinking[name] = number
        elif number > before:
            growing[name] = number
    return shrinking, growing


def fits(whole_bytes: int, now: Mapping[str, int], growing: Mapping[str, int]) -> dict[str, int]:
    """Return the new bytes of growing shares, each cut by the same part if not all fit the
    whole."""
    left = whole_bytes - sum(now.values())
    wanted = sum(number - now.get(name, 0) for name, number in growing.items())
    if wanted <= left:
        return dict(growing)
    if left <= 0:
        return {}
    return {
        name: now.get(name, 0) + (number - now.get(name, 0)) * left // wanted
        for name, number in growing.items()
    }
