"""Permissions of a user on queues and exchanges, as RabbitMQ asks for them.

The three verbs are configure (declare, delete), write (publish, bind to) and read (consume, get,
purge, bind from). The default exchange has the name amq.default. All checks are on the name itself,
whoever chose it: a queue that the server names needs configure on "amq.gen-...".

A new queue with a dead letter exchange moves messages there by itself, so its user needs read on
the queue and write on that exchange; the same holds for a new exchange with an alternate one. What
exists already was checked when it was declared. RabbitMQ checks in this order and in these words.
"""

from collections.abc import Mapping
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.arguments import DEAD_LETTER_EXCHANGE
from penstock.broker.asked_rights import RightsUnknown
from penstock.broker.policies import ALTERNATE
from penstock.broker.vhost import VHost

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"


def check(vhost: VHost, identity: Identity, verb: str, kind: str, name: str) -> None:
    """Raise ChannelError 403 unless the user may do this to that queue or exchange (kind)."""
    asked = name or refusals.DEFAULT
    if verb == CONFIGURE:
        may = identity.may_configure(asked)
    elif verb == WRITE:
        may = identity.may_write(asked)
    else:
        may = identity.may_read(asked)
    if not may:
        raise refusals.no_access(verb, kind, name, vhost.name, identity.name)
    if identity.asks_resources:
        vhost.rights.check(identity, verb, kind, asked)


def check_topic(vhost: VHost, identity: Identity, verb: str, exchange: str, key: str) -> None:
    """Raise ChannelError 403 unless the user may publish (verb: write) to a topic exchange with
    this routing key, or bind and unbind (read). Other exchanges, and names without an exchange,
    are not checked."""
    if not (identity.has_topics or identity.asks_topics) or not vhost.router.is_topic(exchange):
        return
    may = identity.may_write_topic if verb == WRITE else identity.may_read_topic
    if not may(exchange, key):
        raise refusals.no_topic(verb, exchange, key, vhost.name, identity.name)
    if identity.asks_topics:
        vhost.rights.check(identity, verb, "topic", exchange, key)


def one_line(name: str) -> str:
    """Return the name without carriage returns and line feeds: declare, bind, unbind and delete of
    AMQP remove them, as in RabbitMQ; publish, consume, get and purge do not."""
    return name.replace("\r", "").replace("\n", "")


def queue_to_declare(
    vhost: VHost, identity: Identity, name: str, arguments: Mapping[str, object]
) -> str:
    """Return the name of a queue that this user may declare: the given one, or, for "", one that
    the server makes. ChannelError: 403 (reserved, or not permitted), 406 (the server names no
    streams)."""
    given = name
    if not given:
        kept = vhost.rights.take_name(identity.name) if identity.asks_resources else ""
        is_free = kept and not vhost.table.has(kept)
        name = kept if is_free else vhost.table.name_of_servers(arguments)
    elif name.startswith("amq."):
        raise refusals.reserved("queue", name)
    try:
        check(vhost, identity, CONFIGURE, "queue", name)
        if not vhost.table.has(name):
            check_dead_letters(vhost, identity, name, arguments)
    except RightsUnknown:
        if not given:
            vhost.rights.keep_name(identity.name, name)
        raise
    return name


def check_dead_letters(
    vhost: VHost, identity: Identity, queue: str, arguments: Mapping[str, object]
) -> None:
    """Raise ChannelError 403 unless the user may have the queue dead-letter to its exchange."""
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(exchange, str):
        check(vhost, identity, READ, "queue", queue)
        check(vhost, identity, WRITE, "exchange", exchange)


def check_exchange_to_declare(
    vhost: VHost, identity: Identity, name: str, arguments: Mapping[str, object]
) -> None:
    """Raise ChannelError 403 unless the user may declare this exchange."""
    if not name:
        raise refusals.default_exchange()
    check(vhost, identity, CONFIGURE, "exchange", name)
    alternate = arguments.get(ALTERNATE)
    if isinstance(alternate, str) and name not in vhost.exchanges:
        check(vhost, identity, READ, "exchange", name)
        check(vhost, identity, WRITE, "exchange", alternate)
