"""Memory of the node, divided among its vhosts: half equally, half by what each holds.

The same rule by which a vhost divides its part among its queues. Whoever holds much needs more, and
who holds nothing must not starve when its first message comes. The parts never add up to more than
the whole, also while they change: those that shrink are told first, and those that grow when the
others have answered.

Pure functions. Not here: telling it to anybody (supervisor).
"""

from collections.abc import Mapping
from typing import Final

SMALLEST_CHANGE: Final = 64  # a change below a 64th of what it was is not worth a message


def divide(whole_bytes: int, depths: Mapping[str, int]) -> dict[str, int]:
    """Bytes for each vhost; `depths`: bytes that it holds, ready and unacked."""
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
    """(those that shrink, those that grow), each with its new bytes; what hardly changes is left
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
    """Of those that are to grow, what fits the whole now, each cut alike."""
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
