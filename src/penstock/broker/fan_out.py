"""Fan out: one message to several queues and streams, with one record of the log where it can be.

    queues that may refuse it, or are for whoever waits     each by itself, first
    streams, and with them every durable queue              one transaction, one record: all of
                                                            them have it after a crash, or none
    the other queues                                        one record and one body for all that
                                                            take it alike

To a queue a message is persistent if its delivery mode is 2 and the queue is durable; a stream
knows nothing else. However many records there are, the queues share one body in RAM, and it is
counted once (shared_body.py).

A full disk is a DiskFullError: none of those that share a record has it.

Not here: which queues and streams (publish.py), transactions of clients (transactions.py).
"""

from penstock.broker.publish_facts import Facts
from penstock.broker.served_queue import ServedQueue
from penstock.broker.served_stream import ServedStream
from penstock.broker.vhost import VHost
from penstock.errors import QueueFullError
from penstock.message import Message
from penstock.queues.arrivals import Plan
from penstock.queues.queue_options import DROP_HEAD
from penstock.shared_body import SharedBody
from penstock.storage.durability import NONE
from penstock.storage.sharing import Sharing
from penstock.storage.transaction import Published, Transaction

Planned = tuple[ServedQueue, Plan, Published]


def fan_out(
    vhost: VHost, queues: list[ServedQueue], streams: list[ServedStream], header: bytes,
    body: bytes, facts: Facts, spooled: Message | None = None, copies: SharedBody | None = None,
) -> tuple[int, bool]:  # fmt: skip
    """Publish to all these. spooled: the body is in the store, and `body` is empty. copies: what
    other queues share the body by, to which it was published already. The LSN to wait for, and
    whether a queue refused. DiskFullError: none that shares a record has it."""
    if copies is None:
        copies = vhost.engine.share_of(body, len(queues))
    with Sharing(vhost.engine, copies):
        return _fan_out(vhost, queues, streams, header, body, facts, spooled)


def _fan_out(
    vhost: VHost, queues: list[ServedQueue], streams: list[ServedStream], header: bytes,
    body: bytes, facts: Facts, spooled: Message | None,
) -> tuple[int, bool]:  # fmt: skip
    shared: list[ServedQueue] = []
    lsn = 0
    is_refused = False
    size = len(body) if spooled is None else spooled.size
    for queue in queues:
        mode = vhost.mode if facts.is_persistent and queue.is_durable else NONE
        options = queue.amq.options
        if facts.ttl_ms != 0 and options.ttl_ms != 0 and options.overflow == DROP_HEAD:
            shared.append(queue)
            continue
        # It may refuse, or it is for whoever waits now: the queue decides by itself.
        whole = body if spooled is None else whole_body(vhost, spooled)
        try:
            one = queue.amq.publish(
                header, whole, mode, priority=min(facts.priority, queue.priorities),
                ttl_ms=facts.ttl_ms, delay_ms=facts.delay_ms,
            )  # fmt: skip
        except QueueFullError:
            is_refused = True
        else:
            lsn = max(lsn, one)
            queue.published += 1
        vhost.dispatch.mark(queue)
    if streams:
        joined = [queue for queue in shared if facts.is_persistent and queue.is_durable]
        shared = [queue for queue in shared if queue not in joined]
        whole = body if spooled is None else whole_body(vhost, spooled)
        lsn = max(lsn, _append_all(vhost, joined, streams, header, whole, facts))
    if shared:
        lsn = max(lsn, _publish_shared(vhost, shared, header, body, size, facts, spooled))
    return lsn, is_refused


def _publish_shared(
    vhost: VHost, queues: list[ServedQueue], header: bytes, body: bytes, size: int, facts: Facts,
    spooled: Message | None,
) -> int:  # fmt: skip
    """One record for all queues to which the message is the same. The LSN, 0 if none is durable."""
    engine = vhost.engine
    plans: list[tuple[ServedQueue, Plan]] = []
    done = 0
    lsn = 0
    try:
        for queue in queues:
            plan = plan_of(queue, header, facts)
            plans.append((queue, plan))
        plans.sort(key=_by_kind)
        while done < len(plans):
            first, like = plans[done]
            group = [plans[done]]
            for other, plan in plans[done + 1 :]:
                if (
                    plan.expiry_ms != like.expiry_ms
                    or plan.header != like.header
                    or other.is_durable != first.is_durable
                ):
                    break
                group.append((other, plan))
            mode = vhost.mode if facts.is_persistent and first.is_durable else NONE
            targets = [plan.index for _, plan in group]
            if spooled is None:
                engine.publish(targets, like.header, body, mode, like.expiry_ms)
            elif mode == NONE:
                spooled = engine.in_transient(spooled)
                engine.publish_stored(targets, like.header, spooled, like.expiry_ms)
            else:
                spooled = engine.in_persistent(spooled)
                message = spooled.copy()
                message.expiry_ms = like.expiry_ms
                engine.publish_spooled(targets, like.header, message, mode)
            if mode != NONE:
                lsn = engine.last_lsn
            for queue, plan in group:
                done += 1
                queue.amq.planned(plan, plan.index.next_seq - 1, size)
                queue.published += 1
                vhost.dispatch.mark(queue)
    except BaseException:
        for queue, plan in plans[done:]:
            queue.amq.unplan(plan)
        raise
    return lsn


def _append_all(
    vhost: VHost, queues: list[ServedQueue], streams: list[ServedStream], header: bytes,
    body: bytes, facts: Facts,
) -> int:  # fmt: skip
    """One record for streams and durable queues; its LSN."""
    vhost.dispatch.be_due()
    if not queues and len(streams) == 1:
        return streams[0].append(header, body, vhost.mode)
    transaction = vhost.engine.begin()
    planned: list[Planned] = []
    try:
        plan_all(transaction, queues, header, body, facts, planned)
        entering = [stream.begin_append(transaction, header, body) for stream in streams]
        lsn = transaction.commit(vhost.mode)
    except BaseException:
        if transaction.is_open:
            transaction.rollback()
        for queue, plan, _ in planned:
            queue.amq.unplan(plan)
        raise
    for queue, plan, published in planned:
        for index, entry in published.entries:
            if index is plan.index:
                queue.amq.planned(plan, entry.seq, len(body))
                queue.published += 1
        vhost.dispatch.mark(queue)
    for append in entering:
        append.done()
    return lsn


def plan_all(
    transaction: Transaction, queues: list[ServedQueue], header: bytes, body: bytes, facts: Facts,
    planned: list[Planned],
) -> None:  # fmt: skip
    """Have a transaction publish to durable queues, the body once for all that take it alike. What
    is planned of it is added to `planned`, also when it fails: the caller's to undo."""
    plans: list[tuple[ServedQueue, Plan]] = []
    groups: dict[tuple[bytes, int], list[tuple[ServedQueue, Plan]]] = {}
    done: set[int] = set()
    try:
        for queue in queues:
            plan = plan_of(queue, header, facts)
            plans.append((queue, plan))
            groups.setdefault((plan.header, plan.expiry_ms), []).append((queue, plan))
        for (shared, expiry_ms), group in groups.items():
            targets = [plan.index for _, plan in group]
            published = transaction.publish(targets, shared, body, expiry_ms)
            for queue, plan in group:
                planned.append((queue, plan, published))
                done.add(id(plan))
    except BaseException:
        for queue, plan in plans:
            if id(plan) not in done:
                queue.amq.unplan(plan)
        raise


def whole_body(vhost: VHost, spooled: Message) -> bytes:
    """A spooled body, read back, for a queue that cannot share it."""
    return vhost.engine.store_of(spooled).read(spooled.store_file, spooled.id)


def plan_of(queue: ServedQueue, header: bytes, facts: Facts) -> Plan:
    """What the queue would make of the message; `planned` or `unplan` ends it."""
    return queue.amq.plan(
        header, priority=min(facts.priority, queue.priorities), ttl_ms=facts.ttl_ms,
        delay_ms=facts.delay_ms,
    )  # fmt: skip


def _by_kind(planned: tuple[ServedQueue, Plan]) -> tuple[bool, int, bytes]:
    """Durable ones first, those that are alike together."""
    queue, plan = planned
    return (not queue.is_durable, plan.expiry_ms, plan.header)
