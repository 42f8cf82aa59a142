"""penstock.call: what AMQP has no word for, asked over an AMQP channel.

A method of Penstock's own (class 9000) with the name of an operation and its arguments as JSON; the
answer is JSON, too, or a code and a text, 311 if it is larger than a frame. It is how the remote
box looks at queues, and goes wherever the connection goes. The user's permissions are checked by
the operations themselves.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.broker.channel import Channel
from penstock.broker.operation_json import dumps, loads
from penstock.broker.vhost import VHost
from penstock.codec.spec import (
    CONTENT_TOO_LARGE,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
)
from penstock.errors import AMQPError

OVERHEAD_BYTES: Final = 32  # of a frame with an answer, more than enough

Call = Callable[[VHost, Channel | None, str, dict[str, Any], Callable[[object], None]], None]


def on_penstock_call(channel: Channel, method: PenstockCall, call: Call) -> None:
    """Have an operation done; it answers now or later."""

    def reply(result: object) -> None:
        if channel.is_closed:
            return
        if isinstance(result, AMQPError):
            channel.send(PenstockCallError(code=result.code, text=result.text.encode()))
            return
        data = dumps(result)
        frame_max = channel.output.frame_max
        if frame_max and len(data) + OVERHEAD_BYTES > frame_max:
            text = f"an answer of {len(data)} bytes does not fit into a frame of {frame_max}"
            channel.send(PenstockCallError(code=CONTENT_TOO_LARGE, text=text.encode()))
        else:
            channel.send(PenstockCallOk(result=data))

    try:
        call(channel.vhost, channel, method.op, loads(method.arguments), reply)
    except AMQPError as error:
        reply(error)
