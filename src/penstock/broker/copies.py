"""Copies: the routing keys that a publisher puts into the headers CC and BCC, RabbitMQ's extension.

A message is routed by its own key and by each of theirs. CC stays in the headers for everyone to
see; BCC is taken away before the message is stored, and its keys go into the stored header where no
consumer sees them: dead-lettering without a routing key of its own needs them again.

A CC or BCC that is no array of strings closes the channel, in RabbitMQ's words; values in the array
that are no strings are passed over, as there.

Hot is only `has_copies`: nearly no message has any.
"""

from typing import Final

from penstock.errors import PRECONDITION_FAILED, ChannelError
from penstock.queues import raw_tables
from penstock.queues.raw_properties import HEADERS, PropertiesError, RawProperties
from penstock.queues.raw_tables import RawEntry
from penstock.queues.x_death import CC, routing_keys_in

BCC: Final = b"BCC"
HEADERS_IN_FIRST_OCTET: Final = HEADERS >> 8


class Copies:
    """cc, bcc: the keys. props: the properties without BCC."""

    __slots__ = ("bcc", "cc", "props")

    def __init__(self, cc: list[bytes], bcc: list[bytes], props: bytes) -> None:
        self.cc: list[bytes] = cc
        self.bcc: list[bytes] = bcc
        self.props: bytes = props


def has_copies(props: bytes) -> bool:
    """Whether properties may name further routing keys; mostly False, and then they do not."""
    return props[0] & HEADERS_IN_FIRST_OCTET != 0 and (b"\x02CC" in props or b"\x03BCC" in props)


def copies(props: bytes) -> Copies:
    """The keys in CC and BCC of valid properties. ChannelError for one that is no array."""
    try:
        raw = RawProperties(props)
    except PropertiesError:
        return Copies([], [], props)
    headers = raw.headers()
    _check(headers, CC)
    _check(headers, BCC)
    cc = routing_keys_in(headers)
    if raw_tables.get(headers, BCC) is None:
        return Copies(cc, [], props)
    bcc = routing_keys_in(headers, BCC)
    return Copies(cc, bcc, raw.changed([entry for entry in headers if entry[0] != BCC]))


def _check(headers: list[RawEntry], name: bytes) -> None:
    value = raw_tables.get(headers, name)
    if value is None or value[:1] == b"A":
        return
    kind = raw_tables.TYPE_NAMES[value[0]]
    raise ChannelError(
        PRECONDITION_FAILED,
        f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{kind}}}',
        class_id=60,
        method_id=40,
    )
