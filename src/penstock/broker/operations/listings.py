"""Rows of the commands' lists of a vhost, such as its queues and its alerts; and its status.

Rows are dicts with the names of RabbitMQ's listings, where it has the thing: messages are ready and
unacknowledged ones together, message_bytes the bytes of their bodies, memory what is counted in
RAM. Where RabbitMQ has the process of a connection or a channel, there is its name, which
close_connection takes; a queue has no process. What only Penstock has is called as it is everywhere
here: alphas, betas, gammas, delta, and `delayed`. Values are those of JSON; arguments may hold
bytes, times and decimals as a client gave them. Each list is made and written as JSON row by row,
in slices between turns (pages.py chooses the rows): it shows each row as it is at that moment, and
leaves out what is deleted meanwhile.

Listing opens nothing. The counts of a durable queue that nobody has named since the start come from
its indexes, and all that it holds is in delta.

The server's process lists connections, because it also knows those that are being handed over.
"""

from collections.abc import Iterator
from typing import Final

from penstock.broker.arguments import type_of
from penstock.broker.broker_queue import BrokerQueue, Consumer, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.channel import Channel
from penstock.broker.dispatch import STEP_BYTES
from penstock.broker.operations.call import ROW_STEPS, Call, Functions, Slices, listed
from penstock.broker.operations.policies import parameter_rows
from penstock.broker.policies import EXCHANGE, OPERATOR_POLICY, POLICY
from penstock.broker.queue_table import indexes_of
from penstock.broker.rates import QUEUE as QUEUE_RATES
from penstock.broker.topology import EXCHANGE as EXCHANGE_END
from penstock.broker.topology import QUEUE, Exchange
from penstock.broker.vhost import VHost
from penstock.clock import date
from penstock.operation_json import JsonParts
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.delays import MARK
from penstock.queues.queue_options import CLASSIC
from penstock.queues.queue_set import bytes_of
from penstock.queues.stream_options import QUEUE_TYPE
from penstock.routing.exchange_types import Binding
from penstock.storage.files.durability import DISK, MODE_NAMES
from penstock.storage.index.queue_index import QueueIndex

Info = dict[str, object]
STATES: Final = ("alphas", "betas", "gammas", "delta")


def queue_info(vhost: VHost, queue: QueueOrStream) -> Info:
    """Return the row of a queue or stream that is open."""
    found = _queue_head(vhost, queue)
    if isinstance(queue, BrokerStream):
        return found | _stream_counts(vhost, queue)
    assert isinstance(queue, BrokerQueue), "there is no third kind"
    if queue.is_crashed:
        indexes = indexes_of(vhost.engine, bytes_of(queue.name))
        counts = _stored_counts(indexes, _state(vhost, queue), queue.why)
        return found | counts
    facts = queue.amq.info()
    leased = int(facts.get("leased", 0))
    ready, pending = int(facts["len"]), int(facts["depth"]) - int(facts["len"])
    found |= {
        "state": _state(vhost, queue),
        "generation": queue.generation,
        "why": "",
        "is_flowed": bool(facts["is_flowed"]),
        "messages": ready + pending,
        "messages_ready": ready,
        "messages_unacknowledged": pending,
        "leased": leased,
        "delayed": facts["delayed"],
        "message_bytes": int(facts["bytes"]) + int(facts["unacked_bytes"]),
        "message_bytes_ready": facts["bytes"],
        "message_bytes_unacknowledged": facts["unacked_bytes"],
        "consumers": queue.consumers.count,
        "memory": facts["ram_bytes"],
        "memory_alphas": facts["alpha_bytes"],
        "memory_rows": facts["row_bytes"],
        "memory_elsewhere": facts["elsewhere_bytes"],
        **{column: limit(facts[fact]) for column, fact in LIMITS.items()},
        "paged_by": facts["paged_by"],
        "messages_ram": facts["ram_messages"],
        "messages_paged_out": ready + pending - int(facts["ram_messages"]),
        "idle_since": idle_since(vhost, queue),
        "mode": facts["mode"],
        "message_stats": queue.counters(),
        "refused": queue.refused,
        **_pids(queue),
    }
    for name in (
        *STATES, "q1", "q2", "q3", "q4", "set_aside", "disk_reads",
        "disk_writes", "in_per_s", "out_per_s", "ack_in_per_s", "ack_out_per_s", "rejected",
        "expired", "maxlen", "delivery_limit", "dead_letters_dropped", "dead_letter_cycles",
        "alerts_raised",
    ):  # fmt: skip
        found[name] = facts.get(name, 0)
    return found


def _pids(queue: QueueOrStream) -> Info:
    """Return to whom a queue belongs: names of the connection and the channel."""
    consumers = queue.consumers
    channel = consumers.all()[0].channel if consumers.has_exclusive() else None
    return {
        "owner_pid": getattr(queue.owner, "name", None) if queue.is_exclusive else None,
        "exclusive_consumer_pid": channel.name if isinstance(channel, Channel) else None,
    }


# Columns about how much a queue may have in RAM, and the facts that they show.
LIMITS: Final = {
    "memory_target": "target_bytes", "memory_max": "max_bytes", "memory_min": "min_bytes",
    "memory_share": "share_bytes", "memory_duration": "duration_target_s",
}  # fmt: skip


def limit(value: float | str) -> float | str | None:
    """Return None instead of "no limit"."""
    if isinstance(value, str):
        return value
    return None if value >= UNLIMITED else value


def idle_since(vhost: VHost, queue: QueueOrStream) -> str:
    """Return the date since when nobody has used it, and no message has come or gone."""
    used_s = max(queue.used_at_s, vhost.rates.changed_s((QUEUE_RATES, queue.name)))
    idle_s = vhost.clock.monotonic() - used_s
    return date(vhost.clock.wall_ms() - round(idle_s * 1000))


def _stream_counts(vhost: VHost, stream: BrokerStream) -> Info:
    """Return the counts of a stream: all its records are ready for every reader; none is in RAM."""
    count, size = stream.len(), stream.size_bytes()
    consumers = stream.consumers.all()
    unacked = sum(consumer.unacked for consumer in consumers)
    return {
        "state": "running",
        "generation": stream.generation,
        "why": "",
        "is_flowed": count > 0,
        "messages": count,
        "messages_ready": count,
        "messages_unacknowledged": unacked,
        "leased": 0,
        "delayed": 0,
        "message_bytes": size,
        "message_bytes_ready": size,
        "message_bytes_unacknowledged": 0,
        "consumers": len(consumers),
        "memory": 0,
        "idle_since": idle_since(vhost, stream),
        "message_stats": stream.counters(),
        **_pids(stream),
        "partitions": len(stream.parts),
        "readers": len(stream.known_readers()),
        **dict.fromkeys(STATES, 0),
        "delta": count,
    }


def queue_row(vhost: VHost, name: str) -> Info | None:
    """Return the row of a queue or stream, which need not be open; None if it is gone."""
    queue = vhost.table.served.get(name)
    if queue is not None:
        return queue_info(vhost, queue)
    return _unopened_info(vhost, name) if vhost.table.is_stored(name) else None


def queue_head(vhost: VHost, name: str) -> Info | None:
    """Return of the row what needs nothing of its messages, and its state; None if it is gone."""
    queue = vhost.table.served.get(name)
    if queue is not None:
        head = _queue_head(vhost, queue)
        head["state"] = _state(vhost, queue)
        return head
    if not vhost.table.is_stored(name):
        return None
    return _unopened_head(vhost, name) | {"state": _unopened_state(vhost, name)}


def _state(vhost: VHost, queue: QueueOrStream) -> str:
    if queue.is_crashed:
        return "down" if queue.name in vhost.table.kept_down else "crashed"
    return "paused" if queue.consumers.is_paused else "running"


def _unopened_state(vhost: VHost, name: str) -> str:
    return "down" if vhost.table.kept_down.get(name) else "running"


def _unopened_head(vhost: VHost, name: str) -> Info:
    arguments, auto_delete = vhost.table.stored_facts(name)
    return _head(
        vhost, name, durable=True, exclusive=False, auto_delete=auto_delete, arguments=arguments
    )


def _unopened_info(vhost: VHost, name: str) -> Info:
    why = vhost.table.kept_down.get(name, "")
    indexes = vhost.queue_set.stored_indexes(name)
    return _unopened_head(vhost, name) | _stored_counts(indexes, _unopened_state(vhost, name), why)


def _queue_head(vhost: VHost, queue: QueueOrStream) -> Info:
    return _head(
        vhost, queue.name, durable=queue.is_durable, exclusive=queue.is_exclusive,
        auto_delete=queue.is_auto_delete, arguments=queue.arguments,
    )  # fmt: skip


def _head(
    vhost: VHost, name: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Info
) -> Info:
    return {
        "name": name,
        "vhost": vhost.name,
        "type": arguments.get(QUEUE_TYPE, CLASSIC),
        **vhost.policies.of(name, type_of(arguments)).names(),
        "durable": durable,
        "exclusive": exclusive,
        "auto_delete": auto_delete,
        "arguments": arguments,
    }


def _stored_counts(indexes: list[QueueIndex], state: str, why: str) -> Info:
    """Return the counts of a queue that holds nothing in RAM; its indexes are all its parts. why:
    the reason why it is not running."""
    own = [index for index in indexes if MARK not in index.name]
    total, total_bytes = sum(index.count for index in own), sum(index.bytes for index in own)
    leased = sum(index.leased.count for index in own)
    leased_bytes = sum(index.leased.bytes for index in own)
    count = total - leased
    return {
        "state": state,
        "generation": min((index.number for index in own), default=0),
        "why": why,
        "is_flowed": count > 0,
        "messages": total,
        "messages_ready": count,
        "messages_unacknowledged": leased,
        "leased": leased,
        "delayed": sum(index.count for index in indexes) - total,
        "message_bytes": total_bytes,
        "message_bytes_ready": total_bytes - leased_bytes,
        "message_bytes_unacknowledged": leased_bytes,
        "consumers": 0,
        "memory": 0,
        **dict.fromkeys(STATES, 0),
        "delta": count,
    }


def declared_exchange(exchange: Exchange) -> Info:
    """Return what an exchange was declared as."""
    names = ("name", "type", "durable", "auto_delete", "internal", "arguments")
    return {name: getattr(exchange, name) for name in names}


END_KINDS: Final = {QUEUE: "queue", EXCHANGE_END: "exchange"}


def declared_binding(binding: Binding) -> Info:
    """Return what a binding was declared as."""
    return {
        "source": binding.source,
        "destination": binding.destination,
        "destination_type": END_KINDS[binding.kind],
        "routing_key": binding.key,
        "arguments": binding.arguments,
    }


def connection_info(columns: Info) -> Info:
    """Return the row of a connection that has these columns."""
    return {**columns, "pid": columns["name"]}


def exchange_info(vhost: VHost, exchange: Exchange) -> Info:
    """Return the row of an exchange."""
    policies = vhost.policies.of(exchange.name, EXCHANGE).names()
    return {"vhost": vhost.name, **declared_exchange(exchange), **policies}


def binding_info(vhost: VHost, binding: Binding) -> Info:
    """Return the row of a binding."""
    return {
        "vhost": vhost.name,
        "source_name": binding.source,
        "source_kind": "exchange",
        "destination_name": binding.destination,
        "destination_kind": END_KINDS[binding.kind],
        "routing_key": binding.key,
        "arguments": binding.arguments,
    }


def status(vhost: VHost) -> Info:
    """Return counts, the log, memory and alarms of the vhost."""
    engine = vhost.engine
    memory = vhost.monitor.info()
    rss = vhost.rss
    ready = sum(index.count for index in engine.queues.values())
    streams = vhost.streams.all()
    return {
        "name": vhost.name,
        "durability": MODE_NAMES[vhost.mode],
        "queues": vhost.table.count,
        "queues_open": len(vhost.table.served),
        "exchanges": len(vhost.exchanges),
        "streams": len(streams),
        "stream_records": sum(stream.len() for stream in streams),
        "stream_bytes": sum(stream.size_bytes() for stream in streams),
        "readers": sum(len(readers) for readers in engine.leases.table.by_queue.values()),
        "messages_leased": sum(index.leased.count for index in engine.queues.values()),
        "batches_rolling": len(engine.batches.rolling()),
        "messages_persistent": ready,
        "message_bytes_persistent": vhost.depth_bytes,
        "lsn": engine.log.last_lsn,
        "lsn_settled": engine.log.settled(DISK),
        "syncs": engine.log.syncs,
        "checkpoints": engine.checkpoints.count,
        "memory_bytes": memory["budget_bytes"],
        "counted_bytes": memory["counted_bytes"],
        "other_bytes": memory["other_bytes"],
        "topology_bytes": vhost.topology_bytes,
        "client_bytes": vhost.usage.client_bytes,
        "transaction_bytes": vhost.usage.transactions.total,
        "unfinished_bytes": vhost.unfinished_bytes,
        "output_bytes": vhost.usage.output.total,
        "unacked_bytes": vhost.usage.unacked.total,
        "rss_bytes": 0 if rss is None else rss.rss_bytes,
        "rss_limit_bytes": 0 if rss is None else rss.limit_bytes(vhost.monitor.budget_bytes),
        "is_memory_alarmed": vhost.is_memory_short,
        "is_disk_full": bool(memory["is_disk_full"]),
        "blocked_reason": vhost.blocked_reason,
        "blocked_since_ms": vhost.blocked_since_ms if vhost.blocked_reason else None,
    }


def object_totals(vhost: VHost) -> Info:
    """Return how many there are of each kind, by RabbitMQ's names."""
    counts = vhost.counts
    return {
        "connections": len(vhost.handlers),
        "channels": counts.channel_created - counts.channel_closed,
        "exchanges": len(vhost.exchanges),
        "queues": vhost.table.count,
        "consumers": counts.consumers,
    }


def channel_info(vhost: VHost, channel: Channel) -> Info:
    """Return the row of a channel."""
    user = channel.identity.name
    found = {
        "name": channel.name,
        "user": user,
        "vhost": vhost.name,
        **channel.info(),
        "why": "",
        "since": "",
    }
    if user in vhost.usage.full and not channel.can_deliver:
        waited_s = vhost.clock.monotonic() - vhost.usage.full[user]
        found["state"] = "flow"
        found["why"] = vhost.usage.full_text(user)
        found["since"] = date(vhost.clock.wall_ms() - round(waited_s * 1000))
    return found


def consumer_info(vhost: VHost, queue: QueueOrStream, consumer: Consumer) -> Info:
    """Return the row of a consumer. active: it is given messages: always, but for a single active
    consumer."""
    consumers = queue.consumers
    channel = consumer.channel
    is_active = not consumers.is_single_active or consumers.active is consumer
    found: Info = {
        "queue_name": queue.name,
        "vhost": vhost.name,
        "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack,
        "prefetch_count": consumer.prefetch,
        "exclusive": consumer.is_exclusive,
        "priority": consumer.priority,
        "active": is_active,
        "activity_status": "single_active" if consumers.is_single_active and is_active else "up",
        "unacked": consumer.unacked,
        "delivered": consumer.delivered,
        "arguments": consumer.arguments,
    }
    if isinstance(channel, Channel):
        found["connection"] = channel.handler.name
        found["channel"] = found["channel_pid"] = channel.name
        found["user"] = channel.identity.name
    return found


def _topology(vhost: VHost) -> Iterator[tuple[str, Info | None]]:
    """Yield the entries of definitions, with their section; None in between."""
    for component, section in ((POLICY, "policies"), (OPERATOR_POLICY, "operator_policies")):
        for policy in vhost.policies.all(component):
            yield section, {"name": policy.name, **policy.value()}
    for row in parameter_rows(vhost):
        yield "parameters", row
    for exchange in list(vhost.exchanges.values()):
        yield "exchanges", declared_exchange(exchange)
    for name in vhost.table.names():
        yield "queues", _declared(vhost, name)
    for binding in list(vhost.router.bindings()):
        yield "bindings", declared_binding(binding)


DECLARED: Final = ("name", "durable", "auto_delete", "exclusive", "arguments")


def _declared(vhost: VHost, name: str) -> Info | None:
    """Return what a queue was declared as, None if it was deleted meanwhile."""
    queue = vhost.table.served.get(name)
    if queue is not None:
        found = _queue_head(vhost, queue)
    elif vhost.table.is_stored(name):
        found = _unopened_head(vhost, name)
    else:
        return None
    return {column: found[column] for column in DECLARED}


def _topology_in_slices(call: Call) -> Slices:
    """Return exchanges, queues and bindings as JSON."""
    budget = call.vhost.budget
    found = JsonParts(is_exact=True)
    found.begin(b"{")
    rows = _topology(call.vhost)
    waiting = next(rows, None)
    for section in (
        "policies", "operator_policies", "parameters", "exchanges", "queues", "bindings",
    ):  # fmt: skip
        found.begin(b"[", section)
        while waiting is not None and waiting[0] == section:
            if waiting[1] is not None:
                budget.left -= found.add(waiting[1]) // STEP_BYTES
            budget.left -= ROW_STEPS
            if budget.left <= 0:
                yield
            waiting = next(rows, None)
        found.end(b"]")
    found.end(b"}")
    return found


FUNCTIONS: Final[Functions] = {
    "vhost_status": lambda call: call.reply(status(call.vhost)),
    "list_topology": lambda call: call.in_slices(_topology_in_slices(call)),
    "list_alerts": lambda call: call.in_slices(listed(call, iter(call.vhost.alerts.list.rows()))),
}
