"""A rig for each test, and a client with a stream; a module with another kind makes its own."""

import pytest

from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.stream_steps import declare


@pytest.fixture
def rig() -> BrokerRig:
    return BrokerRig()


@pytest.fixture
def c(rig: BrokerRig) -> RigClient:
    """A client that is told of canceled consumers; it has declared the stream "s"."""
    client = rig.client(consumer_cancel_notify=True).open()
    declare(client)
    return client
