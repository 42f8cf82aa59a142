"""One broker for all conformance tests, a connection of pika's, and names that meet nobody's.

The broker is Penstock's own `serve`, with what checks its own invariants switched on; or any other,
named by PENSTOCK_TEST_URL. Against another broker, tests marked ``penstock_only`` are skipped: they
need Penstock's control socket, or a promise that only Penstock makes.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.helpers.live_broker import Broker, LiveBroker, broker_for_tests, external_broker

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "penstock_only: skipped when PENSTOCK_TEST_URL names another broker"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if external_broker() is None:
        return
    for item in items:
        if item.get_closest_marker("penstock_only"):
            item.add_marker(pytest.mark.skip(reason="needs Penstock's own control or promise"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("conformance") / "data"
    with broker_for_tests(data, environment={"PENSTOCK_CHECK": "1"}) as running:
        yield running
        if isinstance(running, LiveBroker):
            assert running.stop() == 0, running.log_text()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a queue or exchange that no other test has, nor another run."""
    test = request.node.originalname.removeprefix("test_").replace("_", "-")
    return f"{test[:24]}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[[], BlockingConnection]]:
    """Makes connections of pika's; those still open are closed when the test ends."""
    made: list[BlockingConnection] = []

    def connect_one() -> BlockingConnection:
        connection = BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0"))
        made.append(connection)
        return connection

    yield connect_one
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: Callable[[], BlockingConnection]) -> BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel()
