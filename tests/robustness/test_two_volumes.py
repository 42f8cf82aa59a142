"""A real broker whose log and messages are on two file systems of their own, in memory.

Where this user may not mount one, they are two directories, and what needs small disks is skipped.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import penstock
from penstock.errors import OptionError
from penstock.storage.files.data_directory import hash_name
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.robustness.test_small_volume import LONG_S, Publisher, is_blocked

MIB = 1 << 20
SIZES = {"fast": 300 * MIB, "big": 150 * MIB}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[Path]:
    """A directory with the mounted file systems "fast" and "big", if this user may mount them."""
    mounted: list[Path] = []
    for name, size in SIZES.items():
        path = tmp_path / name
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
        if os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode:
            mounted.append(path)
    try:
        yield tmp_path
    finally:
        for path in mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)


def needs_mounts(volumes: Path) -> None:
    if not all((volumes / name).is_mount() for name in SIZES):
        pytest.skip("only who may mount a file system can fill one")


def broker(volumes: Path, data: str = "data", **more: str) -> LiveBroker:
    environment = {
        "PENSTOCK_STORAGE_LOG_DIRECTORY": str(volumes / "fast" / "log"),
        "PENSTOCK_STORAGE_SPILL_DIRECTORY": str(volumes / "big" / "spill"),
        **more,
    }
    return LiveBroker(volumes / data, environment=environment, has_http=True)


def penstock_store(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def channel_of(at: LiveBroker, vhost: str = "/") -> Any:
    return pika.BlockingConnection(pika.URLParameters(at.url_of(vhost))).channel()


def is_disk_full(at: LiveBroker) -> bool:
    status = at.control("status")
    is_said = any("low on disk" in one for one in status["problems"])
    return is_said and bool(status["disk_free_bytes"] < 60 * MIB)


def taken(at: LiveBroker, queue: str, vhost: str = "/") -> list[bytes]:
    channel = channel_of(at, vhost)
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    channel.connection.close()
    return found


def test_a_broker_keeps_its_log_and_its_messages_there(volumes: Path) -> None:
    """Queues, streams over HTTP, vhosts that come and go, tools, a kill, a move, and a backup."""
    bodies = [b"%d " % n * 20_000 for n in range(50)]
    with broker(volumes) as at:
        at.control("add_vhost", name="v")
        at.control(
            "set_permissions", user="guest", vhost="v", configure=".*", write=".*", read=".*"
        )
        for vhost in ("/", "v"):
            channel = channel_of(at, vhost)
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for body in bodies:
                channel.basic_publish("", "q", body, PERSISTENT)
            channel.connection.close()
        channel = channel_of(at)
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        for n in range(100):
            channel.basic_publish("", "s", b"record %d" % n)
        channel.connection.close()
        request = urllib.request.Request(
            f"http://127.0.0.1:{at.http_port}/api/streams/%2F/s",
            headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["partitions"][0]["head"] == 100
        status = at.control("status")
        assert status["log_directory"] == str(volumes / "fast" / "log")
        assert status["spill_directory"] == str(volumes / "big" / "spill")
        one, other = hash_name(b"/"), hash_name(b"v")
        for root, part in ((volumes / "fast/log", "wal"), (volumes / "big/spill", "streams")):
            assert (root / one / part).is_dir()
            assert (root / other / part).is_dir()
            assert not (volumes / "data/vhosts" / one / part).exists()
        at.control("delete_vhost", name="v")
        assert not (volumes / "fast/log" / other).exists()
        assert not (volumes / "big/spill" / other).exists()
        at.kill()
        at.start()
        paths = penstock_store("path", "--data", at.data, "/").stdout.splitlines()
        assert paths == [
            str(volumes / "data/vhosts" / one), str(volumes / "fast/log" / one),
            str(volumes / "big/spill" / one),
        ]  # fmt: skip
        [path] = penstock_store("path", "--data", at.data, "/", "s").stdout.splitlines()
        assert (Path(path) / "allMeta").exists()
        assert at.stop() == 0
        tools(volumes, at)
        at.environment.pop("PENSTOCK_STORAGE_LOG_DIRECTORY")
        at.start()
        assert taken(at, "q") == bodies


def tools(volumes: Path, at: LiveBroker) -> None:
    """With the store that is closed now; the log is in the data directory after it."""
    for arguments in (["verify", at.data], ["stats", at.data], ["dump", at.data / "vhosts"]):
        done = penstock_store(*arguments)
        assert done.returncode == 0, done
    assert "50 messages" in penstock_store("verify", at.data).stdout
    done = penstock_store("move", at.data, "--log-directory", at.data)
    assert done.returncode == 0, done
    assert list((volumes / "fast/log").iterdir()) == []
    assert "50 messages" in penstock_store("verify", at.data).stdout
    for what in ("backup", "salvage"):
        done = penstock_store(what, at.data, volumes / what)
        assert done.returncode == 0, done
        assert "50 messages" in penstock_store("verify", volumes / what).stdout
        with penstock.open(volumes / what) as box:
            assert len(box.queue("q")) == 50


def test_a_second_broker_and_missing_disks_are_refused(volumes: Path) -> None:
    with broker(volumes) as at:
        with pytest.raises(AssertionError, match=r"locked by|of no other store"):
            broker(volumes, "other").start()
        with pytest.raises(AssertionError, match="locked by"):
            broker(volumes).start()
        at.stop()
        (volumes / "big/spill").rename(volumes / "big/away")
        for is_empty_directory in (False, True):
            if is_empty_directory:
                (volumes / "big/spill").mkdir()
            at.launch()
            assert at.process is not None
            assert at.process.wait(120) == 64
            at._forget()
            assert "is its disk mounted?" in at.log_text()
            with pytest.raises(OptionError, match="is its disk mounted"):
                penstock.open(at.data)
        assert list((volumes / "big/spill").iterdir()) == []


def test_a_box_has_them_too(volumes: Path) -> None:
    box = penstock.open(
        volumes / "box", log_directory=volumes / "fast/log", spill_directory=volumes / "big/spill"
    )
    with box:
        box.queue("q").put_many([b"x" * 50_000 for _ in range(20)])
        box.backup(volumes / "copy")
    with penstock.open(volumes / "copy") as box:
        assert len(box.queue("q")) == 20
    with penstock.open(volumes / "box") as box:
        assert len(box.queue("q")) == 20
    assert any((volumes / "big/spill").rglob("*.rdq"))
    assert not any((volumes / "box").rglob("*.rdq"))
    assert not any((volumes / "box").rglob("*.wal"))
    with pytest.raises(OptionError, match="option log_directory: given 'x', expected an absolute"):
        penstock.open(volumes / "box", log_directory="x")


@pytest.mark.timeout(1200)
def test_publishers_wait_for_the_volume_that_is_full(volumes: Path) -> None:
    needs_mounts(volumes)
    with broker(volumes) as at:
        channel = channel_of(at)
        channel.queue_declare("q", durable=True)
        publisher = Publisher(at.url)
        publisher.start()
        for n in range(2):
            # A vhost's state is as old as its last pong: the disk must be full in the same answer.
            wait_until(
                lambda: (
                    is_blocked(at, publisher) and (publisher.error is not None or is_disk_full(at))
                ),
                f"round {n}: blocked",
                LONG_S,
            )
            assert publisher.error is None
            assert f"{volumes}/big/spill: " in at.log_text()
            seen = publisher.confirmed
            while True:
                method, _, _ = channel.basic_get("q")
                if method is not None:
                    channel.basic_ack(method.delivery_tag)
                elif publisher.confirmed > seen + 1:
                    break
                else:
                    channel.connection.process_data_events(0.1)
        publisher.is_over = True
        wait_until(lambda: channel.queue_purge("q") or not publisher.is_alive(), "the end", LONG_S)
        assert publisher.error is None
        channel.connection.close()
