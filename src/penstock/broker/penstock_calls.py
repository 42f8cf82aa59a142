"""penstock.call: what AMQP has no word for, asked over an AMQP channel.

A method of Penstock's own (class 9000) with the name of an operation and its arguments as JSON; the
answer is JSON, too, or a code and a text, 311 if it is larger than a frame. It is how the remote
box looks at queues, and goes wherever the connection goes. The user's permissions are checked by
the operations themselves.

An error that nobody expected, in the operation or in its answer, is reported as an event with its
traceback and answered with 541. Only a failure of the engine is raised.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.broker.channel import Channel
from penstock.broker.operation_json import dumps, loads
from penstock.broker.vhost import VHost
from penstock.codec.spec import PenstockCall, PenstockCallError, PenstockCallOk
from penstock.errors import CONTENT_TOO_LARGE, INTERNAL_ERROR, AMQPError

OVERHEAD_BYTES: Final = 32  # of a frame with an answer, more than enough
TEXT_BYTES_MAX: Final = 4000  # of an error's text: the smallest frame has 4096 bytes

Call = Callable[[VHost, Channel | None, str, dict[str, Any], Callable[[object], None]], None]


def on_penstock_call(channel: Channel, method: PenstockCall, call: Call) -> None:
    """Have an operation done; it answers now or later."""

    def reply(result: object) -> None:
        if channel.is_closed:
            return
        try:
            _send_answer(channel, result)
        except Exception as error:  # noqa: BLE001 - it is reported
            _send_error(channel, _mistake(channel, method, error))

    try:
        call(channel.vhost, channel, method.op, loads(method.arguments), reply)
    except AMQPError as error:
        reply(error)
    except Exception as error:  # noqa: BLE001 - it is reported
        reply(_mistake(channel, method, error))


def _mistake(channel: Channel, method: PenstockCall, error: Exception) -> AMQPError:
    """541, reported as an event. A failure of the engine is raised again."""
    if channel.vhost.engine.failed is not None:
        raise error
    where = f"connection {channel.handler.name}, operation {method.op!r}"
    channel.vhost.mistake(where, error)
    return AMQPError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _send_answer(channel: Channel, result: object) -> None:
    if isinstance(result, AMQPError):
        _send_error(channel, result)
        return
    data = dumps(result)
    frame_max = channel.output.frame_max
    if frame_max and len(data) + OVERHEAD_BYTES > frame_max:
        text = f"an answer of {len(data)} bytes does not fit into a frame of {frame_max}"
        channel.send(PenstockCallError(code=CONTENT_TOO_LARGE, text=text.encode()))
    else:
        channel.send(PenstockCallOk(result=data))


def _send_error(channel: Channel, error: AMQPError) -> None:
    text = error.text.encode()
    if len(text) > TEXT_BYTES_MAX:
        text = text[:TEXT_BYTES_MAX].decode("utf-8", "ignore").encode() + b"..."
    channel.send(PenstockCallError(code=error.code, text=text))
