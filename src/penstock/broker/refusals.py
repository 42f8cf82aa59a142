"""Refusals: the AMQP exceptions of a vhost's topology, in the words that clients know.

Clients of RabbitMQ match on reply codes, and people search for the texts; so the texts are
RabbitMQ's, down to how a queue is called in them: "queue 'jobs' in vhost '/'". Only where RabbitMQ
prints one of its own terms is it said in words what was given and what was expected.

Codes: AMQP 0-9-1 specification, 1.2. Which class and method failed whoever handles the method adds.

Not here: refusals that only one method of a channel has (channel_basic.py, publish_facts.py).
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
    """How a thing is named to people; kind: "queue" or "exchange"."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def not_found(what: str) -> ChannelError:
    """404: what: as `called` has it."""
    return ChannelError(NOT_FOUND, f"no {what}")


def precondition_failed(text: str) -> ChannelError:
    """406."""
    return ChannelError(PRECONDITION_FAILED, text)


def not_for_streams(asked: str, what: str) -> AMQPConnectionError:
    """540: what queues have, and streams have not."""
    return AMQPConnectionError(NOT_IMPLEMENTED, f"{asked} not supported by stream queues {what}")


def leased(what: str, leases: Mapping[str, int]) -> ChannelError:
    """406: readers have messages of the queue: how many each."""
    readers = ", ".join(sorted(leases)[:SHOWN_READERS])
    if len(leases) > SHOWN_READERS:
        readers += ", ..."
    count = sum(leases.values())
    return precondition_failed(
        f"{what} is leased: {count} messages by readers [{readers}]; commit, release (penstock "
        "release), or delete with force"
    )


def no_space(what: str, error: DiskFullError) -> ChannelError:
    """406: the disk is full, and nothing was changed."""
    return precondition_failed(f"no space for {what}: {error}")


def access_refused(text: str) -> ChannelError:
    """403."""
    return ChannelError(ACCESS_REFUSED, text)


def no_access(verb: str, kind: str, name: str, vhost: str, user: str) -> ChannelError:
    """403: this user may not configure, write or read it."""
    what = called(kind, name or DEFAULT, vhost)
    return access_refused(f"{verb} access to {what} refused for user '{user}'")


def locked(what: str) -> ChannelError:
    """405: an exclusive queue of another connection, or the other way round."""
    return ChannelError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {what}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def crashed(what: str) -> ChannelError:
    """404: a queue whose own code failed too often."""
    return ChannelError(NOT_FOUND, f"{what} has crashed and failed to restart")


def reserved(kind: str, name: str) -> ChannelError:
    """403: a name that begins with "amq."."""
    return access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def default_exchange() -> ChannelError:
    """403: nobody declares, deletes or binds the default exchange."""
    return access_refused("operation not permitted on the default exchange")


def unknown_type(name: str) -> AMQPConnectionError:
    """503: no exchange is of this type."""
    said = "unknown" if name else "invalid"
    return AMQPConnectionError(COMMAND_INVALID, f"{said} exchange type '{name}'")


def check_same(name: str, what: str, given: object, current: object) -> None:
    """406 unless a property is declared again as it is."""
    if given != current:
        raise precondition_failed(
            f"inequivalent arg '{name}' for {what}: received '{_said(given)}' but current is "
            f"'{_said(current)}'"
        )


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
