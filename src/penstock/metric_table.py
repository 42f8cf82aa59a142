"""The table of metrics: everything that `/metrics` shows, with its type, labels and meaning.

    METRICS    the rows: what Penstock measures
    RABBITMQ   RabbitMQ's names for what all vhosts have together, so that its dashboards and alerts
               work
    FAMILIES   what each queue, exchange, reader has: for /metrics/per-object and /metrics/detailed

The text (http.metrics_text) and docs/reference/metrics.md are made of them.

The processes count in plain numbers and answer `metrics` (a vhost) and `node_metrics` (the
supervisor) with an object: the name of a row -> its value. A value is a number; or {label: number},
or [[label, ..., number] ...], for a row with labels of its own; or, for a histogram, [sum, count of
each range ...]. A row that is not in the answer is left out of the text. This module imports
little, because the vhosts, HTTP and tools/ load it.

Every row but those of the node has the label `vhost`. None of METRICS has the name of a queue, a
connection or a consumer, of which there may be any number.
"""

from dataclasses import dataclass
from typing import Final

from penstock.counts import CONFIRM_S, DISK_S, LONG_S, RECORDS, TURN_S, WAIT_S, Bounds

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
AGE: Final = "age"  # of an object: a gauge, which is kept as the time since when
HISTOGRAM: Final = "histogram"
VHOST: Final = "vhost"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. name: without its prefix. labels: all of them. group: its heading in the manual."""

    group: str
    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = (VHOST,)
    bounds: Bounds = ()

    @property
    def own_labels(self) -> tuple[str, ...]:
        """Return the labels besides the vhost."""
        return self.labels[1:] if self.labels[:1] == (VHOST,) else self.labels


def _counter(group: str, name: str, meaning: str, *labels: str) -> Metric:
    return Metric(group, name, COUNTER, meaning, (VHOST, *labels))


def _gauge(group: str, name: str, meaning: str, *labels: str) -> Metric:
    return Metric(group, name, GAUGE, meaning, (VHOST, *labels))


def _histogram(group: str, name: str, bounds: Bounds, meaning: str) -> Metric:
    return Metric(group, name, HISTOGRAM, meaning, (VHOST,), bounds)


def _of_node(
    name: str, meaning: str, *labels: str, kind: str = GAUGE, group: str = "Node"
) -> Metric:
    return Metric(group, name, kind, meaning, labels)


_PROCESS: Final = (VHOST, "process")

METRICS: Final = (
    _of_node("build_info", "1; build is compiled or pure", "version", "build", "python"),
    _of_node("start_time_seconds", "when the broker was started, in seconds since 1970"),
    _of_node("ready", "1 if clients can connect"),
    _of_node("disk_free_bytes", "free bytes of the fullest disk that the broker writes to"),
    _of_node("disk_free_limit_bytes", "publishers wait below so many free bytes"),
    _of_node("accepted_connections_total", "AMQP clients that connected", kind=COUNTER),
    _of_node(
        "handshakes_failed_total", "AMQP clients that were not let in: password, vhost, limit, "
        "timeout, protocol, other", "reason", kind=COUNTER,
    ),
    _of_node("half_open_connections", "AMQP clients that have not logged in yet"),
    _of_node(
        "audit_left_out_total", "entries that the audit's file or stream does not have", "place",
        kind=COUNTER,
    ),
    Metric("Processes", "process_up", GAUGE, "1 if it serves, 0 if not", _PROCESS),
    Metric(
        "Processes", "process_restarts_total", COUNTER, "how often it was started again: it died, "
        "hang (did not answer), failed (said why), damaged (its files), asked (by an operator)",
        (*_PROCESS, "reason"),
    ),
    Metric("Processes", "process_cpu_seconds_total", COUNTER, "CPU time, all threads", _PROCESS),
    Metric("Processes", "process_resident_memory_bytes", GAUGE, "RAM", _PROCESS),
    Metric("Processes", "process_open_fds", GAUGE, "open descriptors", _PROCESS),
    _histogram(
        "Processes", "loop_turn_seconds", TURN_S,
        "one pass of the vhost's loop: what was read, one turn for all of it",
    ),
    _histogram(
        "Processes", "loop_delay_seconds", TURN_S,
        "from when a tick of the loop was due until it ran: so long a client may wait",
    ),
    _gauge("Processes", "recovery_seconds", "how long the last start took to open the store"),
    _gauge("Processes", "recovery_records", "records of the log that it read"),
    _gauge("Processes", "recovery_log_bytes", "and their bytes"),
    _gauge("Memory", "memory_budget_bytes", "RAM that the vhost may count: its share"),
    _gauge("Memory", "memory_counted_bytes", "RAM that is counted"),
    _gauge("Memory", "memory_other_bytes", "of that, what is not of queues"),
    _gauge("Flow", "publishers_blocked", "1 while publishers wait for it", "reason"),
    _counter("Flow", "blocked_seconds_total", "how long publishers have waited for it", "reason"),
    _gauge("Flow", "confirms_pending", "publishes that are not confirmed yet"),
    _gauge("Flow", "publishers", "channels that have published"),
    _histogram(
        "Flow", "confirm_seconds", CONFIRM_S,
        "from the first publish of a turn until all of that turn were confirmed",
    ),
    _histogram(
        "Flow", "queue_wait_seconds", WAIT_S,
        "whole seconds that a message waited in its queue: the last one of each run of deliveries "
        "from one queue to its consumers",
    ),
    _counter("Flow", "messages_published_total", "messages that clients published"),
    _counter("Flow", "messages_delivered_total", "messages that consumers and basic.get got"),
    _counter("Flow", "messages_acked_total", "messages that clients acknowledged"),
    _counter("Flow", "messages_redelivered_total", "of the delivered, those that came again"),
    _counter(
        "Flow", "messages_requeued_total", "messages that clients gave back, or had at their end"
    ),
    _counter("Flow", "messages_dropped_total", "messages beyond a length limit, without a target"),
    _counter("Flow", "messages_unroutable_total", "messages that no queue got"),
    _counter(
        "Flow", "dead_lettered_total", "messages that died: expired, rejected, maxlen, "
        "delivery_limit", "reason",
    ),
    _counter("Flow", "dead_letters_dropped_total", "of these, those that had no target"),
    _gauge(
        "Paging", "messages", "messages by state: ready as alpha, beta, gamma, delta; unacked, "
        "delayed; as of the memory monitor's last round (2.5 s)", "state",
    ),
    _gauge("Paging", "message_bytes", "bodies of messages that are ready and unacked", "state"),
    _gauge("Paging", "oldest_ready_seconds", "age of the oldest head of a queue, if RAM knows it"),
    _gauge(
        "Paging", "backlog_as_alphas_bytes", "RAM that the ready messages would take without paging"
    ),
    _counter(
        "Paging", "paged_out_total", "messages that became beta, gamma or delta in RAM's place",
        "to",
    ),
    _counter("Paging", "paged_out_bytes_total", "bodies that left RAM"),
    _counter("Paging", "paged_in_total", "messages that were read back"),
    _counter("Paging", "paged_in_bytes_total", "their bodies"),
    _counter("Paging", "page_in_runs_total", "reads of such messages, many at once"),
    _histogram("Paging", "page_in_seconds", DISK_S, "one such read"),
    _counter("Paging", "read_ahead_hits_total", "runs that were in RAM before they were needed"),
    _counter("Paging", "read_ahead_misses_total", "runs that a delivery had to wait for"),
    _gauge("Paging", "queues_over_target", "queues that count more RAM than their target"),
    _gauge(
        "Paging", "target_seconds", "for how long messages in RAM should last; +Inf without limit"
    ),
    _counter("Log", "log_bytes_total", "bytes appended to the log"),
    _counter("Log", "log_records_total", "records appended, by their type", "kind"),
    _counter("Log", "log_groups_total", "groups of records that were written"),
    _histogram("Log", "log_group_records", RECORDS, "records that one sync made durable"),
    _histogram("Log", "sync_seconds", DISK_S, "one sync of the log (fdatasync)"),
    _counter("Log", "sync_failures_total", "failed syncs: the vhost's process ends at the first"),
    _gauge("Log", "log_segments", "files of the log in use"),
    _gauge("Log", "log_live_bytes", "log since the last checkpoint: what a start would read"),
    _gauge("Log", "log_lag_lsn", "records that were appended and are not durable yet"),
    _counter(
        "Checkpoints", "checkpoints_total", "begun, because of: time, log, asked, stop", "reason"
    ),
    _histogram("Checkpoints", "checkpoint_seconds", LONG_S, "from its cut until it is valid"),
    _gauge("Checkpoints", "checkpoint_bytes", "size of the last one"),
    _gauge("Checkpoints", "checkpoint_age_seconds", "since the last one was finished"),
    _gauge("Store", "store_bytes", "files of bodies: live, dead; reserve", "kind"),
    _gauge("Store", "store_files", "files of bodies"),
    _counter("Store", "store_combines_total", "how often files with dead bodies were combined"),
    _counter("Store", "store_combined_bytes_total", "bytes that were copied for it"),
    _gauge("Store", "queue_files_open", "files that the vhost's process has open"),
    _counter(
        "Store", "checksum_failures_total", "damage that was found, by the kind of file: log, "
        "index, store, page, checkpoint, other", "file",
    ),
    _gauge("Streams", "streams", "streams"),
    _gauge("Streams", "stream_stored_bytes", "bytes of their pages"),
    _counter("Streams", "stream_records_total", "records appended one by one"),
    _counter("Streams", "stream_bytes_total", "bytes that these take in pages"),
    _counter("Streams", "stream_retained_away_total", "records that retention deleted"),
    _counter(
        "Streams", "stream_read_records_total", "records that were read, by: amqp, http, arrow",
        "by",
    ),
    _counter(
        "Streams", "stream_read_bytes_total", "bytes of bodies by amqp, of answers by the others",
        "by",
    ),
    _gauge(
        "Streams", "reader_lag_max_records", "records that the slowest named reader has not read"
    ),
    _gauge(
        "Streams", "reader_lag_max_seconds",
        "how old the oldest record is that a named reader has not read",
    ),
    _gauge("Leases", "leases", "readers that have leases"),
    _gauge("Leases", "messages_leased", "messages that are leased"),
    _gauge("Leases", "lease_oldest_seconds", "since when the oldest message is leased"),
    _counter("Leases", "lease_commits_total", "commits that acknowledged messages"),
    _counter("Leases", "leases_released_total", "messages that were released: ready again"),
    _gauge("Batches", "batches_rolling", "batches that are decided and not yet in their targets"),
    _gauge("Batches", "batches_waiting", "of these, those that wait: a target is full or gone"),
    _counter("Batches", "batches_committed_total", "batches that were decided"),
    _counter("Batches", "batches_repeated_total", "commits that were answered `already done`"),
    _counter("Batches", "batch_rows_total", "rows of the batches that were decided"),
    _counter("Batches", "staging_expired_total", "staged pages that were deleted: never decided"),
    _histogram("Batches", "batch_commit_seconds", LONG_S, "from a commit to its answer"),
    _of_node(
        "http_requests_total", "requests, by the pattern of their address", "route", "status",
        kind=COUNTER, group="HTTP",
    ),
    _gauge("HTTP", "staging_bytes", "bytes that sinks have staged"),
    _gauge("HTTP", "staging_limit_bytes", "so many may be: staging_bytes_max"),
    Metric("HTTP", "http_request_seconds", HISTOGRAM, "one request, to its last byte", (), LONG_S),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RabbitMetric:
    """One row of RABBITMQ. labels: as written. source: what it shows, by its name in the sums over
    all vhosts (http.metrics)."""

    name: str
    kind: str
    source: str
    meaning: str
    labels: str = ""


_AMQP: Final = 'protocol="amqp091"'
_CLASSIC: Final = f'{_AMQP},queue_type="rabbit_classic_queue"'
_DEAD: Final = 'queue_type="rabbit_classic_queue",dead_letter_strategy="at_least_once"'


def _sent(name: str, source: str, meaning: str, labels: str = _AMQP) -> RabbitMetric:
    text = f"messages {meaning}"
    return RabbitMetric(
        f"global_messages_{name}_total", COUNTER, f"message_stats.{source}", text, labels
    )


def _churn(name: str, source: str) -> RabbitMetric:
    what = name.replace("_", " ")
    return RabbitMetric(f"{name}_total", COUNTER, f"churn_rates.{source}", what)


def _rabbit(name: str, source: str, meaning: str, kind: str = GAUGE) -> RabbitMetric:
    return RabbitMetric(name, kind, source, meaning)


RABBITMQ: Final = (
    _rabbit("alarms_memory_used_watermark", "alarms.memory", "1 while publishers wait for memory"),
    _rabbit("alarms_free_disk_space_watermark", "alarms.disk", "1 while they wait for disk space"),
    _rabbit("alarms_file_descriptor_limit", "alarms.descriptors", "1 while they wait for files"),
    _rabbit("connections", "object_totals.connections", "connections"),
    _rabbit("channels", "object_totals.channels", "channels"),
    _rabbit("consumers", "object_totals.consumers", "consumers"),
    _rabbit("queues", "object_totals.queues", "queues and streams"),
    _churn("connections_opened", "connection_created"),
    _churn("connections_closed", "connection_closed"),
    _churn("channels_opened", "channel_created"),
    _churn("channels_closed", "channel_closed"),
    _churn("queues_declared", "queue_declared"),
    _churn("queues_created", "queue_created"),
    _churn("queues_deleted", "queue_deleted"),
    _rabbit("queue_messages_ready", "messages.ready", "messages that are ready"),
    _rabbit("queue_messages_unacked", "messages.unacked", "messages that are not acknowledged"),
    _rabbit("queue_messages", "messages.all", "both"),
    _rabbit("queue_messages_ready_bytes", "message_bytes.ready", "bodies of the ready"),
    _rabbit("queue_messages_unacked_bytes", "message_bytes.unacked", "and of the others"),
    _rabbit("queue_messages_ram", "messages.alpha", "ready messages that are in RAM"),
    _rabbit("queue_messages_paged_out", "messages.out", "ready messages that are not"),
    _rabbit("queue_consumers", "object_totals.consumers", "consumers of queues"),
    _rabbit("process_open_fds", "process.open_fds", "open descriptors of all processes"),
    _rabbit("process_max_fds", "process.max_fds", "their limits together"),
    _rabbit("process_open_tcp_sockets", "object_totals.connections", "connections of clients"),
    _rabbit("process_max_tcp_sockets", "process.max_fds", "as process_max_fds"),
    _rabbit("process_resident_memory_bytes", "process.rss", "RAM of all processes"),
    _rabbit("resident_memory_limit_bytes", "node.memory_bytes", "the broker's memory budget"),
    _rabbit("disk_space_available_bytes", "node.disk_free_bytes", "free bytes"),
    _rabbit("disk_space_available_limit_bytes", "node.disk_free_limit_bytes", "their limit"),
    _rabbit("erlang_uptime_seconds", "node.uptime_s", "how long the broker runs"),
    _rabbit("io_sync_ops_total", "log.syncs", "syncs of the log", COUNTER),
    _rabbit("io_sync_time_seconds_total", "log.sync_s", "how long they took", COUNTER),
    _rabbit("io_read_ops_total", "paging.reads", "reads of messages", COUNTER),
    _rabbit("io_read_bytes_total", "paging.read_bytes", "bytes that they read", COUNTER),
    _rabbit("io_write_bytes_total", "log.bytes", "bytes written to the log", COUNTER),
    RabbitMetric(
        "auth_attempts_failed_total", COUNTER, "node.login_failed", "logins with a wrong password",
        _AMQP,
    ),
    RabbitMetric("global_publishers", GAUGE, "publishers", "channels that publish", _AMQP),
    RabbitMetric("global_consumers", GAUGE, "object_totals.consumers", "consumers", _AMQP),
    _sent("received", "publish", "that were published"),
    _sent("received_confirm", "publish_confirm", "of these, those to be confirmed"),
    _sent("routed", "routed", "that a queue got"),
    _sent("confirmed", "confirm", "that were confirmed"),
    _sent("unroutable_dropped", "drop_unroutable", "that no queue got"),
    _sent("unroutable_returned", "return_unroutable", "that were returned"),
    _sent("delivered", "deliver_get", "that were delivered", _CLASSIC),
    _sent("delivered_consume_manual_ack", "deliver", "to consumers that acknowledge", _CLASSIC),
    _sent("delivered_consume_auto_ack", "deliver_no_ack", "to other consumers", _CLASSIC),
    _sent("delivered_get_manual_ack", "get", "to basic.get, to be acknowledged", _CLASSIC),
    _sent("delivered_get_auto_ack", "get_no_ack", "to basic.get", _CLASSIC),
    _sent("get_empty", "get_empty", "that basic.get did not find", _CLASSIC),
    _sent("redelivered", "redeliver", "that were delivered again", _CLASSIC),
    _sent("acknowledged", "ack", "that were acknowledged", _CLASSIC),
    # As sums over channels, which dashboards of before 3.9 read.
    _rabbit("channel_consumers", "object_totals.consumers", "consumers of channels"),
    _rabbit("channel_messages_unacked", "messages.unacked", "as queue_messages_unacked"),
    _rabbit("channel_messages_unconfirmed", "unconfirmed", "publishes that are not confirmed yet"),
    *(
        RabbitMetric(
            f"channel_{name}_total", COUNTER, f"message_stats.{source}",
            "as the global metric of the same meaning",
        )
        for name, source in (
            ("messages_published", "publish"), ("messages_confirmed", "confirm"),
            ("messages_unroutable_returned", "return_unroutable"),
            ("messages_unroutable_dropped", "drop_unroutable"),
            ("messages_delivered_ack", "deliver"), ("messages_delivered", "deliver_no_ack"),
            ("get_ack", "get"), ("get", "get_no_ack"), ("get_empty", "get_empty"),
            ("messages_redelivered", "redeliver"), ("messages_acked", "ack"),
        )
    ),
    _rabbit("connection_incoming_bytes_total", "traffic.recv_oct", "bytes received", COUNTER),
    _rabbit("connection_outgoing_bytes_total", "traffic.send_oct", "bytes sent", COUNTER),
    *(
        RabbitMetric(
            f"global_messages_dead_lettered_{reason}_total", COUNTER, f"dead_lettered.{reason}",
            f"messages that died: {reason}", _DEAD,
        )
        for reason in ("expired", "rejected", "maxlen", "delivery_limit")
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ObjectFamily:
    """What each object of one kind has. labels: after the vhost. columns: (name, type, meaning) of
    each number of a row, after its labels. is_ours: RabbitMQ has nothing like it. in_per_object: it
    is part of /metrics/per-object."""

    name: str
    labels: tuple[str, ...]
    columns: tuple[tuple[str, str, str], ...]
    is_ours: bool = False
    in_per_object: bool = True

    @property
    def is_of_queues(self) -> bool:
        """Return whether each of its rows is of a queue."""
        return self.labels == _QUEUE


_QUEUE: Final = ("queue",)
_CONNECTION: Final = ("connection",)
_CHANNEL: Final = ("channel",)
_CONSUMERS: Final = ("queue_consumers", GAUGE, "its consumers")

FAMILIES: Final = {
    one.name: one
    for one in (
        ObjectFamily(
            "queue_coarse_metrics", _QUEUE,
            (
                ("queue_messages_ready", GAUGE, "messages that are ready"),
                ("queue_messages_unacked", GAUGE, "messages that are not acknowledged"),
                ("queue_messages", GAUGE, "both"),
            ),
        ),
        ObjectFamily(
            "queue_metrics", _QUEUE,
            (
                _CONSUMERS,
                ("queue_messages_ready_bytes", GAUGE, "bodies of the ready"),
                ("queue_process_memory_bytes", GAUGE, "RAM that is counted for it"),
            ),
        ),
        ObjectFamily("queue_consumer_count", _QUEUE, (_CONSUMERS,), in_per_object=False),
        ObjectFamily(
            "queue_delivery_metrics", _QUEUE,
            (
                ("queue_messages_published_total", COUNTER, "published"),
                ("queue_messages_delivered_ack_total", COUNTER, "to consumers that acknowledge"),
                ("queue_messages_delivered_total", COUNTER, "to other consumers"),
                ("queue_get_ack_total", COUNTER, "to basic.get, to be acknowledged"),
                ("queue_get_total", COUNTER, "to basic.get"),
                ("queue_get_empty_total", COUNTER, "basic.get that found nothing"),
                ("queue_messages_redelivered_total", COUNTER, "delivered again"),
                ("queue_messages_acked_total", COUNTER, "acknowledged"),
            ),
        ),
        ObjectFamily(
            "queue_paging", _QUEUE,
            (
                ("queue_alphas", GAUGE, "ready messages in RAM"),
                ("queue_rows", GAUGE, "ready messages whose place alone is in RAM: betas, gammas"),
                ("queue_delta", GAUGE, "ready messages on disk alone"),
                ("queue_ram_bytes", GAUGE, "RAM that is counted for it"),
                ("queue_as_alphas_bytes", GAUGE, "RAM that its ready messages would take"),
            ),
            is_ours=True,
        ),
        ObjectFamily(
            "queue_age", _QUEUE,
            (
                ("queue_oldest_message_age_seconds", AGE, "age of its first ready message"),
                (
                    "queue_oldest_unacked_age_seconds", AGE,
                    "how long its oldest unacknowledged message is that",
                ),
                (
                    "queue_slowest_consumer_seconds", GAUGE,
                    "how long its slowest consumer takes for one, on average",
                ),
            ),
            is_ours=True,
        ),
        ObjectFamily(
            "connection_coarse_metrics", _CONNECTION,
            (
                ("connection_incoming_bytes_total", COUNTER, "bytes received"),
                ("connection_outgoing_bytes_total", COUNTER, "bytes sent"),
            ),
            in_per_object=False,
        ),
        ObjectFamily(
            "connection_metrics", _CONNECTION,
            (
                ("connection_incoming_packets_total", COUNTER, "pieces received"),
                ("connection_outgoing_packets_total", COUNTER, "pieces sent"),
                ("connection_channels", GAUGE, "its channels"),
            ),
            in_per_object=False,
        ),
        ObjectFamily(
            "channel_metrics", _CHANNEL,
            (
                ("channel_consumers", GAUGE, "its consumers"),
                ("channel_messages_unacked", GAUGE, "messages that are not acknowledged"),
                ("channel_messages_unconfirmed", GAUGE, "publishes that are not confirmed yet"),
                ("channel_messages_uncommitted", GAUGE, "publishes of its transaction"),
                ("channel_acks_uncommitted", GAUGE, "acknowledgements of its transaction"),
                ("consumer_prefetch", GAUGE, "limit of each new consumer"),
                ("channel_prefetch", GAUGE, "limit of all its consumers together"),
            ),
            in_per_object=False,
        ),
        ObjectFamily(
            "channel_exchange_metrics", _CHANNEL,
            (
                ("channel_messages_published_total", COUNTER, "published to all exchanges"),
                ("channel_messages_confirmed_total", COUNTER, "of these, confirmed"),
                ("channel_messages_unroutable_returned_total", COUNTER, "of these, returned"),
                ("channel_messages_unroutable_dropped_total", COUNTER, "that no queue got"),
            ),
            in_per_object=False,
        ),
        ObjectFamily(
            "channel_queue_metrics", _CHANNEL,
            (
                ("channel_messages_delivered_ack_total", COUNTER, "of all queues, to acknowledge"),
                ("channel_messages_delivered_total", COUNTER, "to other consumers"),
                ("channel_get_ack_total", COUNTER, "to basic.get, to be acknowledged"),
                ("channel_get_total", COUNTER, "to basic.get"),
                ("channel_get_empty_total", COUNTER, "basic.get that found nothing"),
                ("channel_messages_redelivered_total", COUNTER, "delivered again"),
                ("channel_messages_acked_total", COUNTER, "acknowledged"),
            ),
            in_per_object=False,
        ),
        ObjectFamily(
            "exchange_metrics", ("exchange",),
            (
                ("exchange_messages_published_total", COUNTER, "published to it by name"),
                ("exchange_messages_unroutable_dropped_total", COUNTER, "that no queue got"),
            ),
        ),
        ObjectFamily(
            "readers", ("stream", "reader"),
            (
                ("reader_lag_records", GAUGE, "records that the reader has not read yet"),
                ("reader_lag_seconds", GAUGE, "how old the first of them is; NaN if unknown"),
            ),
            is_ours=True,
        ),
        ObjectFamily(
            "leases", ("queue", "reader"),
            (
                ("lease_messages", GAUGE, "messages that the reader has leased"),
                ("lease_seconds", GAUGE, "since when it has the oldest"),
            ),
            is_ours=True,
        ),
    )
}  # fmt: skip
