"""VHostInfo: what a vhost tells people of its queues, exchanges and bindings: plain dicts.

The names of the fields are those of RabbitMQ's listings, where it has the thing: messages are ready
and unacknowledged ones together, message_bytes the bytes of their bodies, memory what is counted in
RAM. What only Penstock has is called as it is everywhere here: alphas, betas, gammas, delta, and
`delayed`. Values are what JSON has; arguments may hold bytes, times and decimals as a client gave
them.

Nothing is opened for being listed: of a durable queue that nobody has named since the start the
counts come from its indexes, in a moment, and all that it holds is in delta.

Not here: connections, channels and consumers (connection_handler.py), who asks (operations.py).
"""

from penstock.broker.arguments import CLASSIC
from penstock.broker.queue_table import bytes_of, indexes_of, text_of
from penstock.broker.served_queue import Served, ServedQueue
from penstock.broker.served_stream import ServedStream
from penstock.broker.topology import QUEUE, Exchange
from penstock.broker.vhost import VHost
from penstock.clock import date
from penstock.queues import factory
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.delays import MARK
from penstock.queues.stream_options import QUEUE_TYPE
from penstock.routing.exchange_types import Binding
from penstock.storage.durability import DISK, MODE_NAMES
from penstock.storage.queue_index import QueueIndex

Info = dict[str, object]


def queue_info(vhost: VHost, queue: Served) -> Info:
    """Of one queue or stream that is open."""
    found = _head(
        vhost, queue.name, durable=queue.is_durable, exclusive=queue.is_exclusive,
        auto_delete=queue.is_auto_delete, arguments=queue.arguments,
    )  # fmt: skip
    if isinstance(queue, ServedStream):
        return found | _stream_counts(queue)
    assert isinstance(queue, ServedQueue), "there is no third kind"
    if queue.is_crashed:
        state = "down" if queue.name in vhost.table.kept_down else "crashed"
        counts = _stored_counts(indexes_of(vhost.engine, bytes_of(queue.name)), state, queue.why)
        return found | counts
    told = queue.amq.info()
    leased = int(told.get("leased", 0))
    ready, pending = int(told["len"]), int(told["depth"]) - int(told["len"])
    found |= {
        "state": "running",
        "why": "",
        "is_flowed": bool(told["is_flowed"]),
        "messages": ready + pending,
        "messages_ready": ready,
        "messages_unacknowledged": pending,
        "leased": leased,
        "delayed": told["delayed"],
        "message_bytes": int(told["bytes"]) + int(told["unacked_bytes"]),
        "message_bytes_ready": told["bytes"],
        "message_bytes_unacknowledged": told["unacked_bytes"],
        "consumers": queue.consumers.count,
        "memory": told["ram_bytes"],
        "memory_alphas": told["alpha_bytes"],
        "memory_rows": told["row_bytes"],
        "memory_elsewhere": told["elsewhere_bytes"],
        "memory_target": _limit(told["target_bytes"]),
        "memory_max": _limit(told["max_bytes"]),
        "memory_min": _limit(told["min_bytes"]),
        "memory_share": _limit(told["share_bytes"]),
        "memory_duration": _limit(told["duration_target_s"]),
        "paged_by": told["paged_by"],
        "messages_ram": told["ram_messages"],
        "messages_paged_out": ready + pending - int(told["ram_messages"]),
        "idle_since": date(queue.used_at_ms),
        "mode": told["mode"],
        "message_stats": queue.counters(),
    }
    for name in (
        "alphas", "betas", "gammas", "delta", "q1", "q2", "q3", "q4", "set_aside", "disk_reads",
        "disk_writes", "in_per_s", "out_per_s", "ack_in_per_s", "ack_out_per_s", "rejected",
        "expired", "maxlen", "delivery_limit", "dead_letters_dropped", "alerts_raised",
    ):  # fmt: skip
        found[name] = told.get(name, 0)
    return found


def _limit(value: float | str) -> float | str | None:
    """None if there is no such limit."""
    if isinstance(value, str):
        return value
    return None if value >= UNLIMITED else value


def _stream_counts(stream: ServedStream) -> Info:
    """All its records are ready, for whoever reads them; nothing of them is in RAM."""
    count, size = stream.len(), stream.size_bytes()
    consumers = stream.consumers.all()
    unacked = sum(consumer.unacked for consumer in consumers)
    return {
        "state": "running",
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
        "idle_since": date(stream.used_at_ms),
        "message_stats": stream.counters(),
        "partitions": len(stream.parts),
        "readers": len(stream.known_readers()),
        "alphas": 0,
        "betas": 0,
        "gammas": 0,
        "delta": count,
    }


def list_queues(vhost: VHost) -> list[Info]:
    """Of all queues, by name."""
    unopened: dict[str, list[QueueIndex]] = {name: [] for name in vhost.table.stored}
    if unopened:
        for index in vhost.engine.state.queues.values():
            of = unopened.get(text_of(index.name.partition(factory.SEPARATOR)[0]))
            if of is not None:
                of.append(index)
    found = []
    for name in vhost.table.names():
        queue = vhost.table.served.get(name)
        if queue is not None:
            found.append(queue_info(vhost, queue))
        else:
            found.append(_unopened_info(vhost, name, unopened[name]))
    return found


def _unopened_info(vhost: VHost, name: str, indexes: list[QueueIndex]) -> Info:
    arguments, auto_delete = vhost.table.stored_facts(name)
    found = _head(
        vhost, name, durable=True, exclusive=False, auto_delete=auto_delete, arguments=arguments
    )
    why = vhost.table.kept_down.get(name, "")
    return found | _stored_counts(indexes, "down" if why else "running", why)


def _head(
    vhost: VHost, name: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Info
) -> Info:
    return {
        "name": name,
        "vhost": vhost.name,
        "type": arguments.get(QUEUE_TYPE, CLASSIC),
        "durable": durable,
        "exclusive": exclusive,
        "auto_delete": auto_delete,
        "arguments": arguments,
    }


def _stored_counts(indexes: list[QueueIndex], state: str, why: str) -> Info:
    """Of a queue that holds nothing in RAM; its indexes are all its parts. why: it is not up."""
    own = [index for index in indexes if MARK not in index.name]
    total, total_bytes = sum(index.count for index in own), sum(index.bytes for index in own)
    leased = sum(index.leased.count for index in own)
    leased_bytes = sum(index.leased.bytes for index in own)
    count = total - leased
    return {
        "state": state,
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
        "alphas": 0,
        "betas": 0,
        "gammas": 0,
        "delta": count,
    }


def exchange_info(vhost: VHost, exchange: Exchange) -> Info:
    """Of one exchange."""
    return {
        "vhost": vhost.name,
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": exchange.arguments,
    }


def list_exchanges(vhost: VHost) -> list[Info]:
    """Of all exchanges, by name; the default one is ""."""
    return [exchange_info(vhost, vhost.exchanges[name]) for name in sorted(vhost.exchanges)]


def binding_info(vhost: VHost, binding: Binding) -> Info:
    """Of one binding."""
    return _binding(
        vhost, binding.source, binding.kind, binding.destination, binding.key, binding.arguments
    )


def list_bindings(vhost: VHost) -> list[Info]:
    """Of all bindings: first those of the default exchange, one for each queue."""
    found = [_binding(vhost, "", QUEUE, name, name, {}) for name in vhost.table.names()]
    return found + [binding_info(vhost, binding) for binding in vhost.router.bindings()]


def _binding(
    vhost: VHost, source: str, kind: str, destination: str, key: str, arguments: Info
) -> Info:
    return {
        "vhost": vhost.name,
        "source_name": source,
        "source_kind": "exchange",
        "destination_name": destination,
        "destination_kind": "queue" if kind == QUEUE else "exchange",
        "routing_key": key,
        "arguments": arguments,
    }


def status(vhost: VHost) -> Info:
    """Of the whole vhost: counts, the log, memory, alarms."""
    engine = vhost.engine
    memory = vhost.monitor.info()
    rss = vhost.rss
    ready = sum(index.count for index in engine.state.queues.values())
    streams = vhost.streams.all()
    return {
        "name": vhost.name,
        "durability": MODE_NAMES[vhost.mode],
        "queues": len(vhost.table.served) + len(vhost.table.stored),
        "queues_open": len(vhost.table.served),
        "exchanges": len(vhost.exchanges),
        "streams": len(streams),
        "stream_records": sum(stream.len() for stream in streams),
        "stream_bytes": sum(stream.size_bytes() for stream in streams),
        "readers": sum(len(readers) for readers in engine.state.leases.by_queue.values()),
        "messages_leased": sum(index.leased.count for index in engine.state.queues.values()),
        "batches_rolling": len(engine.batches.rolling()),
        "messages_persistent": ready,
        "message_bytes_persistent": vhost.depth_bytes,
        "lsn": engine.last_lsn,
        "lsn_settled": engine.settled(DISK),
        "syncs": engine.log.syncs,
        "checkpoints": engine.checkpoints.count,
        "memory_bytes": memory["budget_bytes"],
        "counted_bytes": memory["counted_bytes"],
        "other_bytes": memory["other_bytes"],
        "topology_bytes": vhost.topology_bytes,
        "client_bytes": vhost.usage.client_bytes,
        "transaction_bytes": vhost.usage.transaction_bytes,
        "unfinished_bytes": vhost.unfinished_bytes,
        "rss_bytes": 0 if rss is None else rss.rss_bytes,
        "rss_limit_bytes": 0 if rss is None else rss.limit_bytes(vhost.monitor.budget_bytes),
        "is_memory_alarmed": vhost.is_memory_short,
        "is_disk_full": bool(memory["is_disk_full"]),
        "blocked_reason": vhost.blocked_reason,
    }
