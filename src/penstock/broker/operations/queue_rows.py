"""Queues: the rows of queues and streams in RabbitMQ's HTTP shape, for list_rows and describe_row.

They are made from the rows of `listings.queue_info`, whose columns are mostly RabbitMQ's: here they
get rates, and RabbitMQ's names for the parts of a queue; what it has not is in `penstock`. What a
row costs depends on what is asked for: the columns of HEAD need nothing of the messages, LENGTHS
two numbers. Nothing is opened, and no file is read for a list: only `details` reads the head of a
queue that has left RAM.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.broker.broker_queue import BrokerQueue, Consumer, QueueOrStream
from penstock.broker.channel import Channel, ChannelOwner
from penstock.broker.operations.kinds import RATE, STATS, RowAsked, RowKind
from penstock.broker.operations.listings import queue_head, queue_row
from penstock.broker.queue_table import LENGTH_OF
from penstock.broker.rates import LENGTHS, QUEUE, Info
from penstock.broker.vhost import CHANNEL, VHost
from penstock.codec.properties import BasicProperties
from penstock.counts import DELIVERY_NAMES
from penstock.node_name import node_name
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
# Columns of `queue_info` that RabbitMQ's rows have too, and what they are called in ours.
SAME: Final = (
    "state", "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged", "consumers",
    "memory", "idle_since",
)  # fmt: skip
OWN: Final = {
    "alphas": "alphas", "betas": "betas", "gammas": "gammas", "delta": "delta",
    "delayed": "delayed", "leased": "leased", "set_aside": "set_aside", "memory": "ram_bytes",
    "memory_target": "target_bytes", "memory_max": "max_bytes", "memory_min": "min_bytes",
    "memory_share": "share_bytes", "memory_duration": "duration_target_s", "paged_by": "paged_by",
    "is_flowed": "is_flowed", "why": "why", "rejected": "rejected", "expired": "expired",
    "maxlen": "maxlen", "delivery_limit": "delivery_limit",
    "dead_letters_dropped": "dead_letters_dropped", "dead_letter_cycles": "dead_letter_cycles",
    "alerts_raised": "alerts_raised", "partitions": "partitions", "readers": "readers",
}  # fmt: skip
EWMA: Final = {
    "in_per_s": "avg_ingress_rate", "out_per_s": "avg_egress_rate",
    "ack_in_per_s": "avg_ack_ingress_rate", "ack_out_per_s": "avg_ack_egress_rate",
}  # fmt: skip
LOOKED_AT: Final = 1024  # unacked deliveries of a channel
DELIVERIES_SHOWN: Final = 100  # of a consumer
KEYS_SHOWN: Final = 10  # of a publisher
# Columns for which nothing has to be found out about where messages are.
CHEAP: Final = HEAD | LENGTHS | _DETAILS | {"consumers", STATS}
UNLIMITED: Final = "infinity"  # RabbitMQ's target_ram_count of a queue without a limit
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
            return vhost.rates.moving(QUEUE, column.removeprefix(f"{STATS}.").removesuffix(RATE))
        number = COUNTED.get(column)
        if number is None:
            return None
        kept = vhost.table.kept(column, number)
        yield from kept.update()
        return kept.of.copy()  # the caller has turns of others meanwhile

    def row(self, vhost: VHost, thing: str, asked: RowAsked) -> Info | None:
        return _row(vhost, thing, asked)

    def details(self, vhost: VHost, thing: str, asked: RowAsked) -> Info | None:
        row = _row(vhost, thing, asked)
        if row is None:
            return None
        queue = vhost.table.served.get(thing)
        consumers = [] if queue is None else queue.consumers.all()
        row["consumer_details"] = [consumer_row(vhost, one) for one in consumers]
        row["incoming"] = []
        row["deliveries"] = []
        own = row.get("penstock")
        if isinstance(queue, BrokerQueue) and isinstance(own, dict) and not queue.is_crashed:
            _add_head(vhost, queue, row)
            now_s = vhost.clock.monotonic()
            ages = [one.ages(now_s, 1) for one in holders(vhost, queue)]
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


def holders(vhost: VHost, queue: QueueOrStream) -> list[UnackedHolder]:
    """Return who has unacked messages of this queue, by connection and channel."""
    found: list[UnackedHolder] = []
    for owner in vhost.handlers:
        assert isinstance(owner, ChannelOwner)
        for channel in owner.channels.values():
            left = channel.unacked.count
            for consumer in channel.consumers.values():
                left -= consumer.unacked
                if consumer.unacked and consumer.queue is queue:
                    found.append(UnackedHolder(queue, channel, consumer))
            if left > 0 and UnackedHolder(queue, channel, None).ages(0.0, 1):
                found.append(UnackedHolder(queue, channel, None))
    return sorted(found, key=lambda one: (one.channel.handler.name, one.channel.number))


class UnackedRows(RowKind):
    """Who has unacked messages of a queue, and since when. of: {"queue": name}."""

    called = "consumer"
    selectors = ("queue",)

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[UnackedHolder]:
        queue = vhost.table.served.get(of.get("queue", ""))
        return [] if queue is None else holders(vhost, queue)

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
        queue = vhost.table.served.get(of.get("queue", ""))
        found: dict[tuple[str, int, str], LatePublisher] = {}
        for owner in vhost.handlers if queue is not None else ():
            assert isinstance(owner, ChannelOwner)
            for channel in owner.channels.values():
                for route in channel.publisher.routes.values():
                    if queue in route.targets.queues or queue in route.targets.streams:
                        key = (owner.name, channel.number, route.exchange)
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
        info = queue_row(vhost, name)
        return None if info is None else _full(vhost, name, queue, info, asked)
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
        if asked.has_stats:
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


def _full(
    vhost: VHost, name: str, queue: QueueOrStream | None, info: Info, asked: RowAsked
) -> Info:
    """Return a whole row. info: of `queue_info`."""
    lengths = _lengths(info, queue)
    row = {column: info[column] for column in (*HEAD, *SAME) if column in info}
    row |= asked.with_rates(vhost, (QUEUE, name), lengths, "lengths")
    row["node"] = node_name()
    if queue is not None and queue.is_crashed:
        queue = None  # nothing is known of it but what is stored
    if queue is not None:
        _add_stats(vhost, queue, row, asked)
        if queue.is_exclusive:
            row["owner_pid_details"] = _owner(queue)
        if queue.creator:
            row["user_who_performed_action"] = queue.creator
    row |= _consumers(queue, lengths["messages_ready"]) | _places(queue, info)
    row |= _of_type(queue, str(info["type"]))
    if isinstance(queue, BrokerQueue) and lengths["messages_ready"] == info["alphas"]:
        _add_head(vhost, queue, row)  # from RAM
    return row


# What RabbitMQ's rows have and nothing here stands for.
_NOTHING: Final[Info] = {
    "garbage_collection": {}, "reductions": 0, "reductions_details": {"rate": 0.0},
    "slave_nodes": [], "synchronised_slave_nodes": [], "recoverable_slaves": None,
}  # fmt: skip


def _consumers(queue: QueueOrStream | None, ready: int) -> Info:
    """Return the columns about consumers. consumer_utilisation: 1.0 if they would take a message
    now, else 0.0."""
    found: Info = {
        "active_consumers": 0, "consumer_utilisation": 0, "consumer_capacity": 0,
        "exclusive_consumer_tag": None, "single_active_consumer_tag": None,
    }  # fmt: skip
    if queue is None or not queue.consumers.count:
        return found
    consumers = queue.consumers
    takes = 1.0 if not ready or consumers.room(1) else 0.0
    found["consumer_utilisation"] = found["consumer_capacity"] = takes
    found["active_consumers"] = consumers.count
    if consumers.active is not None:
        found["single_active_consumer_tag"] = consumers.active.tag
        found["active_consumers"] = 1
    if consumers.has_exclusive():
        found["exclusive_consumer_tag"] = consumers.all()[0].tag
    return found


def _places(queue: QueueOrStream | None, info: Info) -> Info:
    """Return the columns about where the messages are: in RAM, on disk, and in which part."""
    ready, total = int_of(info, "messages_ready"), int_of(info, "messages")
    in_ram, ready_in_ram = int_of(info, "messages_ram"), int_of(info, "alphas")
    size = int_of(info, "message_bytes")
    ram_size = min(size, int_of(info, "memory_alphas") + int_of(info, "memory_elsewhere"))
    stored, stored_size, next_seq = total, size, 0
    if isinstance(queue, BrokerQueue):
        indexes = queue.amq.backing.indexes()
        next_seq = sum([index.next_seq for index in indexes])
        kept = indexes if queue.is_durable else []
        stored = sum([index.count for index in kept])
        stored_size = sum([index.bytes for index in kept])
    own: Info = {ours: info[theirs] for theirs, ours in OWN.items() if theirs in info}
    own["disk_bytes"] = stored_size
    own["backlog_as_alphas_bytes"] = size + total * ALPHA_BYTES
    return {
        **_NOTHING,
        "messages_ram": in_ram,
        "messages_ready_ram": ready_in_ram,
        "messages_unacknowledged_ram": max(in_ram - ready_in_ram, 0),
        "messages_paged_out": total - in_ram,
        "messages_persistent": stored,
        "message_bytes_ram": ram_size,
        "message_bytes_paged_out": size - ram_size,
        "message_bytes_persistent": stored_size,
        "disk_reads": int_of(info, "disk_reads"),
        "disk_writes": int_of(info, "disk_writes"),
        "backing_queue_status": {
            "version": 1,
            "mode": info.get("mode", "default"),
            "len": ready,
            **{name: int_of(info, name) for name in ("q1", "q2", "q3", "q4")},
            "delta": ["delta", "todo", int_of(info, "delta"), 0, "todo"],
            "target_ram_count": _target_count(info, ready, size),
            "next_seq_id": next_seq,
            **{theirs: info.get(ours, 0.0) for ours, theirs in EWMA.items()},
        },
        "penstock": own,
    }


def _of_type(queue: QueueOrStream | None, kind: str) -> Info:
    """Return the columns that only streams and quorum queues have."""
    node = node_name()
    found: Info = {}
    if kind in (QUORUM, STREAM):
        found |= {"leader": node, "members": [node], "online": [node]}
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


def _target_count(info: Info, ready: int, bytes_all: int) -> int | str:
    """Return how many alphas may be in RAM, of the average size that messages have now."""
    target = info.get("memory_target")
    if not isinstance(target, int):
        return UNLIMITED
    return target // (ALPHA_BYTES + bytes_all // max(ready, 1))


def _owner(queue: QueueOrStream) -> Info:
    name = getattr(queue.owner, "name", "")
    return {"name": name, **peer_of(name)}


def _add_head(vhost: VHost, queue: BrokerQueue, row: Info) -> None:
    """Add when the oldest ready message came, and its property timestamp."""
    row["head_message_timestamp"] = None
    found = queue.amq.browse(None, 1)
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


def channel_details(channel: Channel) -> Info:
    """Return what rows of other things say of a channel."""
    connection = channel.handler.name
    return {
        "connection_name": connection,
        "name": f"{connection} ({channel.number})",
        "node": node_name(),
        "number": channel.number,
        "user": channel.identity.name,
        **peer_of(connection),
    }


def peer_of(connection: str) -> Info:
    """Return the client's address, from the name of its connection: "host:port -> host:port"."""
    host, _, port = connection.partition(" -> ")[0].rpartition(":")
    return {"peer_host": host, "peer_port": int(port) if port.isdecimal() else 0}
