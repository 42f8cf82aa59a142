"""Brokers for the tests of clients, scripted and live, and boxes on a live one."""

from collections.abc import Iterator

import pytest

import penstock
from tests.contracts.box import Opens
from tests.helpers.aio_adapter import AioAdapter
from tests.helpers.live_broker import LiveBroker
from tests.helpers.remote_boxes import RemoteBoxes
from tests.helpers.scripted_broker import ScriptedBroker


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("box") / "data") as live:
        yield live


@pytest.fixture
def opens(broker: LiveBroker) -> Iterator[Opens]:
    """Of the contract of boxes; a module for asyncio takes aio_opens in its place."""
    boxes = RemoteBoxes(broker, penstock.open, lambda box: box.close())
    yield boxes.open
    boxes.close()


@pytest.fixture
def aio_opens(broker: LiveBroker) -> Iterator[Opens]:
    boxes = RemoteBoxes(broker, AioAdapter, lambda box: box.end())
    yield boxes.open
    boxes.close()
