"""Queues: the rows of queues and streams in RabbitMQ's HTTP shape, for list_rows and describe_row.

They have rates, and RabbitMQ's names for the parts of a queue; what it has not is in `penstock`.
What a row costs depends on what is asked for: the columns of HEAD need nothing of the messages,
LENGTHS two numbers. Nothing is opened, and no file is read for a list: only `details` reads the
head of a queue that has left RAM. Lists have whole rows more than anything else, so what makes
these writes each column once, and asks a queue once for all its facts (AMQQueue.info).
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.broker.broker_queue import BrokerQueue, Consumer, QueueOrStream, lengths_of
from penstock.broker.channel import Channel, ChannelOwner
from penstock.broker.operations.call import ROW_STEPS
from penstock.broker.operations.kinds import RATE, STATS, RowAsked, RowKind, in_one
from penstock.broker.operations.listings import (
    LIMITS,
    idle_since,
    limit,
    queue_head,
    queue_row,
)
from penstock.broker.queue_table import LENGTH_OF
from penstock.broker.rates import LENGTHS, QUEUE, Info
from penstock.broker.vhost import CHANNEL, VHost
from penstock.codec.properties import BasicProperties
from penstock.counts import DELIVERY_NAMES
from penstock.native import node_name
from penstock.queues.queue_options import QUORUM
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.queues.stream_options import STREAM

# What is told without statistics.
HEAD: Final = frozenset(
    {
        "name", "vhost", "type", "durable", "exclusive", "auto_delete", "arguments", "policy",
        "operator_policy", "effective_policy_definition", "node", "state",
    }
)  # fmt: skip
_DETAILS: Final = frozenset(f"{name}_details" for name in LENGTHS)
_OWN: Final = ("generation", "why", "partitions", "readers")  # of one that is not open, a stream
Facts = Mapping[str, int | float | str]  # of a queue: AMQQueue.info
# Facts of a queue by the columns of `queue_info` that tell the same.
_FACTS: Final = {
    "messages_ready": "len", "messages": "depth", "message_bytes_ready": "bytes",
    "message_bytes_unacknowledged": "unacked_bytes", "memory": "ram_bytes", "alphas": "alphas",
    "betas": "betas", "gammas": "gammas", "delta": "delta", "leased": "leased",
    "delayed": "delayed", "is_flowed": "is_flowed", "messages_ram": "ram_messages",
    "memory_alphas": "alpha_bytes", "memory_elsewhere": "elsewhere_bytes",
}  # fmt: skip
LOOKED_AT: Final = 1024  # unacked deliveries of a channel
DELIVERIES_SHOWN: Final = 100  # of a consumer
KEYS_SHOWN: Final = 10  # of a publisher
QUEUES_SHIFT: Final = 3  # queues of a route that are looked at in one step
# Columns for which nothing has to be found out about where messages are.
CHEAP: Final = HEAD | LENGTHS | _DETAILS | {"consumers", STATS}
# Columns of list_queues that are the same in the row here, which is cheaper alone, and those that
# `queue_row` has not.
LISTED_SAME: Final = (HEAD | LENGTHS | {"consumers"}) - {"node"}
LISTED_MORE: Final = frozenset(
    {
        "consumer_capacity", "consumer_utilisation", "exclusive_consumer_tag",
        "head_message_timestamp", "leader", "members", "message_bytes_persistent",
        "message_bytes_ram", "messages_persistent", "messages_ready_ram",
        "messages_unacknowledged_ram", "online", "pid", "slave_pids", "synchronised_slave_pids",
    }
)  # fmt: skip
MESSAGE_COUNTS: Final = ("publish", "deliver_get", *DELIVERY_NAMES)


def _counter(name: str, queue: QueueOrStream) -> int:
    return queue.counters()[name]


# The columns by which many lists are sorted, of a queue or stream that is open.
COUNTED: Final[Mapping[str, Callable[[QueueOrStream], int]]] = {
    **LENGTH_OF,
    "messages_unacknowledged": lambda queue: queue.depth() - queue.len(),
    "consumers": lambda queue: queue.consumers.count,
    "memory": lambda queue: queue.amq.ram_bytes() if isinstance(queue, BrokerQueue) else 0,
    **{f"{STATS}.{name}": partial(_counter, name) for name in MESSAGE_COUNTS},
}


class Queues(RowKind):
    """See the head of this module. A thing is a queue's name."""

    called = "queue"
    rates = QUEUE
    order = "name"

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[str]:
        return vhost.table.names()

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> str | None:
        return name if vhost.table.has(name) else None

    def names(self, things: Sequence[str]) -> Sequence[str]:
        return things

    def numbers(
        self, vhost: VHost, column: str
    ) -> Generator[None, None, Mapping[str, float] | None]:
        if column.endswith(RATE):
            value = column.removeprefix(f"{STATS}.").removesuffix(RATE)
            return (yield from vhost.rates.moving(QUEUE, value))
        number = COUNTED.get(column)
        if number is None:
            return None
        kept = vhost.table.kept(column, number)
        yield from kept.update()
        return kept.of.copy()  # the caller has turns of others meanwhile

    def row(self, vhost: VHost, thing: str, asked: RowAsked) -> Info | None:
        return _row(vhost, thing, asked)

    def details(
        self, vhost: VHost, thing: str, asked: RowAsked
    ) -> Generator[None, None, Info | None]:
        row = _row(vhost, thing, asked)
        if row is None:
            return None
        queue = vhost.table.served.get(thing)
        consumers = [] if queue is None else queue.consumers.all()
        row["consumer_details"] = yield from consumer_rows(vhost, consumers)
        row["incoming"] = []
        row["deliveries"] = []
        own = row.get("penstock")
        if isinstance(queue, BrokerQueue) and isinstance(own, dict) and not queue.is_crashed:
            _add_head(vhost, queue, row)
            now_s = vhost.clock.monotonic()
            found = yield from holders(vhost, queue)
            ages = [one.ages(now_s, 1) for one in found]
            own["oldest_unacked_s"] = max((age[0][1] for age in ages if age), default=None)
        return row


@dataclass(frozen=True, slots=True)
class UnackedHolder:
    """A consumer of a queue, or None and a channel that has got from it, with unacked messages."""

    queue: QueueOrStream
    channel: Channel
    consumer: Consumer | None

    def ages(self, now_s: float, most: int) -> list[tuple[int, float]]:
        """Return (delivery tag, seconds that it is open) of the oldest ones, as far as LOOKED_AT
        deliveries of the channel go."""
        unacked = self.channel.unacked
        found: list[tuple[int, float]] = []
        for tag, delivered in unacked.open_up_to(unacked.next_tag, LOOKED_AT):
            if delivered.consumer is not self.consumer:
                continue
            if self.consumer is None and delivered.source is not self.queue:
                continue
            found.append((tag, unacked.age_s(tag, now_s)))
            if len(found) == most:
                break
        return found


def _channels(vhost: VHost) -> Iterator[Channel]:
    """Yield the channels that there are when it begins, and that are open when it comes to them."""
    for owner in list(vhost.handlers):
        assert isinstance(owner, ChannelOwner)
        yield from list(owner.channels.values())


def holders(vhost: VHost, queue: QueueOrStream) -> Generator[None, None, list[UnackedHolder]]:
    """Return who has unacked messages of this queue, by connection and channel, in slices."""
    found: list[UnackedHolder] = []
    for channel in _channels(vhost):
        vhost.budget.left -= 1
        left = channel.unacked.count
        if left:
            vhost.budget.left -= len(channel.consumers)
            for consumer in channel.consumers.values():
                left -= consumer.unacked
                if consumer.unacked and consumer.queue is queue:
                    found.append(UnackedHolder(queue, channel, consumer))
        if left > 0:
            vhost.budget.left -= ROW_STEPS
            if UnackedHolder(queue, channel, None).ages(0.0, 1):
                found.append(UnackedHolder(queue, channel, None))
        if vhost.budget.left <= 0:
            yield
    return sorted(found, key=lambda one: (one.channel.handler.name, one.channel.number))


class UnackedRows(RowKind):
    """Who has unacked messages of a queue, and since when. of: {"queue": name}."""

    called = "consumer"
    selectors = ("queue",)

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[UnackedHolder]:
        return in_one(self.gathered(vhost, of))

    def gathered(
        self, vhost: VHost, of: Mapping[str, str]
    ) -> Generator[None, None, Sequence[UnackedHolder]]:
        queue = vhost.table.served.get(of.get("queue", ""))
        return [] if queue is None else (yield from holders(vhost, queue))

    def name(self, thing: UnackedHolder) -> str:
        return "" if thing.consumer is None else thing.consumer.tag

    def row(self, vhost: VHost, thing: UnackedHolder, asked: RowAsked) -> Info | None:
        ages = thing.ages(vhost.clock.monotonic(), DELIVERIES_SHOWN)
        consumer = thing.consumer
        return {
            "queue": {"name": thing.queue.name, "vhost": vhost.name},
            "channel_details": channel_details(thing.channel),
            "consumer_tag": None if consumer is None else consumer.tag,
            "messages_unacknowledged": len(ages) if consumer is None else consumer.unacked,
            "oldest_s": ages[0][1] if ages else None,
            "ack_s": None if consumer is None else consumer.ack_s,
            "deliveries": [{"delivery_tag": tag, "age_s": age} for tag, age in ages],
        }


@dataclass(slots=True)
class LatePublisher:
    """A channel that has published to a queue lately, through an exchange. keys: with these."""

    queue: QueueOrStream
    channel: Channel
    exchange: str
    keys: list[str]


class PublisherRows(RowKind):
    """Who has published to a queue lately, by the routes that channels keep: those of messages
    that headers route are not among them. of: {"queue": name}."""

    called = "publisher"
    selectors = ("queue",)

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[LatePublisher]:
        return in_one(self.gathered(vhost, of))

    def gathered(
        self, vhost: VHost, of: Mapping[str, str]
    ) -> Generator[None, None, Sequence[LatePublisher]]:
        queue = vhost.table.served.get(of.get("queue", ""))
        found: dict[tuple[str, int, str], LatePublisher] = {}
        for channel in _channels(vhost) if queue is not None else ():
            for route in list(channel.publisher.routes.values()):
                vhost.budget.left -= 1 + (len(route.targets.queues) >> QUEUES_SHIFT)
                if vhost.budget.left <= 0:
                    yield
                if queue in route.targets.queues or queue in route.targets.streams:
                    key = (channel.handler.name, channel.number, route.exchange)
                    one = LatePublisher(queue, channel, route.exchange, [])
                    found.setdefault(key, one).keys.append(route.key)
        return [found[key] for key in sorted(found)]

    def name(self, thing: LatePublisher) -> str:
        return thing.channel.handler.name

    def row(self, vhost: VHost, thing: LatePublisher, asked: RowAsked) -> Info | None:
        channel = thing.channel
        if channel.is_closed:
            return None
        details = channel_details(channel)
        rates_of = (CHANNEL, str(details["name"]))
        stats = {name: channel.message_stats()[name] for name in ("publish", "confirm")}
        return {
            "queue": {"name": thing.queue.name, "vhost": vhost.name},
            "exchange": {"name": thing.exchange, "vhost": vhost.name},
            "channel_details": details,
            "routing_keys": sorted(thing.keys)[:KEYS_SHOWN],
            "routing_key_count": len(thing.keys),
            STATS: asked.with_rates(vhost, rates_of, stats, "msg_rates"),
        }


def _row(vhost: VHost, name: str, asked: RowAsked) -> Info | None:
    columns = asked.columns
    queue = vhost.table.served.get(name)
    if asked.has_stats and (columns.are_all or not columns.names <= CHEAP):
        return _full(vhost, name, queue, asked)
    row: Info | None = {"name": name, "vhost": vhost.name} if vhost.table.has(name) else None
    if row is not None and (columns.are_all or not columns.names.isdisjoint(HEAD - row.keys())):
        row = queue_head(vhost, name)
    if row is None:
        return None
    row["node"] = node_name()
    if not asked.has_stats:
        row = {key: value for key, value in row.items() if value is not None}
        row.pop("effective_policy_definition", None)
    if (asked.has_stats or asked.has_totals) and columns.has_any(LENGTHS | _DETAILS):
        is_open = queue is not None and not queue.is_crashed
        lengths = _lengths({} if is_open else queue_row(vhost, name) or {}, queue)
        row |= lengths
        if asked.has_stats and columns.has_any(_DETAILS):
            row |= asked.with_rates(vhost, (QUEUE, name), lengths, "lengths")
    if asked.has_stats:
        row["consumers"] = 0 if queue is None else queue.consumers.count
        if queue is not None and columns.has(STATS):
            _add_stats(vhost, queue, row, asked)
    return row


def _add_stats(vhost: VHost, queue: QueueOrStream, row: Info, asked: RowAsked) -> None:
    """Add message_stats, which RabbitMQ has from the first message on."""
    counters = queue.counters()
    if any(counters.values()):
        row[STATS] = asked.with_rates(vhost, (QUEUE, queue.name), counters, "msg_rates")


def _lengths(info: Info, queue: QueueOrStream | None) -> dict[str, int]:
    """Return the lengths of a queue. info: its row if it is not open, or has crashed."""
    if queue is not None and not queue.is_crashed:
        return queue.lengths()
    return {column: int_of(info, column) for column in LENGTHS}


def _full(vhost: VHost, name: str, queue: QueueOrStream | None, asked: RowAsked) -> Info | None:
    """Return a whole row; None if the queue is gone."""
    row = queue_head(vhost, name)
    if row is None:
        return None
    if queue is not None and queue.is_crashed:
        queue = None  # nothing is known of it but what is stored
    if isinstance(queue, BrokerQueue):
        facts: Facts = queue.amq.info()
        own = _own_of_open(facts)
        own["generation"] = queue.generation
        own["refused"] = queue.refused
    else:
        info = queue_row(vhost, name) or {}
        facts = {fact: int_of(info, column) for column, fact in _FACTS.items()}
        own = {key: info[key] for key in _OWN if key in info}
    ready = int(facts["len"])
    lengths = lengths_of(ready, int(facts["depth"]))
    row |= asked.with_rates(vhost, (QUEUE, name), lengths, "lengths")
    row["node"] = node_name()
    if queue is not None:
        row["idle_since"] = idle_since(vhost, queue)
        _add_stats(vhost, queue, row, asked)
        if queue.is_exclusive:
            row["owner_pid_details"] = _owner(queue)
        if queue.creator:
            row["user_who_performed_action"] = queue.creator
    _add_consumers(queue, ready, row)
    row |= _NOTHING
    _add_places(queue, facts, row, own)
    row["penstock"] = own
    if row["type"] in (QUORUM, STREAM):
        row |= _of_type(queue, str(row["type"]))
    if isinstance(queue, BrokerQueue) and ready == facts["alphas"]:
        _add_head(vhost, queue, row)  # from RAM
    return row


def list_row(vhost: VHost, name: str, asked: RowAsked) -> Info | None:
    """Return a row of list_queues with what is asked for, at least; None if the queue is gone."""
    columns = asked.columns
    if not columns.are_all and columns.names <= LISTED_SAME:
        return _row(vhost, name, asked)
    row = queue_row(vhost, name)
    if row is None or not columns.has_any(LISTED_MORE):
        return row
    queue = vhost.table.served.get(name)
    if queue is not None and queue.is_crashed:
        queue = None
    facts = {fact: int_of(row, column) for column, fact in _FACTS.items()}
    _add_listed_places(queue, facts, row)
    _add_listed_consumers(queue, facts["len"], row)
    node = node_name() if row["type"] in (QUORUM, STREAM) else None
    row["leader"] = node
    row["members"] = row["online"] = None if node is None else [node]
    row["head_message_timestamp"] = None
    if isinstance(queue, BrokerQueue) and facts["len"] == facts["alphas"]:
        _add_head(vhost, queue, row)
    row["pid"] = None  # a queue has no process, and no mirrors
    row["slave_pids"] = row["synchronised_slave_pids"] = ()
    return row


def _own_of_open(facts: Facts) -> Info:
    """Return what only Penstock has, of a queue that is open."""
    return {
        "why": "",
        "set_aside": facts.get("set_aside", 0),
        **{fact: limit(facts[fact]) for fact in LIMITS.values()},
        "paged_by": facts["paged_by"],
        "rejected": facts.get("rejected", 0),
        "expired": facts.get("expired", 0),
        "maxlen": facts.get("maxlen", 0),
        "delivery_limit": facts.get("delivery_limit", 0),
        "dead_letters_dropped": facts["dead_letters_dropped"],
        "dead_letter_cycles": facts["dead_letter_cycles"],
        "alerts_raised": facts["alerts_raised"],
    }


def _add_listed_places(queue: QueueOrStream | None, facts: Facts, row: Info) -> None:
    """Add the columns about where the messages are that lists of the commands have too."""
    total, in_ram = int(facts["depth"]), int(facts.get("ram_messages", 0))
    size, alphas = int(facts["bytes"]) + int(facts["unacked_bytes"]), int(facts["alphas"])
    stored, stored_size = total, size
    if isinstance(queue, BrokerQueue):
        kept = queue.amq.backing.indexes() if queue.is_durable else []
        stored = sum([index.count for index in kept])
        stored_size = sum([index.bytes for index in kept])
    in_ram_size = int(facts.get("alpha_bytes", 0)) + int(facts.get("elsewhere_bytes", 0))
    row["messages_ready_ram"] = alphas
    row["messages_unacknowledged_ram"] = max(in_ram - alphas, 0)
    row["messages_persistent"] = stored
    row["message_bytes_ram"] = min(size, in_ram_size)
    row["message_bytes_persistent"] = stored_size


def _add_places(queue: QueueOrStream | None, facts: Facts, row: Info, own: Info) -> None:
    """Add the columns about where the messages are: in RAM, on disk, and in which part."""
    _add_listed_places(queue, facts, row)
    ready, total, in_ram = int(facts["len"]), int(facts["depth"]), int(facts.get("ram_messages", 0))
    ready_size, unacked_size = int(facts["bytes"]), int(facts["unacked_bytes"])
    alphas, delta, size = int(facts["alphas"]), facts["delta"], ready_size + unacked_size
    next_seq = 0
    if isinstance(queue, BrokerQueue):
        next_seq = sum([index.next_seq for index in queue.amq.backing.indexes()])
    row["messages_ram"] = in_ram
    row["messages_paged_out"] = total - in_ram
    row["message_bytes"] = size
    row["message_bytes_ready"] = ready_size
    row["message_bytes_unacknowledged"] = unacked_size
    row["message_bytes_paged_out"] = size - int_of(row, "message_bytes_ram")
    row["memory"] = own["ram_bytes"] = facts["ram_bytes"]
    row["disk_reads"] = facts.get("disk_reads", 0)
    row["disk_writes"] = facts.get("disk_writes", 0)
    row["backing_queue_status"] = {
        "version": 1,
        "mode": facts.get("mode", "default"),
        "len": ready,
        "q1": facts.get("q1", 0),
        "q2": facts.get("q2", 0),
        "q3": facts.get("q3", 0),
        "q4": facts.get("q4", 0),
        "delta": ["delta", "todo", delta, 0, "todo"],
        "target_ram_count": _target_count(own.get("target_bytes"), ready, size),
        "next_seq_id": next_seq,
        "avg_ingress_rate": facts.get("in_per_s", 0.0),
        "avg_egress_rate": facts.get("out_per_s", 0.0),
        "avg_ack_ingress_rate": facts.get("ack_in_per_s", 0.0),
        "avg_ack_egress_rate": facts.get("ack_out_per_s", 0.0),
    }
    own["alphas"] = alphas
    own["betas"] = facts["betas"]
    own["gammas"] = facts["gammas"]
    own["delta"] = delta
    own["delayed"] = facts["delayed"]
    own["leased"] = facts.get("leased", 0)
    own["is_flowed"] = bool(facts["is_flowed"])
    own["disk_bytes"] = row["message_bytes_persistent"]
    own["backlog_as_alphas_bytes"] = size + total * ALPHA_BYTES


def _target_count(target: object, ready: int, bytes_all: int) -> int | str:
    """Return how many alphas may be in RAM, of the average size that messages have now; RabbitMQ's
    word if there is no limit."""
    if not isinstance(target, int):
        return "infinity"
    return target // (ALPHA_BYTES + bytes_all // max(ready, 1))


# What RabbitMQ's rows have and nothing here stands for.
_NOTHING: Final[Info] = {
    "garbage_collection": {}, "reductions": 0, "reductions_details": {"rate": 0.0},
    "slave_nodes": [], "synchronised_slave_nodes": [], "recoverable_slaves": None,
}  # fmt: skip


def _add_consumers(queue: QueueOrStream | None, ready: int, row: Info) -> None:
    """Add the columns about consumers."""
    row["consumers"] = row["active_consumers"] = 0 if queue is None else queue.consumers.count
    row["single_active_consumer_tag"] = None
    _add_listed_consumers(queue, ready, row)
    active = None if queue is None else queue.consumers.active
    if active is not None:
        row["single_active_consumer_tag"] = active.tag
        row["active_consumers"] = 1


def _add_listed_consumers(queue: QueueOrStream | None, ready: int, row: Info) -> None:
    """Add the columns about consumers that lists of the commands have too. consumer_utilisation:
    1.0 if they would take a message now, else 0.0."""
    row["consumer_utilisation"] = row["consumer_capacity"] = 0
    row["exclusive_consumer_tag"] = None
    if queue is None or not queue.consumers.count:
        return
    consumers = queue.consumers
    takes = 1.0 if not ready or consumers.room(1) else 0.0
    row["consumer_utilisation"] = row["consumer_capacity"] = takes
    if consumers.has_exclusive():
        row["exclusive_consumer_tag"] = consumers.all()[0].tag


def _of_type(queue: QueueOrStream | None, kind: str) -> Info:
    """Return the columns that only streams and quorum queues have."""
    node = node_name()
    found: Info = {"leader": node, "members": [node], "online": [node]}
    if kind == QUORUM:
        found |= {"messages_dlx": 0, "message_bytes_dlx": 0, "open_files": {node: 0}}
        found["single_active_consumer_ctag"] = None
    if kind == STREAM:
        found["readers"] = {node: 0 if queue is None else queue.consumers.count}
    return found


def int_of(info: Info, name: str) -> int:
    """Return a number of a row, 0 if it has none."""
    value = info.get(name, 0)
    return value if isinstance(value, int) else 0


def _owner(queue: QueueOrStream) -> Info:
    name = getattr(queue.owner, "name", "")
    return {"name": name, **peer_of(name)}


def _add_head(vhost: VHost, queue: BrokerQueue, row: Info) -> None:
    """Add when the oldest ready message came, and its property timestamp."""
    row["head_message_timestamp"] = None
    found = queue.amq.browse(None, 1, in_pieces=True)
    if not found:
        return
    message = found[0].message
    own = row.get("penstock")
    if isinstance(own, dict) and message.time:
        own["oldest_ready_s"] = max(vhost.clock.wall_ms() // 1000 - message.time, 0)
    _, properties = vhost.headers.parts(message.header, queue.name)
    row["head_message_timestamp"] = BasicProperties.decode(properties).timestamp


def consumer_row(vhost: VHost, consumer: Consumer) -> Info:
    """Return the row of a consumer in RabbitMQ's HTTP shape."""
    queue = consumer.queue
    consumers = queue.consumers
    channel = consumer.channel
    is_active = not consumers.is_single_active or consumers.active is consumer
    timeout_s = vhost.settings.consumer_timeout_s
    return {
        "arguments": consumer.arguments,
        "ack_required": not consumer.no_ack,
        "active": is_active,
        "activity_status": "single_active" if consumers.is_single_active and is_active else "up",
        "channel_details": channel_details(channel) if isinstance(channel, Channel) else [],
        "consumer_tag": consumer.tag,
        "consumer_timeout": round(consumer.timeout_or(timeout_s or 0.0) * 1000) or None,
        "exclusive": consumer.is_exclusive,
        "prefetch_count": consumer.prefetch,
        "queue": {"name": queue.name, "vhost": vhost.name},
        "penstock": {
            "unacked": consumer.unacked,
            "delivered": consumer.delivered,
            "priority": consumer.priority,
            "ack_s": consumer.ack_s,
        },
    }


def consumer_rows(vhost: VHost, consumers: Sequence[Consumer]) -> Generator[None, None, list[Info]]:
    """Return the rows of those that are not cancelled meanwhile, in slices."""
    found: list[Info] = []
    for consumer in consumers:
        if not consumer.is_cancelled:
            found.append(consumer_row(vhost, consumer))
        vhost.budget.left -= ROW_STEPS
        if vhost.budget.left <= 0:
            yield
    return found


def channel_details(channel: Channel) -> Info:
    """Return what rows of other things say of a channel. RabbitMQ has no user_provided_name."""
    connection = channel.handler.name
    given = channel.handler.facts.given_name()
    return {
        **({"user_provided_name": given} if given else {}),
        "connection_name": connection,
        "name": channel.name,
        "node": node_name(),
        "number": channel.number,
        "user": channel.identity.name,
        **peer_of(connection),
    }


def peer_of(connection: str) -> Info:
    """Return the client's address, from the name of its connection: "host:port -> host:port"."""
    host, _, port = connection.partition(" -> ")[0].rpartition(":")
    return {"peer_host": host, "peer_port": int(port) if port.isdecimal() else 0}
