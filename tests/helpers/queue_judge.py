"""What queues must have after a start, and that all of it comes out again.

`judge_queues` compares every queue and every delay part with the model that recovery was judged by:
each message once, at its place, in order, with its body, header, date and attempts; called
redelivered if it was ever delivered, in any life; all counters equal to what is there. `drain`
takes everything out as a client would, lets time go by until no delay is left, and finds nothing
left: no message, no part, no body in the store, no file.
"""

from collections import Counter
from typing import Final

from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery
from tests.helpers.ledger import Content, Model, Violation
from tests.helpers.queue_driver import QueueDriver
from tests.helpers.queue_ledger import Place, is_bucket
from tests.helpers.queue_owner import parts_of, same

ROUNDS_MAX: Final = 40  # of taking everything out: each lets a day and more go by


def judge_queues(driver: QueueDriver) -> None:
    """Of queues that were opened on what a crash or a stop left, untouched since."""
    model = driver.ledger.base
    known: set[int] = set()
    for name, amq in driver.amq.items():
        parts = [part.index().number for part in reversed(parts_of(amq.backing))]
        wanted = [place for number in parts for place in _places(model, number)]
        known.update(parts)
        contents = [_content(model, place) for place in wanted]
        size = sum(content[1] for content in contents)
        info = amq.backing.info()
        found = (
            amq.len(), amq.depth(), amq.body_bytes(), info["len"], info["pending"], info["bytes"]
        )  # fmt: skip
        same(f"{name}: counts", found, (len(wanted), len(wanted), size, len(wanted), 0, size))
        seen = _browse(driver, amq.backing)
        same(f"{name}: places", [place for place, _ in seen], wanted)
        for (place, delivery), content in zip(seen, contents, strict=True):
            _judge(driver, name, place, delivery, content, delivery.attempts)
        delayed = 0
        for backing in amq.delays.parts():
            delayed += _judge_bucket(driver, name, backing, model)
            known.add(backing.index().number)
        same(f"{name}: delayed", amq.delayed(), delayed)
    if set(model.queues) != known:
        raise Violation(f"queues that nothing opens: {set(model.queues) - known}")


def _judge_bucket(driver: QueueDriver, name: str, backing: BackingQueue, model: Model) -> int:
    number = backing.index().number
    wanted = _places(model, number)
    found: list[Place] = []

    def look(delivery: Delivery, is_pending: bool, acc: int) -> tuple[bool, int]:
        place = (number, delivery.tag)
        found.append(place)
        if place in wanted:
            content = _content(model, place)
            _judge(driver, f"{name}, delayed", place, delivery, content, delivery.attempts)
        return True, acc + 1

    depth = backing.fold(look, 0)
    same(f"{name}: delayed places", found, wanted)
    same(f"{name}: depth of a delay part", backing.depth(), depth)
    return depth


def _places(model: Model, number: int) -> list[Place]:
    return [(number, seq) for seq in sorted(model.queues[number])]


def _content(model: Model, place: Place) -> Content:
    return model.queues[place[0]][place[1]]


def _browse(driver: QueueDriver, backing: BackingQueue) -> list[tuple[Place, Delivery]]:
    """Everything that is ready, looked at in pieces."""
    found: list[tuple[Place, Delivery]] = []
    after: int | None = None
    while True:
        some = backing.browse(after, driver.rng.choice((1, 3, 100)))
        if not some:
            return found
        after = some[-1].tag
        for delivery in some:
            number = backing.index(delivery.tag >> PART_SHIFT).number
            found.append(((number, delivery.tag & ((1 << PART_SHIFT) - 1)), delivery))


def _judge(
    driver: QueueDriver, name: str, place: Place, delivery: Delivery, content: Content,
    attempts: int,
) -> None:  # fmt: skip
    at = f"{name}, {place}"
    life = driver.life
    driver.judge_message(at, delivery, content)
    wanted = life.base.attempts[place[0]].get(place[1], 0)
    same(f"{at}: attempts", attempts, wanted)
    same(f"{at}: expiry", delivery.message.expiry_ms, life.expiries[place])
    is_old = place[1] < life.base.marks[place[0]]
    same(f"{at}: is redelivered", delivery.is_redelivered, is_old or wanted > 0)
    if place in life.seen and not delivery.is_redelivered:
        raise Violation(f"{at} was delivered before, and is called fresh")


def drain(driver: QueueDriver) -> None:
    """Everything comes out, once; then nothing is left."""
    wanted = Counter(content[0] for content in driver.books.at.values())
    found: Counter[int] = Counter()
    dropped = Counter(driver.books.dropped)
    for _ in range(ROUNDS_MAX):
        driver.pass_time(90_000.0)
        for name in sorted(driver.amq):
            while (delivery := driver.fetch(name)) is not None:
                if delivery.message.persistent:
                    found[driver.ledger.ids[delivery.message.id]] += 1
                driver.ack_all(name)
        if not any(amq.depth() + amq.delayed() for amq in driver.amq.values()):
            break
    if found + (driver.books.dropped - dropped) != wanted:
        raise Violation(f"what came out is {found}, should be {wanted}")
    driver.pass_time(90_000.0)
    driver.finish_checkpoint()
    driver.engine.checkpoint()
    driver.engine.sync()
    for name, amq in driver.amq.items():
        same(f"{name}: empty", (amq.len(), amq.depth(), amq.delayed(), amq.body_bytes()), (0,) * 4)
        same(f"{name}: RAM", amq.ram_bytes(), 0)
    left = [at for at in driver.engine.state.routing.queues if is_bucket(at)]
    same("parts for delayed messages", left, [])
    driver.idle()
    while driver.engine.upkeep.reap():
        driver.engine.sync()
    driver.engine.checkpoint()
    driver.engine.poll(wait=True)
    same("bodies in the store", driver.engine.state.store.live_count, 0)
    for queue in driver.engine.state.queues.values():
        names = driver.fs.list(queue.path) if driver.fs.exists(queue.path) else []
        stems = {name.partition(".")[0] for name in names} - {""}
        tail = str(queue.next_seq // queue.slots)
        if driver.is_strict:
            same(f"files of {queue.name!r} but those of its tail", stems - {tail}, set())
