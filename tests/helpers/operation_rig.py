"""OperationRig: a BrokerRig of which operations are asked, by operators or on a channel."""

import json
from typing import Any

from penstock.broker import operations
from penstock.broker.channel import Channel
from penstock.errors import AMQPError
from penstock.operation_json import JsonParts, from_json
from penstock.operation_table import OPERATIONS, Operation
from tests.helpers.broker_rig import BrokerRig


class Asked:
    """One call: its replies, of which there is to be one."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    @property
    def has_come(self) -> bool:
        return bool(self.replies)

    @property
    def result(self) -> Any:
        """The answer, whose text is read if it has one; what was refused is raised."""
        assert len(self.replies) == 1, self.replies
        (reply,) = self.replies
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, JsonParts):
            self.replies[0] = from_json(json.loads(b"".join(reply.take())), is_exact=True)
        return self.replies[0]


def check_answer(row: Operation, found: object) -> None:
    """Assert that the answer, or the rows of a list, have the members of the row of the table."""
    for one in found if isinstance(found, list) else [found]:
        if row.answer and isinstance(one, dict):
            assert set(one) <= set(row.answer), row.name


class OperationRig(BrokerRig):
    """`ask` and `result` of an operation; `refusal` of one that is refused."""

    def ask(self, op: str, channel: Channel | None = None, /, **args: object) -> Asked:
        """Ask, and do not wait."""
        asked = Asked()
        operations.call(self.vhost, channel, op, args, asked.replies.append)
        return asked

    def result(self, op: str, channel: Channel | None = None, /, **args: object) -> Any:
        """The answer, after as many turns as it takes."""
        asked = self.ask(op, channel, **args)
        self.turn()
        check_answer(OPERATIONS[op], asked.result)
        return asked.result

    def refusal(self, op: str, channel: Channel | None = None, /, **args: object) -> AMQPError:
        """The error that is the answer."""
        asked = self.ask(op, channel, **args)
        self.turn()
        (error,) = asked.replies
        assert isinstance(error, AMQPError), error
        return error

    def put(self, queue: str, *bodies: bytes, **properties: object) -> None:
        """Publish to a queue, persistent, confirmed."""
        self.result(
            "publish", routing_key=queue, bodies=list(bodies),
            properties={"delivery_mode": 2, **properties},
        )  # fmt: skip
