"""One history, three readers: a stream of a small shop's events, read in three ways.

    python examples/embedded_streams.py [DIRECTORY | URL]

The shop appends what happens. The *board* follows live, and starts with the last minute. *Billing*
is a named reader: it goes on where it was, in each run, and commits what it has done. The *audit*
reads everything, as often as it likes, and checks that nothing is missing. Nothing is deleted by
reading; retention keeps a week.

Killed at any moment and run again, billing misses no event, and does at most one of them twice.
"""

import json
import sys
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import penstock

ORDERS = 20
STEPS = ("ordered", "paid", "packed")


def sell(shop: Any, first: int) -> None:
    """The shop's day: three events for each order, an order's own key for all of them."""
    for order in range(first, first + ORDERS):
        for step in STEPS:
            event = {"order": order, "step": step, "euros": 5 + order % 7}
            shop.append(json.dumps(event).encode(), key=f"order {order}")


def watch(shop: Any, seen: list[str], count: int) -> None:
    """The board: what happens, from a minute ago on, as it happens."""
    records = shop.read(since=timedelta(minutes=1), follow=True, timeout=30, max_records=count)
    seen.extend(record.key for record in records)


def bill(shop: Any) -> int:
    """Billing: the euros of what was paid since it was here last."""
    euros = 0
    reader = shop.reader("billing")
    for record in reader:
        event = json.loads(record.body)
        if event["step"] == "paid":
            euros += event["euros"]
        reader.commit(record)
    assert reader.lag == 0
    return euros


def audit(shop: Any) -> Counter[str]:
    """How often each step was taken, in all the history there is."""
    steps: Counter[str] = Counter()
    for place, record in enumerate(shop, start=shop.first):
        assert (record.offset, record.gap) == (place, 0)
        steps[json.loads(record.body)["step"]] += 1
    return steps


def main(place: str) -> None:
    with penstock.open(place) as box:
        shop = box.stream("shop", max_age="7d")
        first = shop.next // len(STEPS)
        seen: list[str] = []
        board = threading.Thread(target=watch, args=(shop, seen, ORDERS * len(STEPS)))
        board.start()
        sell(shop, first)
        board.join()
        print(f"the board saw {len(seen)} events")
        print(f"billed {bill(shop)} euros")
        print(", ".join(f"{n} {step}" for step, n in audit(shop).items()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "shop.d")
