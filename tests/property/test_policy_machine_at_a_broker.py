"""The machine of test_policy_machine at a real broker: policies are set as the command does it,
messages come and go by AMQP, and what is left is compared with the same model.

Time is the system's here, so a time to live is a millisecond or an hour, and the machine waits
until the broker has what the model expects.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pika
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from penstock.errors import PRECONDITION_FAILED, ChannelError
from penstock.server.control import ControlError
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.property.test_policy_machine import LONG, QUEUES, SHORT, TTLS, Policies


class FastClock:
    """The model's: after each look a millisecond is over, and an hour never."""

    def __init__(self) -> None:
        self._ms = 0

    def wall_ms(self) -> int:
        self._ms += 10
        return self._ms


class BrokerAndClient:
    """The part of OperationRig that the machine uses, at a broker that runs."""

    def __init__(self, broker: LiveBroker) -> None:
        self.clock = FastClock()
        self.broker = broker
        self.client: pika.BlockingConnection | None = None
        self.connect()

    def connect(self) -> None:
        """Open a channel with confirms."""
        self.close()
        self.client = pika.BlockingConnection(
            pika.ConnectionParameters(self.broker.host, self.broker.port)
        )
        self.channel: BlockingChannel = self.client.channel()
        self.channel.confirm_delivery()

    def close(self) -> None:
        """Close the client."""
        if self.client is not None and self.client.is_open:
            self.client.close()

    def result(self, op: str, **args: object) -> Any:
        return self.broker.control(op, "/", **args)

    def refusal(self, op: str, **args: object) -> ControlError:
        with pytest.raises(ControlError) as refused:
            self.result(op, **args)
        return refused.value

    def put(self, queue: str, body: bytes, **properties: Any) -> None:
        try:
            self.channel.basic_publish(
                "", queue, body, pika.BasicProperties(delivery_mode=2, **properties)
            )
        except NackError as error:
            raise ChannelError(PRECONDITION_FAILED, "refused") from error

    def bodies(self, queue: str) -> list[bytes]:
        """Of the messages that are ready, the next one first."""
        found = self.result("browse_messages", queue=queue, count=1000)
        return [one["payload"].encode() for one in found["messages"]]

    def turn(self) -> None:
        """The broker does its turns."""

    def tick(self) -> None:
        """And has its own time."""


class PoliciesAtABroker(Policies):
    """See the head of this module. broker: set by the test."""

    TTL_MS: Mapping[str | None, int | None] = {None: None, SHORT: 1, LONG: 3_600_000}
    broker: LiveBroker

    def made_rig(self) -> BrokerAndClient:
        return BrokerAndClient(self.broker)

    @rule(priority=st.integers(0, 1), ttl=TTLS)
    def publish_to_all(self, priority: int, ttl: str | None) -> None:
        for name in QUEUES:
            self.publish(name, priority, ttl)

    @rule(name=st.sampled_from(QUEUES))
    def reject(self, name: str) -> None:  # type: ignore[override]
        """One alone: what is behind it may expire when it has gone."""
        super().reject(name, 1)

    def rejected(self, name: str, n: int) -> int:
        method = self.rig.channel.basic_get(name)[0]
        assert method is not None
        self.rig.channel.basic_reject(method.delivery_tag, requeue=False)
        return n

    def restart(self) -> None:  # type: ignore[override]
        """No rule here, as it takes long: a life ends with one."""
        self.rig.close()
        self.broker.restart()
        self.rig.connect()

    @invariant()
    def each_queue_is_as_expected(self) -> None:
        if not hasattr(self, "dead"):
            return
        for name, ready in self.ready.items():
            expected = [one.body for one in ready]
            wait_until(
                lambda name=name, expected=expected: self.rig.bodies(name) == expected,
                f"{expected} in {name}",
            )
        wait_until(lambda: sorted(self.rig.bodies("dead")) == sorted(self.dead), "dead letters")

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        if any(self.ready.values()):
            self.restart()
            self.each_queue_is_as_expected()
        for operators, known in (("", self.policies), ("operator_", self.operators)):
            for name in known:
                self.rig.result(f"clear_{operators}policy", name=name)
        for name in (*(one for one in QUEUES if one in self.arguments), "dead"):
            self.rig.result("delete_queue", queue=name)
        self.rig.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("policies") / "data") as broker:
        yield broker


def test_policies_at_a_broker(broker: LiveBroker) -> None:
    """10 lives in `make test`; a twentieth of what a machine does in memory, 250, in nightly."""
    PoliciesAtABroker.broker = broker
    run_state_machine_as_test(
        PoliciesAtABroker,
        settings=settings(
            settings.default, max_examples=max(settings.default.max_examples // 20, 10),
            stateful_step_count=50, database=None,
        ),
    )  # fmt: skip
