"""The operation `why`: why a vhost's publishers wait, a queue does not drain, a connection stands.

Each finding is {"about", "text", "do", "since"}: a sentence that names the first cause, one that
says what ends it, and the date since when it is so, null if that is not known. The most important
comes first. No finding: nothing is wrong that the broker can see. Nothing is changed, opened or
read from a disk.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Final

from penstock.broker.alerts import DAMAGE, FLOWED
from penstock.broker.broker_queue import BrokerQueue, Consumer, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.channel import Channel, ChannelOwner
from penstock.broker.dispatch import LOOK_STEPS
from penstock.broker.operations.call import ROW_STEPS, Call, Functions, Slices, in_budget
from penstock.broker.operations.listings import queue_row
from penstock.broker.operations.queue_rows import UnackedHolder, holders, int_of
from penstock.broker.operations.streams import Lags
from penstock.broker.queue_table import LENGTH_OF
from penstock.broker.rates import QUEUE
from penstock.broker.refusals import not_found
from penstock.broker.vhost import MESSAGES, VHost
from penstock.clock import date
from penstock.errors import blocked_advice
from penstock.options import format_bytes, many
from penstock.storage.files.durability import OS

QUEUES_SHOWN: Final = 5
QUEUES_SLICE: Final = 256
OF_BLOCKED: Final = ("blocked", "disk_full", "memory_alarm")
OLD_S: Final = 60.0  # an unacknowledged delivery, or a record that is not read: worth a word
BEHIND_S: Final = 3600.0  # how far a reader is behind that is worth a word of its vhost
REPEATS_PER_S: Final = 1.0
UNREAD_ADVICE: Final = "start one, or replay, move or purge them"
SLOW_SYNC_S: Final = 0.1
HOLDERS_SHOWN: Final = 3
READY: Final = "messages_ready"
SERVE_ADVICE: Final = "read the broker's log"
DAMAGE_ADVICE: Final = (
    "penstock store verify of a backup, or of the stopped broker, lists all of it"
)
SLOW_ADVICE: Final = "see what else uses it; penstock doctor measures it"

Finding = dict[str, object]
Parts = Generator[Finding | None, None, None]  # of an answer; None: a turn may end here


def _finding(about: str, text: str, do: str, since: str | None = None) -> Finding:
    return {"about": about, "text": text, "do": do, "since": since}


def _blocked(vhost: VHost, about: str, what: str) -> Finding:
    text = f"{what}, low on {vhost.blocked_reason}: {vhost.blocked_cause()}"
    return _finding(about, text, blocked_advice(vhost.blocked_reason), date(vhost.blocked_since_ms))


def _largest_holders(vhost: VHost) -> Generator[None, None, str]:
    """Return which queues or which user has most of what takes most of the memory."""
    name, _, of_users = vhost.memory_parts()[0]
    if of_users is not None and (user := of_users.largest()):
        return f", {format_bytes(of_users.of(user))} of it are user '{user}'s"
    if name != MESSAGES:
        return ""
    sizes: list[tuple[int, str]] = []
    for n, (called, queue) in enumerate(list(vhost.table.served.items()), 1):
        if isinstance(queue, BrokerQueue) and not queue.is_crashed:
            sizes.append((queue.amq.ram_bytes(), called))
        if n % QUEUES_SLICE == 0:
            vhost.budget.left -= QUEUES_SLICE
            yield
    largest = sorted(sizes, reverse=True)[:HOLDERS_SHOWN]
    return "; most have " + ", ".join(
        f"queue '{called}' ({format_bytes(size)})" for size, called in largest
    )


def _slow_sync(vhost: VHost) -> str:
    """Return how long a sync of the log takes; "" if that is not long, or nobody waits for one."""
    sync_s = vhost.engine.log.recent_sync_s()
    if sync_s < SLOW_SYNC_S or vhost.mode == OS:
        return ""
    return f"a sync of the log takes {round(sync_s * 1000):,} ms"


def _ago(vhost: VHost, seconds: float) -> str:
    return date(vhost.clock.wall_ms() - round(seconds * 1000))


# ---- a vhost -------------------------------------------------------------------------------------


def _of_vhost(vhost: VHost) -> Generator[None, None, list[Finding]]:
    about = f"vhost '{vhost.name}'"
    found: list[Finding] = []
    if vhost.blocked_reason:
        blocked = _blocked(vhost, about, "publishers wait")
        if vhost.is_memory_short:
            holders_text = yield from _largest_holders(vhost)
            blocked["text"] = f"{blocked['text']}{holders_text}"
        found.append(blocked)
    if slow := _slow_sync(vhost):
        text = f"its disk is slow: {slow}, and confirms wait for one"
        found.append(_finding(about, text, SLOW_ADVICE))
    refused, of_queues = yield from _of_queues(vhost)
    found += refused
    for user, since_s in vhost.usage.full.items():
        waited_s = vhost.clock.monotonic() - since_s
        text = f"consumers of user '{user}' wait: {vhost.usage.full_text(user)}"
        found.append(_finding(about, text, "acknowledge", _ago(vhost, waited_s)))
    for alert in vhost.alerts.list.rows():
        # A queue is there to flow to disk; why publishers wait is said above.
        is_said = vhost.blocked_reason and alert["kind"] in OF_BLOCKED
        is_damage = alert["kind"] == DAMAGE
        if (alert["is_on"] or is_damage) and alert["kind"] != FLOWED and not is_said:
            name = f"queue '{alert['queue']}'" if alert["queue"] else about
            text = str(alert["text"]).removeprefix(f"{name}: ")
            do = DAMAGE_ADVICE if is_damage else ""
            found.append(_finding(name, text, do, str(alert["first_time"])))
    return found + of_queues


def _of_queues(vhost: VHost) -> Generator[None, None, tuple[list[Finding], list[Finding]]]:
    """Return which queues refuse publishers, and what else is wrong with the queues and streams of
    a vhost, the longest of each kind."""
    found: list[Finding] = []
    refusing: list[tuple[int, str]] = []
    paused: list[tuple[int, str]] = []
    waiting: list[tuple[int, str]] = []
    stuck: list[tuple[int, str]] = []
    for n, (name, queue) in enumerate(list(vhost.table.served.items()), 1):
        ready = 0
        if isinstance(queue, BrokerQueue) and not queue.is_crashed:
            ready = queue.len()
            if queue.amq.refuses(0):
                refusing.append((ready, name))
        if ready and queue.consumers.is_paused:
            paused.append((ready, name))
        elif ready and not queue.consumers.count:
            waiting.append((ready, name))
        elif ready and not queue.consumers.room(1):
            stuck.append((ready, name))
        if n % QUEUES_SLICE == 0:
            vhost.budget.left -= QUEUES_SLICE
            yield
    lengths = vhost.table.kept(READY, LENGTH_OF[READY])
    yield from in_budget(vhost.budget, lengths.update(), LOOK_STEPS)
    waiting += [
        (round(count), name)
        for name, count in lengths.of.items()
        if name not in vhost.table.served and name not in vhost.table.kept_down
    ]
    for _, name in _longest(stuck):
        still = vhost.table.served.get(name)
        if still is not None:
            found += [one for one in _of_consumers(vhost, still) if _is_old(vhost, one)][:1]
        yield
    redelivered = vhost.rates.moving(QUEUE, "redeliver")
    repeats = yield from in_budget(vhost.budget, redelivered, LOOK_STEPS)
    for name, rate in repeats.items():
        found += _of_repeats(vhost, name, rate)
    found += yield from _of_readers(vhost)
    found += [_paused(f"queue '{name}'", ready) for ready, name in _longest(paused)]
    for ready, name in _longest(waiting):
        text = f"{many(ready, 'message')} and no consumer"
        found.append(_finding(f"queue '{name}'", text, UNREAD_ADVICE))
    return [_refuses(f"queue '{name}'") for _, name in _longest(refusing)], found


def _longest(queues: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return sorted(queues, reverse=True)[:QUEUES_SHOWN]


def _refuses(about: str) -> Finding:
    text = "publishers are refused: it is as long as its limit allows (max-length)"
    return _finding(about, text, "consume, purge, or raise the limit")


def _paused(about: str, ready: int) -> Finding:
    text = f"its delivery is paused, {many(ready, 'message')} ready"
    return _finding(about, text, "resume it: penstock resume_queue")


def _is_old(vhost: VHost, found: Finding) -> bool:
    """Return whether it has been so for OLD_S: a consumer at its prefetch works, at first."""
    since = found["since"]
    return isinstance(since, str) and since <= _ago(vhost, OLD_S)


def _of_repeats(vhost: VHost, name: str, rate: float) -> Iterator[Finding]:
    """Yield whether what a queue delivers only comes back. rate: of what is delivered again."""
    if rate >= REPEATS_PER_S and not vhost.rates.of((QUEUE, name)).get("ack"):
        text = (
            f"{rate:,.0f} messages a second come back and are delivered again, none is acknowledged"
        )
        do = "see why the consumer returns them; a delivery-limit puts such messages aside"
        yield _finding(f"queue '{name}'", text, do)


def _of_readers(vhost: VHost) -> Generator[None, None, list[Finding]]:
    """Return the named readers of streams that are BEHIND_S and more behind, those first that are
    most."""
    behind: list[tuple[int, Finding]] = []
    for stream in vhost.streams.all():
        behind += yield from _lags(vhost, stream, BEHIND_S)
        yield
    return [found for _, found in sorted(behind, key=_lag_us, reverse=True)[:QUEUES_SHOWN]]


def _lag_us(one: tuple[int, Finding]) -> int:
    return one[0]


def _lags(
    vhost: VHost, stream: BrokerStream, least_s: float
) -> Generator[None, None, list[tuple[int, Finding]]]:
    """Return the ages of the oldest records that readers have not read, in us, with what is to be
    said, in slices."""
    found: list[tuple[int, Finding]] = []
    lags = Lags(vhost.clock.wall_us())
    for reader, positions in stream.known_readers().items():
        parts = [(stream.parts[n], at.offset) for n, at in positions.items()]
        age_us = max(lags.age_us(part, offset) or 0 for part, offset in parts)
        if age_us >= least_s * 1e6:
            records = sum(lags.records(part, offset) for part, offset in parts)
            text = f"reader '{reader}' has not read {many(records, 'record')}"
            since = _ago(vhost, age_us / 1e6)
            said = _finding(f"stream '{stream.name}'", text, "see whether it runs", since)
            found.append((age_us, said))
        vhost.budget.left -= ROW_STEPS + len(parts)
        if vhost.budget.left <= 0:
            yield
    return found


# ---- a queue -------------------------------------------------------------------------------------


def _of_queue(vhost: VHost, queue: QueueOrStream) -> Parts:
    about = f"queue '{queue.name}'"
    if isinstance(queue, BrokerStream):
        behind = yield from _lags(vhost, queue, OLD_S)
        behind.sort(key=_lag_us, reverse=True)
        yield from [found for _, found in behind[:QUEUES_SHOWN]]
    if isinstance(queue, BrokerQueue) and queue.is_crashed:
        yield _finding(about, f"does not serve: {queue.why}", SERVE_ADVICE)
        return
    if isinstance(queue, BrokerQueue):
        yield from _of_messages(vhost, queue, about)
        rate = vhost.rates.of((QUEUE, queue.name)).get("redeliver", 0.0)
        yield from _of_repeats(vhost, queue.name, rate)
    yield from _of_consumers(vhost, queue)


def _of_consumers(vhost: VHost, queue: QueueOrStream) -> Iterator[Finding]:
    """Yield why no consumer takes what is ready."""
    about = f"queue '{queue.name}'"
    if queue.consumers.is_paused:
        yield _paused(about, queue.len())
        return
    if not queue.consumers.count:
        if queue.len() and isinstance(queue, BrokerQueue):  # a stream keeps what was read, too
            text = f"{many(queue.len(), 'message')} ready and no consumer"
            yield _finding(about, text, UNREAD_ADVICE, _ago(vhost, _idle_s(vhost, queue)))
        return
    consumers = queue.consumers.all()
    active = queue.consumers.active
    if queue.consumers.is_single_active and active is not None:
        if not active.is_ready():
            yield _held(vhost, about, active, f"the single active {_consumer(active)}")
        elif queue.len():
            text = f"only {_consumer(active)} is active, {len(consumers) - 1} more stand by"
            yield _finding(about, text, "nothing: x-single-active-consumer says so")
        return
    for consumer in _stuck(queue)[:QUEUES_SHOWN]:
        yield _held(vhost, about, consumer, _consumer(consumer))


def _stuck(queue: QueueOrStream) -> list[Consumer]:
    """Return the consumers of a queue whose turns come, if none of them can take what is ready."""
    at = queue.consumers
    is_stuck = queue.len() and not (at.is_paused or at.is_single_active)
    return at.all() if is_stuck and not any(one.is_ready() for one in at.all()) else []


def _of_messages(vhost: VHost, queue: BrokerQueue, about: str) -> Parts:
    facts = queue.amq.info()
    if queue.amq.refuses(0):
        yield _refuses(about)
    leased = int(facts.get("leased", 0))
    if leased:
        text = f"{many(leased, 'message')} leased to readers"
        yield _finding(about, text, "wait for their commit; penstock list_leases names them")
    if not queue.len() and facts["delayed"]:
        text = f"{many(int(str(facts['delayed'])), 'message')} delayed, none is due"
        yield _finding(about, text, "wait")
    if not queue.len() and int(str(facts.get("expired", 0))):
        text = f"empty; {many(int(str(facts['expired'])), 'message')} expired since the start"
        yield _finding(about, text, "raise the TTL, or consume sooner")
    now_s = vhost.clock.monotonic()
    said = _stuck(queue)[:QUEUES_SHOWN]  # _of_consumers has more of them
    found = yield from holders(vhost, queue)
    for holder in found:
        if holder.consumer in said:
            continue
        vhost.budget.left -= ROW_STEPS
        yield None
        oldest = holder.ages(now_s, 1)
        if oldest and oldest[0][1] >= OLD_S:
            where = _where(holder.channel)
            taker = (
                f"basic.get of {where}" if holder.consumer is None else _consumer(holder.consumer)
            )
            text = f"{taker} has a message unacknowledged"
            yield _finding(about, text, "see what that client does", _ago(vhost, oldest[0][1]))


def _held(vhost: VHost, about: str, consumer: Consumer, name: str) -> Finding:
    """Return why a consumer is given nothing. name: as people see it."""
    channel = consumer.channel
    if not isinstance(channel, Channel):
        return _finding(about, f"{name} is not ready", "")
    if consumer.prefetch and consumer.unacked >= consumer.prefetch:
        text = f"{name} has {consumer.unacked} of {consumer.prefetch} unacknowledged (prefetch)"
    elif channel.prefetch and channel.consumer_unacked >= channel.prefetch:
        text = f"{name}: its channel has {channel.prefetch} unacknowledged (global prefetch)"
    elif not channel.handler.has_unacked_room:
        text = f"{name}: {vhost.usage.full_text(channel.identity.name)}"
    elif not channel.handler.has_output_room:
        text = f"{name}: {vhost.usage.stuffed_text(channel.identity.name)}"
        return _finding(about, text, "see which of its clients do not read")
    elif not channel.handler.is_open_to_output:
        return _finding(about, f"{name} does not read what is sent", "see what that client does")
    else:
        return _finding(about, f"{name} is busy with a large message", "wait")
    ages = UnackedHolder(consumer.queue, channel, consumer).ages(vhost.clock.monotonic(), 1)
    since = _ago(vhost, ages[0][1]) if ages else None
    return _finding(about, text, "acknowledge, or raise the prefetch", since)


def _consumer(consumer: Consumer) -> str:
    channel = consumer.channel
    of = f" of {_where(channel)}" if isinstance(channel, Channel) else ""
    return f"consumer '{consumer.tag}'{of}"


def _where(channel: Channel) -> str:
    return f"{_called(channel.handler)}, user '{channel.identity.name}'"


def _called(owner: ChannelOwner) -> str:
    """Return the name of a connection, with what its client calls it."""
    given = owner.facts.given_name()
    return f"connection '{given}' ({owner.name})" if given else f"connection {owner.name}"


def _idle_s(vhost: VHost, queue: QueueOrStream) -> float:
    return vhost.clock.monotonic() - queue.used_at_s


def _of_unused(vhost: VHost, name: str) -> list[Finding]:
    """Return what is wrong with a queue that nobody has used since the start."""
    about = f"queue '{name}'"
    if name in vhost.table.kept_down:
        return [_finding(about, f"does not serve: {vhost.table.kept_down[name]}", SERVE_ADVICE)]
    ready = int_of(queue_row(vhost, name) or {}, READY)
    text = f"{many(ready, 'message')} ready, and nobody has used it since the start of its vhost"
    return [_finding(about, text, "start a consumer")] if ready else []


# ---- a connection --------------------------------------------------------------------------------


def _of_connection(vhost: VHost, owner: ChannelOwner) -> Parts:
    about = _called(owner)
    state = owner.info()["state"]
    if state == "blocked":
        yield _blocked(vhost, about, "its publishes wait")
    if not owner.is_open_to_output:
        yield _finding(about, "the client does not read what is sent", "see what the client does")
    if not owner.has_unacked_room:
        text = vhost.usage.full_text(owner.identity.name)
        yield _finding(about, f"its consumers wait: {text}", "acknowledge")
    for channel in list(owner.channels.values()):
        where = f"{about}, channel {channel.number}"
        confirms = channel.publisher.confirms
        waiting = 0 if confirms is None else confirms.last_tag - confirms.answered
        if waiting:
            slow = _slow_sync(vhost)
            text = f"{many(waiting, 'message')} not confirmed yet"
            text += f": {slow}" if slow else ""
            yield _finding(where, text, SLOW_ADVICE if slow else "wait for a sync of the disk")
        if channel.is_waiting:
            yield _finding(where, "a long operation is under way, what follows waits", "wait")
        consumers = channel.consumers.values()
        held = (one for one in consumers if not one.is_ready() and one.queue.len())
        vhost.budget.left -= len(consumers)
        for consumer in list(islice(held, QUEUES_SHOWN)):
            name = f"consumer '{consumer.tag}' of queue '{consumer.queue.name}'"
            yield _held(vhost, where, consumer, name)
        yield None


# ---- the operation -------------------------------------------------------------------------------


def _why(call: Call) -> None:
    call.in_slices(_found(call))


def _gathered(vhost: VHost, parts: Parts) -> Slices:
    found: list[Finding] = []
    for one in parts:
        if one is not None:
            found.append(one)
        if vhost.budget.left <= 0:
            yield
    return found


def _found(call: Call) -> Slices:
    vhost, args = call.vhost, call.args
    name, connection = args.text_or_none("queue"), args.text_or_none("connection")
    if name is not None:
        queue = vhost.table.served.get(name)
        if queue is None and not vhost.table.has(name):
            raise not_found(vhost.table.called(name))
        if queue is None:
            return _of_unused(vhost, name)
        return (yield from _gathered(vhost, _of_queue(vhost, queue)))
    if connection is not None:
        for peer in vhost.handlers:
            if isinstance(peer, ChannelOwner) and peer.name == connection:
                return (yield from _gathered(vhost, _of_connection(vhost, peer)))
        raise not_found(f"connection '{connection}' in vhost '{vhost.name}'")
    return (yield from _of_vhost(vhost))


FUNCTIONS: Final[Functions] = {"why": _why}
