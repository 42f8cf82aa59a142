"""Facts of a message that decide what a publish does with it, from the bytes of its properties.

Most messages have delivery mode and priority and nothing else that a broker must know; both come
out of the scan that validates them. What is rarer is decoded when its flag is there:

    expiration   a number of ms as text: how long it may wait
    user-id      must be the user's own name
    CC, BCC      headers: more routing keys (copies.py)
    x-delay      a header, or the exchange's: how long it has to wait, in ms
"""

from typing import Final

from penstock.codec.properties import BasicProperties, expiration_at
from penstock.errors import PRECONDITION_FAILED, ChannelError
from penstock.queues.queue_options import MS_MAX

PERSISTENT: Final = 2
EXPIRATION_MS_MAX: Final = MS_MAX
DELAY_MS_MAX: Final = MS_MAX
PUBLISH: Final = (60, 40)


class Facts:
    """Of one message. ttl_ms: None for no expiration; delay_ms: None for the queue's own. hidden:
    keys of BCC, which the stored header keeps."""

    __slots__ = ("delay_ms", "hidden", "is_persistent", "priority", "ttl_ms")

    def __init__(self) -> None:
        self.is_persistent: bool = False
        self.priority: int = 0
        self.ttl_ms: int | None = None
        self.delay_ms: int | None = None
        self.hidden: list[bytes] = []

    def set_plain(self, info: int) -> None:
        """What the scan says."""
        self.is_persistent = info & 0xFF == PERSISTENT
        self.priority = info >> 8 & 0xFF
        self.ttl_ms = None
        self.delay_ms = None
        self.hidden = []


def refused(text: str) -> ChannelError:
    """406 on basic.publish."""
    return ChannelError(PRECONDITION_FAILED, text, *PUBLISH)


def expiration_of(props: bytes) -> int:
    """The expiration in ms. ChannelError 406 unless it is a whole number in range."""
    given = expiration_at(props) or b""
    if not given.isdigit() or len(given) > 15 or int(given) > EXPIRATION_MS_MAX:
        text = given.decode("utf-8", "replace")
        raise refused(
            f"invalid expiration '{text}': expected a number of ms, 0 to {EXPIRATION_MS_MAX}"
        )
    return int(given)


def check_user(props: bytes, user: str) -> None:
    """ChannelError 406 unless the message says that it is from this user."""
    given = BasicProperties.decode(props).user_id
    if given is not None and given != user:
        raise refused(f"user_id property set to '{given}' but authenticated user was '{user}'")


def delay_of(props: bytes, *, is_exchange: bool) -> int | None:
    """The delay that a message asks for in its header x-delay, in ms; None: it does not. A negative
    one is none, as in RabbitMQ's plugin. is_exchange: an exchange for delays was asked, so a value
    that is no number counts as none; else it is refused."""
    given = (BasicProperties.decode(props).headers or {}).get("x-delay")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given > DELAY_MS_MAX:
        if is_exchange:
            return None
        raise refused(f"invalid header x-delay {given!r}: expected ms, at most {DELAY_MS_MAX}")
    return max(given, 0)


def with_reply_to(props: bytes, reply_to: str) -> bytes:
    """The properties with another reply-to."""
    decoded = BasicProperties.decode(props)
    decoded.reply_to = reply_to
    return decoded.encode()
