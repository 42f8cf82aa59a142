"""What the suites of suites.py expect of their authors' machines, made to fit a broker that runs.

Four things are written into an unpacked sdist, and no test is changed:
- `suite_fixtures.py`, a pytest plugin: fixtures that aiormq and dramatiq keep outside their sdists;
- for aio-pika and aiormq, `tests/docker_client.py`: the "container" is the broker named by
  SUITE_HOST and SUITE_PORT, and what would stop or start it says that it cannot;
- for dramatiq, `tests/common.py`, which its sdist leaves out;
- for amqpstorm, the cleaning up after each test, by AMQP instead of the management API.

Not here: which tests are run, and what they are allowed to fail (suites.py).
"""

from pathlib import Path

DOCKER_CLIENT = """
import os
from dataclasses import dataclass, field


class DockerNotAvailableError(Exception):
    pass


@dataclass
class DockerHostInfo:
    is_tcp: bool = True


@dataclass
class ContainerInfo:
    id: str = "the broker"
    ports: dict = field(
        default_factory=lambda: {
            "5672/tcp": int(os.environ["SUITE_PORT"]), "5671/tcp": 5671,
        }
    )
    host: str = os.environ.get("SUITE_HOST", "127.0.0.1")


def check_docker_available():
    return DockerHostInfo()


class DockerClient:
    def __init__(self, info=None):
        pass

    def run(self, image, ports, environment=None):
        if environment:
            raise RuntimeError("a container of its own is wanted")
        return ContainerInfo()

    def kill(self, container_id):
        pass

    remove = stop = start = kill
"""

FIXTURES = """
import os

import pytest


@pytest.fixture(scope="session")
def rabbitmq_container():
    from tests.docker_client import ContainerInfo

    return ContainerInfo()


@pytest.fixture(scope="session")
def amqp_direct_url():
    from yarl import URL

    return URL(os.environ["RABBITMQ_URL"]).update_query(name="pytest")


@pytest.fixture
def rabbitmq_broker():
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker
    from tests.common import RABBITMQ_CREDENTIALS

    broker = RabbitmqBroker(
        host=os.environ["SUITE_HOST"], port=int(os.environ["SUITE_PORT"]), max_priority=10,
        credentials=RABBITMQ_CREDENTIALS,
    )
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.emit_before("process_stop")
    broker.close()


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker):
    from dramatiq import Worker

    worker = Worker(rabbitmq_broker, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()
"""

COMMON = """
import os

import pika
import pytest

RABBITMQ_USERNAME = os.environ["RABBITMQ_USERNAME"]
RABBITMQ_PASSWORD = os.environ["RABBITMQ_PASSWORD"]
RABBITMQ_CREDENTIALS = pika.credentials.PlainCredentials(RABBITMQ_USERNAME, RABBITMQ_PASSWORD)
skip_unless_rabbit_mq = pytest.mark.skipif(False, reason="a broker runs")
"""

CLEAN = """


def clean(names, queue=False, exchange=False):
    if not queue and not exchange:
        return
    with Connection(HOST, USERNAME, PASSWORD, timeout=10) as connection:
        with connection.channel() as channel:
            for name in names:
                if queue:
                    channel.queue.delete(name)
                if exchange:
                    channel.exchange.delete(name)
"""


def put_in_place(name: str, source: Path) -> None:
    """Writes into the unpacked sdist of suite `name` what it needs."""
    (source / "suite_fixtures.py").write_text(FIXTURES)
    if name in ("aio-pika", "aiormq"):
        (source / "tests" / "docker_client.py").write_text(DOCKER_CLIENT)
    if name == "dramatiq":
        (source / "tests" / "__init__.py").touch()
        (source / "tests" / "common.py").write_text(COMMON)
    if name == "amqpstorm":
        with (source / "amqpstorm" / "tests" / "functional" / "utility.py").open("a") as utility:
            utility.write(CLEAN)
