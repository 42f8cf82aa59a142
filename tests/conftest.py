"""What all tests share: how hard hypothesis tries, and how many crash images are made.

HYPOTHESIS_PROFILE  dev (the default), ci or nightly. Only nightly looks elsewhere each time: what
                    `make test` says of a commit, it says again.
PENSTOCK_CRASH_IMAGES  how many crash images all crash tests make together: a number, or "small".
PENSTOCK_CHECK=1  what can check its own invariants does so after every operation; set here.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from penstock.queues.queue_ram import CHECKS
from tests.helpers.quick_spark import quicken

CRASH_IMAGES = 5_000
CRASH_IMAGES_SMALL = 2_000

os.environ.setdefault("PENSTOCK_CHECK", "1")
CHECKS.is_on = os.environ["PENSTOCK_CHECK"] == "1"

# print_blob: a failing example is printed with what reproduces it. No deadline: the machine may be
# busy, and a slow example is no mistake.
for name, examples in (("dev", 100), ("ci", 300), ("nightly", 5000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=name != "nightly",
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def crash_images() -> int:
    """How many crash images all crash tests make together, about."""
    value = os.environ.get("PENSTOCK_CRASH_IMAGES", str(CRASH_IMAGES))
    return CRASH_IMAGES_SMALL if value == "small" else int(value)


@pytest.fixture(scope="session")
def quick_spark(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever Spark is started from now on starts sooner: see tests/helpers/quick_spark.py."""
    quicken(tmp_path_factory.mktemp("quick_spark"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-golden: see tests/helpers/golden.py."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
