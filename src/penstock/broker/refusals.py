"""The AMQP errors of a vhost's topology, with RabbitMQ's texts.

Clients of RabbitMQ match on reply codes, and people search for the texts; so the texts are
RabbitMQ's, down to how a queue is named in them: "queue 'jobs' in vhost '/'". Only where RabbitMQ
prints one of its own terms, the text says instead what was given and what was expected.

Codes: AMQP 0-9-1 specification, 1.2. The caller that handles a method adds the ids of its class and
method. `what` is the name of a thing as `called` returns it.
"""

from collections.abc import Mapping
from typing import Final

from penstock.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AMQPConnectionError,
    ChannelError,
    DiskFullError,
)

DEFAULT: Final = "amq.default"  # by which permissions know the default exchange
SHOWN_READERS: Final = 10


def called(kind: str, name: str, vhost: str) -> str:
    """Return how errors name a thing; kind: "queue" or "exchange"."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def not_found(what: str) -> ChannelError:
    """404: there is none."""
    return ChannelError(NOT_FOUND, f"no {what}")


def precondition_failed(text: str) -> ChannelError:
    """406."""
    return ChannelError(PRECONDITION_FAILED, text)


def not_for_streams(asked: str, what: str) -> AMQPConnectionError:
    """540: streams do not support what is asked."""
    return AMQPConnectionError(NOT_IMPLEMENTED, f"{asked} not supported by stream queues {what}")


def leased(what: str, leases: Mapping[str, int]) -> ChannelError:
    """406: readers have messages of the queue leased. leases: how many each."""
    readers = ", ".join(sorted(leases)[:SHOWN_READERS])
    if len(leases) > SHOWN_READERS:
        readers += ", ..."
    count = sum(leases.values())
    return precondition_failed(
        f"{what} is leased: {count} messages by readers [{readers}]; commit, release (penstock "
        "release), or delete with force"
    )


def no_space(what: str, error: DiskFullError) -> ChannelError:
    """406: the disk is full and nothing was changed."""
    return precondition_failed(f"no space for {what}: {error}")


def access_refused(text: str) -> ChannelError:
    """403."""
    return ChannelError(ACCESS_REFUSED, text)


def no_access(verb: str, kind: str, name: str, vhost: str, user: str) -> ChannelError:
    """403: this user may not configure, write or read it."""
    what = called(kind, name or DEFAULT, vhost)
    return access_refused(f"{verb} access to {what} refused for user '{user}'")


def no_topic(verb: str, exchange: str, key: str, vhost: str, user: str) -> ChannelError:
    """403: this user may not write or read the routing key."""
    what = called("exchange", exchange, vhost)
    return access_refused(f"{verb} access to topic '{key}' in {what} refused for user '{user}'")


def locked(what: str) -> ChannelError:
    """405: an exclusive queue of another connection, or the property differs."""
    return ChannelError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {what}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def being_deleted(what: str) -> ChannelError:
    """405: a queue with many bindings, which are deleted before it."""
    return ChannelError(RESOURCE_LOCKED, f"{what} is being deleted, try again")


def crashed(what: str) -> ChannelError:
    """404: a queue that failed too often."""
    return ChannelError(NOT_FOUND, f"{what} has crashed and failed to restart")


def reserved(kind: str, name: str) -> ChannelError:
    """403: a name that begins with "amq."."""
    return access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def default_exchange() -> ChannelError:
    """403: nobody may declare, delete or bind the default exchange."""
    return access_refused("operation not permitted on the default exchange")


def unknown_type(name: str) -> AMQPConnectionError:
    """503: there is no exchange type of this name."""
    said = "unknown" if name else "invalid"
    return AMQPConnectionError(COMMAND_INVALID, f"{said} exchange type '{name}'")


def check_same(name: str, what: str, given: object, current: object) -> None:
    """Raise a 406 unless a property is declared again with the same value."""
    if given != current:
        raise precondition_failed(
            f"inequivalent arg '{name}' for {what}: received '{_said(given)}' but current is "
            f"'{_said(current)}'"
        )


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
