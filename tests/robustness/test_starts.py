"""What a broker finds when it is started by others: signals, environments, modes of directories."""

import os
import signal
from pathlib import Path

import pytest

from tests.helpers.live_broker import LiveBroker, is_gone, wait_until
from tests.helpers.wire import Wire, open_channel

pytestmark = pytest.mark.real

SURROUNDINGS = {
    "PENSTOCK_PORT": "tcp://10.0.0.1:5672",
    "PENSTOCK_SERVICE_HOST": "10.0.0.1",
    "PENSTOCK_GUEST": "off",
}


def test_a_broker_in_somebody_elses_surroundings(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiveBroker(data, has_http=True) as broker:
        broker.stop()
    data.chmod(0o777)
    with LiveBroker(data, environment=SURROUNDINGS, has_http=True) as broker:
        broker.control("await_startup")
        assert "PENSTOCK_PORT=tcp://10.0.0.1:5672 is ignored" in broker.log_text()
        assert "others than its owner may write in it (mode 0777)" in broker.log_text()
        assert data.stat().st_mode & 0o777 == 0o700

        # guest is off, even from this machine and with the right password.
        with Wire(broker) as wire:
            wire.hello()
            wire.log_in()
            assert wire.closed()[0] == 403
        assert "login refused: user 'guest' - guest is off" in broker.log_text()

        broker.control("add_user", name="ann", password="ann")
        broker.control("set_permissions", "/", user="ann", configure=".*", write=".*", read=".*")
        broker.user = broker.password = "ann"
        pids = broker.pids()
        assert len(pids) >= 3
        with open_channel(broker) as wire:
            for pid in pids:
                os.kill(pid, signal.SIGHUP)
            # Each process has answered after the signal was sent, so it has not ended by it.
            wire.declare()
            assert broker.control("vhost_status", "/")
            wait_until(lambda: broker.control("status")["http"]["state"] == "running", "http")
            assert broker.pids() == pids
            assert not any(is_gone(pid) for pid in pids)
        assert broker.stop() == 0


def test_a_directory_that_others_may_write_in_can_be_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    broker = LiveBroker(data, environment={"PENSTOCK_DATA_PERMISSIONS": "refuse"})
    with pytest.raises(AssertionError, match="data_permissions"):
        broker.start()
    assert broker.process is None


def test_a_broker_that_others_reach_says_so_while_guest_has_its_password(tmp_path: Path) -> None:
    broker = LiveBroker(tmp_path / "data")
    broker.host = "0.0.0.0"
    with broker:
        assert "user 'guest' still has the password 'guest'" in broker.log_text()
        broker.control("change_password", name="guest", password="another")
        broker.stop()
        broker.log.unlink()
        broker.start()
        assert "still has the password" not in broker.log_text()
