"""A scripted broker for each test that asks for one."""

from collections.abc import Iterator

import pytest

from tests.helpers.scripted_broker import ScriptedBroker


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    broker.close()
