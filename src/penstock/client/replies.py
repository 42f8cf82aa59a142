"""Replies: which method answers which, and errors from the words of a broker.

In AMQP 0-9-1 a channel answers what it is asked in the order in which it was asked, so a client
keeps a queue of what it waits for. What may come without having been asked for is listed here; all
else is an answer to the oldest question.

A broker's texts begin with the name of the reply code, as "NOT_FOUND - no queue 'q'"; our errors
put that there themselves.
"""

from typing import Final

from penstock.codec.method import Method
from penstock.codec.spec import (
    BasicCancel,
    BasicNack,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    PenstockCallError,
    PenstockCallOk,
)
from penstock.errors import REPLY_NAMES, ChannelError

UNASKED: Final = (BasicNack, BasicCancel, ChannelFlow, ChannelClose, ChannelCloseOk)
OF_CALLS: Final = (PenstockCallOk, PenstockCallError)


def without_name(text: str, code: int) -> str:
    """The text without the name of its code."""
    return text.removeprefix(f"{REPLY_NAMES.get(code, code)} - ")


def close_error(method: ChannelClose) -> ChannelError:
    """What a channel was closed with."""
    code = method.reply_code
    return ChannelError(
        code, without_name(method.reply_text, code), method.class_id, method.method_id
    )


def call_error(method: PenstockCallError) -> ChannelError:
    """What an operation ended with; its channel stays open."""
    text = method.text.decode("utf-8", "replace")
    return ChannelError(method.code, without_name(text, method.code))


def is_answer(method: Method) -> bool:
    """Whether it answers the oldest question of its channel."""
    return not isinstance(method, UNASKED)
