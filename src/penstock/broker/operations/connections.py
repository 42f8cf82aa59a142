"""Connections, channels and consumers: their rows in RabbitMQ's HTTP shape, and closing them.

A connection and a channel belong to the user who has opened them: others see them only with the tag
monitoring or administrator. A row has RabbitMQ's members and types; what only Penstock has is in
`penstock`. What RabbitMQ tells of a process of Erlang is 0 or {}.

The client of a connection that is closed gets 320 CONNECTION_FORCED with the reason; the server
ends it, so its messages go back without an attempt that counts.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final

from penstock.broker.broker_queue import Consumer
from penstock.broker.channel import Channel, ChannelOwner
from penstock.broker.operations.call import Call, Functions, Slices
from penstock.broker.operations.kinds import RATE, STATS, RowAsked, RowKind
from penstock.broker.operations.listings import channel_info
from penstock.broker.operations.queue_rows import consumer_row, consumer_rows
from penstock.broker.rates import INTERVAL_S, Info
from penstock.broker.refusals import called, not_found, precondition_failed
from penstock.broker.vhost import CHANNEL, CONNECTION, VHost
from penstock.clock import date
from penstock.errors import CONNECTION_FORCED
from penstock.native import node_name
from penstock.operation_table import WATCHERS

CLOSE_STEPS: Final = 64  # to end one: its channels end, what they have goes back
OCTETS: Final = ("recv_oct", "send_oct")
# What RabbitMQ tells of a process of Erlang.
ERLANG: Final[Info] = {
    "garbage_collection": {}, "reductions": 0, "reductions_details": {"rate": 0.0},
}  # fmt: skip


def owners(vhost: VHost) -> list[ChannelOwner]:
    """Return the connections, by name."""
    found = [peer for peer in vhost.handlers if isinstance(peer, ChannelOwner)]
    return sorted(found, key=_name_of)


def _name_of(owner: ChannelOwner) -> str:
    return owner.name


def _peer(owner: ChannelOwner) -> Info:
    return {"peer_host": owner.facts.peer_host, "peer_port": owner.facts.peer_port}


class ConnectionRows(RowKind):
    """The connections of clients. of: {"user": name}: only those of that one."""

    called = "connection"
    rates = CONNECTION
    selectors = ("user",)

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[ChannelOwner]:
        user = of.get("user")
        return [owner for owner in owners(vhost) if user is None or owner.facts.user == user]

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> ChannelOwner | None:
        found = [peer for peer in vhost.handlers if peer.name == name]
        return next((peer for peer in found if isinstance(peer, ChannelOwner)), None)

    def name(self, thing: ChannelOwner) -> str:
        return thing.name

    def owner(self, thing: ChannelOwner) -> str | None:
        return thing.facts.user

    def key(self, vhost: VHost, column: str) -> Callable[[ChannelOwner], object]:
        if column == "channels":
            return lambda owner: len(owner.channels)
        if column in OCTETS:
            return lambda owner: owner.octets()[column]
        of_row = super().key(vhost, column)
        if column.endswith(RATE):
            return of_row
        return lambda owner: getattr(owner.facts, column, None) or of_row(owner)

    def row(self, vhost: VHost, thing: ChannelOwner, asked: RowAsked) -> Info | None:
        if thing not in vhost.handlers:
            return None
        facts = thing.facts
        row = thing.info()
        if asked.has_stats:
            key = (CONNECTION, thing.name)
            row |= asked.with_rates(vhost, key, thing.octets(), "data_rates") | ERLANG
        if called := facts.given_name():
            row["user_provided_name"] = called
        return row | {
            "node": node_name(),
            "type": "network",
            "user_who_performed_action": facts.user,
            "penstock": {
                "blocked_by": vhost.blocked_reason if row["state"] == "blocked" else "",
                "blocked_since": (
                    date(vhost.blocked_since_ms)
                    if vhost.blocked_reason and row["state"] == "blocked" else ""
                ),
            },
        }  # fmt: skip


class ClosedConnectionRows(RowKind):
    """The last connections that have ended, the last one first."""

    called = "closed connection"

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Info]:
        return list(reversed(vhost.counts.closed_connections))

    def name(self, thing: Info) -> str:
        return str(thing["name"])

    def owner(self, thing: Info) -> str | None:
        return str(thing["user"])

    def row(self, vhost: VHost, thing: Info, asked: RowAsked) -> Info:
        return thing


class ChannelRows(RowKind):
    """The channels of connections. of: {"connection": name}: only those of that one."""

    called = "channel"
    rates = CHANNEL
    selectors = ("connection",)

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Channel]:
        name = of.get("connection")
        return [
            channel
            for owner in owners(vhost)
            if name is None or owner.name == name
            for channel in owner.channels.values()
        ]

    def name(self, thing: Channel) -> str:
        return thing.name

    def owner(self, thing: Channel) -> str | None:
        return thing.identity.name

    def key(self, vhost: VHost, column: str) -> Callable[[Channel], object]:
        if column.endswith(RATE):
            return super().key(vhost, column)
        name = column.removeprefix(f"{STATS}.")
        if name != column:
            return lambda channel: channel.message_stats().get(name)
        return lambda channel: channel_info(vhost, channel).get(column)

    def row(self, vhost: VHost, thing: Channel, asked: RowAsked) -> Info | None:
        if thing.is_closed:
            return None
        row = channel_info(vhost, thing)
        owner = thing.handler
        del row["connection"]
        row |= {
            "node": node_name(),
            "connection_details": {"name": owner.name, **_peer(owner)},
            "user_who_performed_action": thing.identity.name,
            "pending_raft_commands": 0,
        }
        if not asked.has_stats:
            return row
        row |= ERLANG
        stats = thing.message_stats()
        if any(stats.values()):
            row[STATS] = asked.with_rates(vhost, (CHANNEL, self.name(thing)), stats, "msg_rates")
        idle_s = vhost.clock.monotonic() - thing.used_at_s
        if idle_s >= INTERVAL_S:
            row["idle_since"] = date(vhost.clock.wall_ms() - round(idle_s * 1000))
        return row

    def details(
        self, vhost: VHost, thing: Channel, asked: RowAsked
    ) -> Generator[None, None, Info | None]:
        row = self.row(vhost, thing, asked)
        if row is None:
            return None
        consumers = yield from consumer_rows(vhost, list(thing.consumers.values()))
        return row | {"consumer_details": consumers, "publishes": [], "deliveries": []}


class ConsumerRows(RowKind):
    """The consumers of queues, by queue. of: {"queue": name}: only those of that one."""

    called = "consumer"
    selectors = ("queue",)

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Consumer]:
        served = vhost.table.served
        names: Iterable[str] = [of["queue"]] if "queue" in of else sorted(served)
        return [one for name in names if name in served for one in served[name].consumers.all()]

    def name(self, thing: Consumer) -> str:
        return thing.tag

    def row(self, vhost: VHost, thing: Consumer, asked: RowAsked) -> Info | None:
        return None if thing.is_cancelled else consumer_row(vhost, thing)


# ---- closing -------------------------------------------------------------------------------------


def _closed(call: Call) -> Slices:
    """Close them; the caller's own connection after the answer. ChannelError 404: there is none of
    this name."""
    vhost, args = call.vhost, call.args
    name, user, text = args.text("name"), args.text("user"), args.text("reason")
    number = args.whole("channel")
    if number and not name:
        raise args.wrong("channel", "given without name, expected the connection's name, too")
    sees_all = call.is_operator or not call.identity.tags.isdisjoint(WATCHERS)
    count = 0
    own: ChannelOwner | None = None
    for owner in owners(vhost):
        is_meant = (not name or owner.name == name) and (not user or owner.facts.user == user)
        if not is_meant or not (sees_all or owner.facts.user == call.identity.name):
            continue
        if number:
            if number not in owner.channels:
                break
            count += 1
            owner.close_channel(number, precondition_failed(text))
            break
        count += 1
        if owner is call.owner:
            own = owner
            continue
        owner.shutdown(CONNECTION_FORCED, text)
        vhost.budget.left -= CLOSE_STEPS
        yield
    if own is not None:
        vhost.timers.call_at(vhost.clock.monotonic(), lambda: own.shutdown(CONNECTION_FORCED, text))
    if name and not count:
        what = f"channel {number} of connection" if number else "connection"
        raise not_found(called(what, name, vhost.name))
    return {"closed": count}


FUNCTIONS: Final[Functions] = {"close_connections": lambda call: call.in_slices(_closed(call))}
