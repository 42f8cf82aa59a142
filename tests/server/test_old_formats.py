"""Data directories that earlier versions wrote are opened, and all that was in them is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.storage.files.data_directory import FORMAT, PLACED_FORMAT
from tests.helpers.live_broker import LiveBroker
from tests.helpers.old_stores import FIXTURES, read_broker, read_engine, unpack

FORMATS = sorted(int(path.name.removeprefix("format-")) for path in FIXTURES.glob("format-*"))


def test_there_is_a_store_of_each_format() -> None:
    assert list(range(1, max(FORMAT, PLACED_FORMAT) + 1)) == FORMATS


@pytest.mark.parametrize("version", [one for one in FORMATS if one != PLACED_FORMAT])
def test_a_vhost_with_every_type_of_record(version: int, tmp_path: Path) -> None:
    expected = unpack(version, "engine", tmp_path)
    for _ in range(2):  # after the crash, and after the orderly stop that follows
        assert read_engine(tmp_path) == expected
    check(tmp_path)


@pytest.mark.real
@pytest.mark.parametrize("version", FORMATS)
def test_a_broker_that_was_killed(version: int, tmp_path: Path) -> None:
    base = tmp_path / "store"
    expected = unpack(version, "broker", base)
    data, environment = base, dict[str, str]()
    if version == PLACED_FORMAT:
        data = base / "data"
        environment = {
            "PENSTOCK_STORAGE_LOG_DIRECTORY": str(base / "log"),
            "PENSTOCK_STORAGE_SPILL_DIRECTORY": str(base / "spill"),
        }
    with LiveBroker(data, environment=environment) as broker:
        assert read_broker(broker) == expected
        broker.restart()
        assert read_broker(broker) == expected
        broker.stop()
    check(data)


def check(data: Path) -> None:
    """`penstock store verify` finds nothing wrong."""
    command = [sys.executable, "-m", "penstock", "store", "verify", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
