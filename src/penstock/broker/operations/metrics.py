"""The operations `metrics` and `object_metrics`: numbers of a vhost for penstock.metric_table.

`metrics` returns totals that are kept where things happen, or counts of what there is one of in a
vhost; no queue is asked. Streams, leases and channels are walked, in slices.

`object_metrics` returns rows of the families of FAMILIES: for each queue, exchange or reader its
labels and numbers. They are made in slices, and written as JSON some at a time. Whoever gives the
`stamp` of an earlier answer is told only of the queues that have changed since, with the names of
those that are `gone`; of exchanges, clients, readers and leases all rows come each time.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Final

from penstock.broker.broker_queue import BrokerQueue, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.channel import Channel, ChannelOwner
from penstock.broker.dispatch import LOOK_STEPS, Source
from penstock.broker.exactly_once.batches import batch_manager
from penstock.broker.exactly_once.leases import lease_manager
from penstock.broker.operations.call import Call, Functions, Slices, in_budget
from penstock.broker.operations.connections import owners
from penstock.broker.operations.listings import object_totals, queue_row
from penstock.broker.operations.queue_rows import int_of
from penstock.broker.operations.streams import Lags
from penstock.broker.vhost import VHost
from penstock.operation_json import JsonParts
from penstock.queues.backing_queue import QueueStates
from penstock.queues.queue_set import text_of

Values = dict[str, object]
SLICE: Final = 256


def _memory(vhost: VHost) -> Values:
    monitor = vhost.monitor
    states = monitor.states
    desired_s = monitor.desired_s
    return {
        "memory_budget_bytes": monitor.budget_bytes,
        "memory_counted_bytes": monitor.counted_bytes,
        "memory_other_bytes": monitor.other_bytes,
        "message_bytes": {"ready": states.ready_bytes, "unacked": states.unacked_bytes},
        "backlog_as_alphas_bytes": states.as_alphas_bytes,
        "oldest_ready_seconds": _age_s(vhost, states.oldest_s),
        "queues_over_target": states.over_target,
        "target_seconds": "+Inf" if desired_s == float("inf") else desired_s,
    }


def _age_s(vhost: VHost, time_s: int) -> int:
    """Return the age of what came then; 0 of nothing."""
    return max(vhost.clock.wall_ms() // 1000 - time_s, 0) if time_s else 0


def _flow(vhost: VHost) -> Values:
    totals = vhost.engine.totals
    counts = vhost.counts.messages
    blocked = vhost.blocked_reason.split(" and ") if vhost.blocked_reason else []
    return {
        "publishers_blocked": {
            reason: int(reason in blocked) for reason in ("memory", "disk", "descriptors")
        },
        "blocked_seconds_total": vhost.blocked_seconds(),
        "queue_wait_seconds": vhost.dispatch.wait_seconds.facts(),
        "confirm_seconds": vhost.dispatch.confirm_seconds.facts(),
        "messages_published_total": counts.publish,
        "messages_delivered_total": counts.stats()["deliver_get"],
        "messages_acked_total": counts.ack,
        "messages_redelivered_total": counts.redeliver,
        "messages_requeued_total": counts.requeue,
        "messages_dropped_total": vhost.queue_set.deaths.over_limit,
        "messages_unroutable_total": counts.return_unroutable + counts.drop_unroutable,
        "dead_lettered_total": dict(vhost.queue_set.deaths.of),
        "dead_letters_dropped_total": vhost.queue_set.deaths.dropped,
        "paged_out_total": {
            "beta": totals.betas, "gamma": totals.gammas, "delta": totals.deltas
        },
        "paged_out_bytes_total": totals.paged_out_bytes,
        "paged_in_total": totals.paged_in,
        "paged_in_bytes_total": totals.paged_in_bytes,
        "page_in_runs_total": totals.page_in_runs,
        "page_in_seconds": totals.page_in_seconds.facts(),
        "read_ahead_hits_total": totals.read_ahead_hits,
        "read_ahead_misses_total": totals.read_ahead_misses,
    }  # fmt: skip


def _storage(vhost: VHost) -> Values:
    batches = batch_manager(vhost)
    leases = lease_manager(vhost)
    return {
        **vhost.engine.facts(),
        "checksum_failures_total": dict(vhost.alerts.damages),
        "batches_rolling": len(vhost.engine.batches.rolling()),
        "batches_waiting": batches.waiting(),
        "batches_committed_total": batches.committed,
        "batches_repeated_total": batches.repeated,
        "batch_rows_total": batches.rows,
        "staging_expired_total": batches.expired,
        "lease_commits_total": leases.commits,
        "leases_released_total": leases.released,
        "stream_read_records_total": {"amqp": vhost.counts.stream_records},
        "stream_read_bytes_total": {"amqp": vhost.counts.stream_bytes},
        "batch_commit_seconds": batches.seconds.facts(),
    }


def _messages(vhost: VHost) -> Generator[None, None, Values]:
    """Return the messages by state. Those of queues that nobody has opened since the start are in
    delta, and their indexes count them."""
    states, delayed = vhost.monitor.states, vhost.monitor.delayed
    deltas = states.deltas
    if vhost.queue_set.stored:
        opened = vhost.queue_set.opened_seq
        for n, index in enumerate(list(vhost.engine.queues.values())):
            if index.is_durable and index.number not in opened:
                deltas += index.count - index.leased.count
            if n % SLICE == SLICE - 1:
                yield
    return {
        "messages": {
            "alpha": states.alphas, "beta": states.betas, "gamma": states.gammas, "delta": deltas,
            "unacked": states.unacked, "delayed": _all_of(delayed),
        }
    }  # fmt: skip


def _all_of(states: QueueStates) -> int:
    return states.ready + states.unacked


def _clients(vhost: VHost) -> Generator[None, None, Values]:
    pending = publishers = 0
    for peer in list(vhost.handlers):
        assert isinstance(peer, ChannelOwner)
        for channel in peer.channels.values():
            confirms = channel.publisher.confirms
            pending += 0 if confirms is None else confirms.last_tag - confirms.answered
            publishers += channel.counts.publish > 0
        yield
    return {"confirms_pending": pending, "publishers": publishers}


def _streams(vhost: VHost) -> Generator[None, None, Values]:
    size = lag = lag_us = 0
    lags = Lags(vhost.clock.wall_us())
    for stream in list(vhost.engine.streams.by_number.values()):
        size += stream.queue.bytes
        offsets = [reader.offset for reader in stream.readers.values()]
        if offsets:
            lag = max(lag, lags.records(stream, min(offsets)))
            lag_us = max(lag_us, lags.age_us(stream, min(offsets)) or 0)
        yield
    return {
        "streams": len(vhost.streams.all()),
        "stream_stored_bytes": size,
        "reader_lag_max_records": lag,
        "reader_lag_max_seconds": lag_us / 1e6,
    }


def _leases(vhost: VHost) -> Generator[None, None, Values]:
    leases = messages = 0
    since_ms = now_ms = vhost.clock.wall_ms()
    for number, readers in list(vhost.engine.leases.table.by_queue.items()):
        index = vhost.engine.queues.get(number)
        if index is not None:
            leases += len(readers)
            for lease in readers.values():
                messages += lease.count
                since_ms = min(since_ms, lease.since_ms or now_ms)
        yield
    return {
        "leases": leases,
        "messages_leased": messages,
        "lease_oldest_seconds": (now_ms - since_ms) / 1000,
    }


def metrics(call: Call) -> Slices:
    """Return the values of the vhost by the names of the table, and what RabbitMQ counts."""
    vhost = call.vhost
    found = {**_memory(vhost), **_flow(vhost), **_storage(vhost)}
    found |= {name: one.facts() for name, one in vhost.loop_seconds.items()}
    for part, steps in ((_messages, SLICE), (_clients, 1), (_streams, 1), (_leases, 1)):
        found |= yield from in_budget(call.vhost.budget, part(vhost), steps)
    counts = vhost.counts
    totals = {
        "message_stats": counts.messages.stats(),
        "churn_rates": counts.churn(),
        "object_totals": object_totals(vhost),
        "dead_lettered": dict(vhost.queue_set.deaths.of),
        **counts.octets(),
    }
    return {"values": found, "totals": totals}


def _metrics(call: Call) -> None:
    call.in_slices(metrics(call))


# ---- of each object ------------------------------------------------------------------------------

Row = tuple[str | float, ...]
UNACKED: Final = 16
PUBLISH_STATS: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
DELIVERY_STATS: Final = (
    "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack",
)  # fmt: skip
ROWS: Final = 64  # that are made and written at once, some 0.2 ms


def _of_queues(
    vhost: VHost, names: Iterable[str],
    numbers: Callable[[VHost, str, QueueOrStream | None], Row | None],
) -> Iterator[Row]:  # fmt: skip
    """Yield a row for each of these queues. numbers(vhost, name, the queue if it is open)."""
    served = vhost.table.served
    for name in names:
        queue = served.get(name)
        if queue is not None and queue.is_crashed:
            queue = None
        found = numbers(vhost, name, queue)
        if found is not None:
            yield (name, *found)


def _lengths(vhost: VHost, name: str, queue: QueueOrStream | None) -> Row | None:
    if queue is not None:
        ready, depth = queue.len(), queue.depth()
        return ready, depth - ready, depth
    row = queue_row(vhost, name)
    if row is None:  # deleted meanwhile
        return None
    ready, depth = int_of(row, "messages_ready"), int_of(row, "messages")
    return ready, depth - ready, depth


def _sizes(vhost: VHost, name: str, queue: QueueOrStream | None) -> Row | None:
    if isinstance(queue, BrokerQueue):
        return queue.consumers.count, queue.amq.body_bytes(), queue.amq.ram_bytes()
    if isinstance(queue, BrokerStream):
        return queue.consumers.count, queue.size_bytes(), 0
    row = queue_row(vhost, name)
    return None if row is None else (0, int_of(row, "message_bytes_ready"), 0)


def _consumers(vhost: VHost, name: str, queue: QueueOrStream | None) -> Row | None:
    if queue is None and not vhost.table.has(name):
        return None
    return (0 if queue is None else queue.consumers.count,)


def _deliveries(_vhost: VHost, _name: str, queue: QueueOrStream | None) -> Row | None:
    if queue is None:
        return None
    of = queue.counts
    return (
        queue.published, of.deliver, of.deliver_no_ack, of.get, of.get_no_ack, of.get_empty,
        of.redeliver, of.ack,
    )  # fmt: skip


def _states(_vhost: VHost, _name: str, queue: QueueOrStream | None) -> Row | None:
    if not isinstance(queue, BrokerQueue):
        return None
    states = QueueStates()
    queue.amq.backing.add_states(states)
    rows = states.betas + states.gammas
    return states.alphas, rows, states.deltas, queue.amq.ram_bytes(), states.as_alphas_bytes


def _ages(vhost: VHost, names: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each of these queues that is open, and for those with unacked messages: of a
    channel the oldest UNACKED count."""
    now_s, time_s = vhost.clock.monotonic(), vhost.clock.wall_ms() / 1000
    since_s: dict[Source, float] = {}
    for channel in _channels(vhost):
        for tag, delivered in channel.unacked.open_up_to(channel.unacked.next_tag, UNACKED):
            since = time_s - channel.unacked.age_s(tag, now_s)
            since_s[delivered.source] = min(since_s.get(delivered.source, since), since)

    def ages(_vhost: VHost, _name: str, queue: QueueOrStream | None) -> Row | None:
        if not isinstance(queue, BrokerQueue):
            return None
        head = queue.amq.backing.head()
        slowest_s = max((one.ack_s or 0.0 for one in queue.consumers.all()), default=0.0)
        return 0 if head is None else head.time, since_s.get(queue, 0), slowest_s

    more = [source.name for source in since_s if isinstance(source, BrokerQueue)]
    return _of_queues(vhost, dict.fromkeys((*names, *more)), ages)


def _channels(vhost: VHost) -> list[Channel]:
    return [channel for owner in owners(vhost) for channel in owner.channels.values()]


def _channel_numbers(vhost: VHost) -> Iterator[Row]:
    for channel in _channels(vhost):
        if channel.is_closed:
            continue
        found = channel.info()
        of = channel.transaction
        yield (
            channel.name, len(channel.consumers),
            channel.unacked.count, int_of(found, "messages_unconfirmed"),
            0 if of is None else of.publishes, 0 if of is None else of.acks,
            channel.consumer_prefetch, channel.prefetch,
        )  # fmt: skip


def _channel_stats(vhost: VHost, names: tuple[str, ...]) -> Iterator[Row]:
    for channel in _channels(vhost):
        of = channel.message_stats()
        yield channel.name, *[of[name] for name in names]


def _octets(vhost: VHost) -> Iterator[Row]:
    for owner in owners(vhost):
        of = owner.octets()
        yield owner.name, of["recv_oct"], of["send_oct"]


def _pieces(vhost: VHost) -> Iterator[Row]:
    for owner in owners(vhost):
        yield owner.name, *owner.pieces(), len(owner.channels)


def _exchanges(vhost: VHost) -> Iterator[Row]:
    for name, exchange in list(vhost.exchanges.items()):
        yield name, exchange.counts.publish_in, exchange.counts.unroutable


def _readers(vhost: VHost) -> Iterator[Row]:
    lags = Lags(vhost.clock.wall_us())
    for stream in list(vhost.engine.streams.by_number.values()):
        for name, reader in list(stream.readers.items()):
            age_us = lags.age_us(stream, reader.offset)
            behind = lags.records(stream, reader.offset)
            yield text_of(stream.name), name, behind, "NaN" if age_us is None else age_us / 1e6


def _leased(vhost: VHost) -> Iterator[Row]:
    now_ms = vhost.clock.wall_ms()
    for number, readers in list(vhost.engine.leases.table.by_queue.items()):
        index = vhost.engine.queues.get(number)
        for name, lease in list(readers.items()) if index is not None else ():
            since_ms = lease.since_ms or now_ms
            assert index is not None
            yield text_of(index.name), name, lease.count, (now_ms - since_ms) / 1000


QUEUES: Final[dict[str, Callable[[VHost, Iterable[str]], Iterator[Row]]]] = {
    "queue_coarse_metrics": lambda vhost, names: _of_queues(vhost, names, _lengths),
    "queue_metrics": lambda vhost, names: _of_queues(vhost, names, _sizes),
    "queue_consumer_count": lambda vhost, names: _of_queues(vhost, names, _consumers),
    "queue_delivery_metrics": lambda vhost, names: _of_queues(vhost, names, _deliveries),
    "queue_paging": lambda vhost, names: _of_queues(vhost, names, _states),
    "queue_age": _ages,
}
OBJECTS: Final[dict[str, Callable[[VHost], Iterator[Row]]]] = {
    "exchange_metrics": _exchanges,
    "connection_coarse_metrics": _octets,
    "connection_metrics": _pieces,
    "channel_metrics": _channel_numbers,
    "channel_exchange_metrics": lambda vhost: _channel_stats(vhost, PUBLISH_STATS),
    "channel_queue_metrics": lambda vhost: _channel_stats(vhost, DELIVERY_STATS),
    "readers": _readers,
    "leases": _leased,
}


def _object_metrics(call: Call) -> None:
    call.in_slices(_objects(call))


def _objects(call: Call) -> Slices:
    vhost = call.vhost
    table, budget = vhost.table, vhost.budget
    stamp = table.changes.stamp()
    began, _, given = call.args.text("since").partition(":")
    changed = None
    if began == str(table.began_us) and given.isdecimal():
        changed = table.changes.since(int(given))
    names = table.names() if changed is None else changed + table.stream_names()
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"{")
    found.add(f"{table.began_us}:{stamp}", "stamp")
    found.add(vhost.clock.wall_ms() / 1000, "now_s")
    found.add(changed is not None, "is_part")
    found.add([name for name in changed or () if not table.has(name)], "gone")
    for family in dict.fromkeys(call.args.texts("families")):
        if family not in QUEUES and family not in OBJECTS:
            continue
        found.begin(b"[", family)
        rows = QUEUES[family](vhost, names) if family in QUEUES else OBJECTS[family](vhost)
        while some := list(islice(rows, ROWS)):
            found.add(some)
            call.check_room(found.bytes)
            budget.left -= LOOK_STEPS
            if budget.left <= 0:
                yield
        found.end(b"]")
    found.end(b"}")
    return found


FUNCTIONS: Final[Functions] = {"metrics": _metrics, "object_metrics": _object_metrics}
