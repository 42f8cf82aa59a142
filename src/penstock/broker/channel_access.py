"""What the methods of a channel ask before anything else: may this user do that to this thing?

The three verbs of RabbitMQ: configure (declare, delete), write (publish, bind to) and read
(consume, get, bind from). The default exchange goes by the name amq.default.
"""

from penstock.broker import refusals
from penstock.broker.channel import Channel
from penstock.errors import ChannelError


def check_configure(channel: Channel, kind: str, name: str) -> None:
    """ChannelError 403 unless the user may configure this queue or exchange."""
    if not channel.identity.may_configure(name or refusals.DEFAULT):
        raise refused(channel, "configure", kind, name)


def check_write(channel: Channel, kind: str, name: str) -> None:
    """ChannelError 403 unless the user may write to it."""
    if not channel.identity.may_write(name or refusals.DEFAULT):
        raise refused(channel, "write", kind, name)


def check_read(channel: Channel, kind: str, name: str) -> None:
    """ChannelError 403 unless the user may read from it."""
    if not channel.identity.may_read(name or refusals.DEFAULT):
        raise refused(channel, "read", kind, name)


def refused(channel: Channel, verb: str, kind: str, name: str) -> ChannelError:
    """403: what was wanted, of what, where, by whom."""
    return refusals.no_access(verb, kind, name, channel.vhost.name, channel.identity.name)
