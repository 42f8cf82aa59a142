"""The queues for a message, in one go: the broker walks in slices, and keeps what it found."""

from penstock.routing.exchange_types import SLICE_STEPS, Asked
from penstock.routing.router import Router, Walk, Way


def route(
    router: Router, exchange: str, key: str, headers: dict[str, object] | None = None,
    cc: list[str] | None = None,
) -> list[str]:  # fmt: skip
    """Return the queues. cc: more keys. KeyError: there is no such exchange."""
    if not router.has(exchange):
        raise KeyError(exchange)
    return route_on(router, Way(router, exchange), [key, *(cc or [])], headers)


def route_on(
    router: Router, way: Way, keys: list[str], headers: dict[str, object] | None
) -> list[str]:
    """Return the queues by a Way that is known, or just begun."""
    walk = Walk(router, way, keys, headers)
    while not walk.is_done:
        walk.advance(SLICE_STEPS)
    return list(walk.queues)


def way_of(router: Router, exchange: str, keys: list[str]) -> Way:
    """Return where these keys lead from an exchange, as far as keys alone decide."""
    way = Way(router, exchange)
    asked = Asked(keys, None)
    while not way.advance(asked):
        asked.steps = SLICE_STEPS
    return way
