"""Events of the broker for clients: the exchange amq.rabbitmq.event, as of RabbitMQ's plugin.

The vhost "/" has the exchange, and gets there the events of all vhosts and of the node. A message
is an event: its routing key names it, its headers say the rest, the body is empty.

    queue.created  queue.deleted  exchange.created  exchange.deleted
    binding.created  binding.deleted  consumer.created  consumer.deleted
    connection.created  connection.closed  channel.created  channel.closed
    alarm.set  alarm.cleared                      made here, in the process of each vhost
    user.*  permission.*  topic.permission.*  vhost.*  policy.*  operator.policy.*  parameter.*
                                                  made of entries of the audit: server.node_events

Headers are RabbitMQ's. As there, arguments are a list with a text for each, in Erlang's words
('{<<"x-max-length">>,signedint,5}'); the pid of a connection or channel is its name.

Nothing is made while nobody has bound the exchange: `is_on` says so, in every vhost. An event of
"/" goes to the outbox, one of another vhost over the supervisor to the outbox of "/". What waits
anywhere is bounded; what is beyond it is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.broker.arguments import type_of
from penstock.broker.background_tasks import BackgroundTask
from penstock.broker.broker_queue import Consumer, QueueOrStream
from penstock.broker.connection_facts import ConnectionFacts, erlang_address, shown
from penstock.broker.dispatch import Dispatch
from penstock.broker.outbox import Outbox
from penstock.broker.topology import QUEUE, Exchange
from penstock.clock import Clock
from penstock.codec.properties import BasicProperties
from penstock.native import node_name
from penstock.operation_table import EVENTS, HOME
from penstock.routing.exchange_types import Binding
from penstock.routing.router import Router

Headers = dict[str, object]

NOBODY: Final = "rmq-internal"  # RabbitMQ's name for the broker itself
ALARMS: Final[dict[str, tuple[str, str]]] = {
    "memory_alarm": ("alarm.set", "memory"), "memory_free": ("alarm.cleared", "memory"),
    "disk_full": ("alarm.set", "disk"), "disk_free": ("alarm.cleared", "disk"),
}  # fmt: skip


class BrokerEvents(Outbox):
    """The events of one vhost. find, wake, on_event: as of Outbox. user: who is served now, "" for
    nobody."""

    def __init__(
        self, vhost: str, clock: Clock, router: Router,
        find: Callable[[str], QueueOrStream | None], dispatch: Dispatch,
        wake: Callable[[BackgroundTask], None], on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        super().__init__(EVENTS, router, find, dispatch, wake, on_event)
        self.is_on: bool = vhost == HOME and router.has_bindings(EVENTS)
        self.user: str = ""
        # on_wanted(is_on): the exchange has its first binding, or none any more.
        self.on_wanted: Callable[[bool], None] | None = None
        # send(event, headers): an event of a vhost without the exchange.
        self.send: Callable[[str, Headers], None] | None = None
        self._vhost = vhost
        self._clock = clock

    def publish(self, event: str, headers: Headers, now_ms: int) -> None:
        """Publish an event, which happened then, if this vhost has the exchange."""
        self.add(
            event,
            BasicProperties(
                headers={**headers, "timestamp_in_ms": now_ms}, delivery_mode=2,
                timestamp=now_ms // 1000,
            ),
        )  # fmt: skip

    def _event(self, event: str, headers: Headers, user: str | None = None) -> None:
        if user is not None:
            headers["user_who_performed_action"] = user or NOBODY
        if self._vhost == HOME:
            self.publish(event, headers, self._clock.wall_ms())
        elif self.send is not None:
            self.send(event, headers)

    # ---- what there is -------------------------------------------------------------------------

    def queue(self, queue: QueueOrStream, is_new: bool) -> None:
        """Take note of a queue or stream that is declared or deleted."""
        if not self.is_on:
            return
        headers: Headers = {"name": queue.name, "vhost": self._vhost}
        if not is_new:
            self._event("queue.deleted", headers, self.user)
            return
        owner = getattr(queue.owner, "name", "") if queue.is_exclusive else ""
        headers |= {
            "durable": queue.is_durable, "auto_delete": queue.is_auto_delete,
            "exclusive": queue.is_exclusive, "owner_pid": owner,
            "arguments": erlang_list(queue.arguments),
            "type": f"rabbit_{type_of(queue.arguments)}_queue",
        }  # fmt: skip
        self._event("queue.created", headers, queue.creator)

    def exchange(self, exchange: Exchange, is_new: bool) -> None:
        """Take note of an exchange that is declared or deleted."""
        if not self.is_on:
            return
        headers: Headers = {"name": exchange.name, "vhost": self._vhost}
        if not is_new:
            self._event("exchange.deleted", headers, self.user)
            return
        headers |= {
            "type": exchange.type, "durable": exchange.durable,
            "auto_delete": exchange.auto_delete, "internal": exchange.internal,
            "arguments": erlang_list(exchange.arguments), "policy": "",
        }  # fmt: skip
        self._event("exchange.created", headers, exchange.creator)

    def binding(self, binding: Binding, change: int) -> None:
        """Take note of a binding that is made (1) or deleted (-1)."""
        if binding.source == EVENTS:
            is_on = self.is_bound
            if is_on != self.is_on:
                self.is_on = is_on
                if self.on_wanted is not None:
                    self.on_wanted(is_on)
        if not self.is_on:
            return
        kind = "queue" if binding.kind == QUEUE else "exchange"
        self._event(
            "binding.created" if change > 0 else "binding.deleted",
            {
                "source_name": binding.source, "source_kind": "exchange",
                "destination_name": binding.destination, "destination_kind": kind,
                "routing_key": binding.key, "arguments": erlang_list(binding.arguments),
                "vhost": self._vhost,
            },
            binding.creator if change > 0 else self.user,
        )  # fmt: skip

    # ---- clients -------------------------------------------------------------------------------

    def connection(self, facts: ConnectionFacts, *, is_new: bool) -> None:
        """Take note of a connection that begins or has ended."""
        if not self.is_on:
            return
        headers: Headers = {
            "name": facts.name, "pid": facts.name, "node": node_name(),
            "client_properties": erlang_list(shown(facts.client_properties)),
        }  # fmt: skip
        if not is_new:
            self._event("connection.closed", headers)
            return
        tls = facts.tls or {}
        headers |= {
            "type": "network", "protocol": "{0,9,1}", "user": facts.user, "vhost": self._vhost,
            "host": erlang_address(facts.host), "port": facts.port,
            "peer_host": erlang_address(facts.peer_host), "peer_port": facts.peer_port,
            "auth_mechanism": facts.auth_mechanism, "ssl": facts.tls is not None,
            "ssl_protocol": str(tls.get("version", "")), "ssl_cipher": str(tls.get("cipher", "")),
            "ssl_key_exchange": "", "ssl_hash": "",
            "peer_cert_subject": str(tls.get("subject", "")),
            "peer_cert_issuer": str(tls.get("issuer", "")),
            "peer_cert_validity": str(tls.get("validity", "")),
            "timeout": facts.heartbeat_s, "frame_max": facts.frame_max,
            "channel_max": facts.channel_max, "connected_at": facts.connected_at_ms,
        }  # fmt: skip
        self._event("connection.created", headers, facts.user)

    def channel(self, connection: str, number: int, user: str, *, is_new: bool) -> None:
        """Take note of a channel that is opened or has ended."""
        if not self.is_on:
            return
        pid = f"{connection} ({number})"
        if is_new:
            headers: Headers = {
                "pid": pid, "name": pid, "connection": connection, "number": number,
                "user": user, "vhost": self._vhost,
            }  # fmt: skip
            self._event("channel.created", headers, user)
        else:
            self._event("channel.closed", {"pid": pid}, user)

    def consumer(self, consumer: Consumer, *, is_new: bool) -> None:
        """Take note of a consumer that begins or has ended."""
        if not self.is_on:
            return
        connection, number, user = consumer.channel.facts()
        headers: Headers = {
            "consumer_tag": consumer.tag, "channel": f"{connection} ({number})",
            "queue": consumer.queue.name, "vhost": self._vhost,
        }  # fmt: skip
        if is_new:
            headers |= {
                "exclusive": consumer.is_exclusive, "ack_required": not consumer.no_ack,
                "prefetch_count": consumer.prefetch,
                "arguments": erlang_list(consumer.arguments),
            }  # fmt: skip
        self._event("consumer.created" if is_new else "consumer.deleted", headers, user)

    def alarm(self, kind: str) -> None:
        """Take note of an event of the vhost's that is an alarm, or the end of one."""
        if self.is_on and kind in ALARMS:
            event, source = ALARMS[kind]
            self._event(event, {"source": source, "node": node_name(), "vhost": self._vhost})


# ---- Erlang's words ------------------------------------------------------------------------------


ARGUMENTS_MAX: Final = 4000  # characters of the text of all arguments of one thing
CUT: Final = "..."


def erlang_list(arguments: Mapping[str, object]) -> list[object]:
    """Return a table of arguments as RabbitMQ shows it in headers: a text for each, ARGUMENTS_MAX
    characters of all of them, and "..." if there is more."""
    text = _ErlangText(ARGUMENTS_MAX)
    return list(text.until_cut(text.entry(name, value) for name, value in arguments.items()))


class _ErlangText:
    """Writes values in Erlang's words. left: how many characters there may be still."""

    def __init__(self, left: int) -> None:
        self.left: int = left

    def until_cut(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield the parts that there is room for, and CUT in place of others."""
        for part in parts:
            yield part
            if self.left <= 0:
                yield CUT
                return

    def entry(self, name: str, value: object) -> str:
        self.left -= len(name)
        return f'{{<<"{name}">>,{self._of(value)}}}'

    def _of(self, value: object) -> str:
        if isinstance(value, dict):
            parts = (self.entry(str(name), one) for name, one in value.items())
            return f"table,[{','.join(self.until_cut(parts))}]"
        if isinstance(value, list):
            return f"array,[{','.join(self.until_cut(f'{{{self._of(one)}}}' for one in value))}]"
        text = _plain(value)
        room = max(self.left, 0)
        self.left -= len(text)
        return text if len(text) <= room else text[:room] + CUT


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return f"bool,{str(value).lower()}"
    if isinstance(value, int):
        return f"{'signedint' if -(1 << 31) <= value < 1 << 31 else 'long'},{value}"
    if isinstance(value, float):
        return f"double,{value}"
    if value is None:
        return "void,undefined"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return f'longstr,<<"{text}">>'
