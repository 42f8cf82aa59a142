"""What all tests share: how hard hypothesis tries, and how many crash images are made.

HYPOTHESIS_PROFILE  few (the uncompiled lane), dev (the default), ci (`make crash`), nightly.
                    Only nightly looks elsewhere each time: what `make test` says of a commit, it
                    says again.
PENSTOCK_CRASH_IMAGES  how many crash images all crash tests make together: a number, or "small".
                    From IMAGES_OF_MAKE_CRASH on they leave out nothing: every mutant, every damage.
PENSTOCK_CHECK=1  what can check its own invariants does so after every operation; set here.
--cases N  of a test with parameters only so many cases: those that differ the most.
"""

import contextlib
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from penstock.queues.queue_ram import CHECKS
from tests.helpers.few_cases import few_cases
from tests.helpers.live_broker import LiveBroker
from tests.helpers.quick_spark import quicken
from tests.helpers.tls_files import TlsFiles

CRASH_IMAGES = 1_000
CRASH_IMAGES_SMALL = 500
IMAGES_OF_MAKE_CRASH = 1_000_000

os.environ.setdefault("PENSTOCK_CHECK", "1")
CHECKS.is_on = os.environ["PENSTOCK_CHECK"] == "1"

# The defaults of pika are for a machine that does nothing else: 10 s and 15 s for a connection.
with contextlib.suppress(ImportError):
    from pika.connection import Parameters

    Parameters.DEFAULT_SOCKET_TIMEOUT = Parameters.DEFAULT_STACK_TIMEOUT = 120.0

# print_blob: a failing example is printed with what reproduces it. No deadline: the machine may be
# busy, and a slow example is no mistake.
for name, examples in (("few", 20), ("dev", 50), ("ci", 300), ("nightly", 5000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=name != "nightly",
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def crash_images_wanted() -> int:
    """How many crash images all crash tests make together, about."""
    value = os.environ.get("PENSTOCK_CRASH_IMAGES", str(CRASH_IMAGES))
    return CRASH_IMAGES_SMALL if value == "small" else int(value)


@pytest.fixture(scope="session")
def crash_images() -> int:
    """How many crash images all crash tests make together, about."""
    return crash_images_wanted()


@pytest.fixture(scope="session")
def quick_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever Spark is started from now on starts sooner: see tests/helpers/quick_spark.py."""
    quicken(tmp_path_factory.mktemp("quick_spark"))


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def tls_broker(
    tls_files: TlsFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    """A broker that asks for a client's certificate, and does without."""
    environment = tls_files.environment(
        ca=tls_files.path("ca.pem"), verify_peer="true", login_from="common_name"
    )
    data = tmp_path_factory.mktemp("broker") / "data"
    with LiveBroker(data, environment=environment, has_http=True) as live:
        live.control("await_startup")
        yield live


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-golden: see tests/helpers/golden.py."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
    parser.addoption("--cases", type=int, default=0, help="of each test so many cases at most")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that --cases does not want."""
    most = config.getoption("--cases")
    if most:
        kept = set(few_cases(items, most))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
