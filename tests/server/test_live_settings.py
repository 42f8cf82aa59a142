"""What a running broker takes of a changed configuration: at SIGHUP, and by `config set`."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.server.control import ControlError
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.wire import open_channel


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    file = tmp_path / "penstock.toml"
    file.write_text("log_level = 'info'\n")
    made = LiveBroker(tmp_path / "data", environment={"PENSTOCK_CONFIG": str(file)})
    with made:
        yield made


def value_of(broker: LiveBroker, key: str) -> Any:
    (row,) = [row for row in broker.control("show_config") if row["option"] == key]
    return row["value"]


def reload(broker: LiveBroker, text: str, told: str) -> None:
    """Change the file, send SIGHUP, and wait until the log says this."""
    Path(broker.environment["PENSTOCK_CONFIG"]).write_text(text)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: told in broker.log_text(), told)


def test_a_reload_takes_what_is_live_and_names_the_rest(broker: LiveBroker) -> None:
    text = (
        "log_level = 'debug'\nhalf_open_max = 7\n[limits]\nvhost_queues = 1\n"
        "[storage]\ndisk_free_limit = 1_000_000_000_000_000\n"
    )
    reload(broker, text, "half_open_max: changed in the configuration")
    log = broker.log_text()
    for key in ("log_level", "limits.vhost_queues", "storage.disk_free_limit"):
        assert key in log.partition("the configuration is read again: ")[2].partition("\n")[0]
    assert value_of(broker, "half_open_max") == "1000"
    assert value_of(broker, "log_level") == "debug"
    wait_until(lambda: not broker.control("status")["is_healthy"], "the alarm of the disk")
    reload(broker, "[limits]\nvhost_queues = 1\n", "publishers go on")
    with open_channel(broker) as wire:
        wire.declare("one", durable=True)
        with pytest.raises(ControlError, match="queue limit"):
            broker.control("declare_queue", "/", queue="two")


def test_a_wrong_file_changes_nothing(broker: LiveBroker) -> None:
    reload(broker, "log_level = 'loud'\n", "the configuration cannot be used, nothing is changed")
    assert "debug, info, warning or error" in broker.log_text()
    assert value_of(broker, "log_level") == "info"


def test_an_option_is_changed_until_the_next_start(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(broker.data)]
    assert main(["set_vm_memory_high_watermark", "absolute", "32MiB", *data]) == 0
    assert capsys.readouterr().out == "memory is 32 MiB now, until the next start\n"
    assert main(["set_log_level", "debug", *data]) == 0
    assert main(["set_disk_free_limit", "1kB", *data]) == 0
    wait_until(lambda: broker.control("list_vhosts")[0]["memory_bytes"] == 32 << 20, "its share")
    assert broker.control("status")["disk_free_limit_bytes"] == 1000
    assert main(["environment", "--format", "jsonl", *data]) == 0
    assert '"value": "debug", "origin": "config_set"' in capsys.readouterr().out
    capsys.readouterr()
    assert main(["config", "set", "port", "5", *data]) == 64
    assert (
        "option port: given '5', expected an option that changes while" in capsys.readouterr().err
    )
    assert main(["config", "set", "log_level", "loud", *data]) == 64
    broker.stop()
    broker.start()
    assert value_of(broker, "log_level") == "info"
