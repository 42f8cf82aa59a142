"""What `status`, `health_check`, HTTP and the ready line say of a broker that is not well."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pamqp import commands

from penstock.errors import VERSION_ADVICE
from penstock.storage.files.data_directory import hash_name
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.wire import Wire, open_channel


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    made = LiveBroker(tmp_path / "data", has_http=True)
    yield made
    made.stop()


def get(broker: LiveBroker, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(broker.host, broker.http_port or 0, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def health_check(broker: LiveBroker) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "health_check", "--data", str(broker.data)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_broker_whose_disk_is_full_is_not_healthy(broker: LiveBroker) -> None:
    before_s = time.monotonic()
    broker.start()
    found = broker.control("status")
    assert 0 <= found["uptime_s"] <= time.monotonic() - before_s + 0.1
    assert found["is_healthy"] is True
    assert found["problems"] == []
    assert found["disk_free_bytes"] > found["disk_free_limit_bytes"] == 50 << 20
    assert health_check(broker) == (0, "ok\n")
    broker.stop()

    broker.environment["PENSTOCK_STORAGE_DISK_FREE_LIMIT"] = str(1 << 60)
    broker.start()
    (cause,) = broker.control("why", "/")  # at once, as status says it
    assert cause["text"].startswith("publishers wait, low on disk: ")
    with open_channel(broker):
        wait_until(
            lambda: broker.control("list_vhosts")[0]["blocked_reason"] == "disk", "the alarm"
        )
    found = broker.control("status")
    assert found["is_ready"] is True
    assert found["is_healthy"] is False
    assert found["kinds"] == ["alarm", "alarm"]
    blocked, disk = found["problems"]
    assert blocked == "vhost '/' is low on disk: publishers wait"
    assert disk.startswith(f"the disk of {broker.data} has ")
    code, told = health_check(broker)
    assert code == 69
    assert told.splitlines()[0] == f"penstock: {blocked}"
    assert told.splitlines()[1].startswith(f"penstock: the disk of {broker.data} has ")
    assert get(broker, "/health") == (200, {"status": "publishers wait", "low_on": ["disk"]})


def test_the_only_vhost_is_down(broker: LiveBroker) -> None:
    broker.start()
    with open_channel(broker) as wire:
        wire.declare("q", durable=True, exclusive=False)
    broker.stop()
    (checkpoint,) = (broker.data / "vhosts" / hash_name(b"/")).glob("checkpoint-*")
    data = bytearray(checkpoint.read_bytes())
    data[len(data) // 2] ^= 0xFF
    checkpoint.write_bytes(data)
    broker.start()
    assert " is ready" not in broker.ready_line
    assert "listens, but vhost '/' is down: " in broker.ready_line
    assert checkpoint.name in broker.ready_line
    assert "there is no other" in broker.log_text()
    assert "the others serve" not in broker.log_text()
    code, told = health_check(broker)
    assert code == 69
    assert "penstock: vhost '/' is down: " in told
    assert get(broker, "/health")[0] == 503
    (advice,) = broker.control("status")["advice"]
    assert "penstock store salvage" in advice
    assert "restart" not in advice


def test_a_vhost_of_a_newer_version_says_what_to_do(broker: LiveBroker) -> None:
    broker.start()
    broker.stop()
    (checkpoint,) = (broker.data / "vhosts" / hash_name(b"/")).glob("checkpoint-*")
    data = checkpoint.read_bytes()
    head = data[:4] + b"\0\7" + data[6:24]
    checkpoint.write_bytes(head + crc32(head).to_bytes(4, "big") + data[28:])
    broker.start()
    assert f"{checkpoint.name}: expected version 1, found 7: a newer Penstock" in broker.ready_line
    (advice,) = broker.control("status")["advice"]
    assert advice == f"no start helps: {VERSION_ADVICE}"
    assert f"wrote it; {VERSION_ADVICE}" in broker.log_text()


def test_a_vhost_that_hangs_is_named_before_its_watchdog_acts(broker: LiveBroker) -> None:
    broker.start()
    with open_channel(broker):
        (row,) = broker.control("list_vhosts")
        os.kill(row["pid"], signal.SIGSTOP)
        try:
            row = wait_until(
                lambda: next((r for r in broker.control("list_vhosts") if r["unserved"]), None),
                "that it is noticed",
            )
            assert row["state"] == "running"
            assert row["why"].startswith("has not answered for ")
            assert broker.control("status")["kinds"] == ["vhost"]
            (problem,) = broker.control("status")["problems"]
            assert problem.startswith("vhost '/' does not serve: it has not answered for ")
            assert health_check(broker)[0] == 69
            status, answer = wait_until(
                lambda: next((a for a in [get(broker, "/health")] if a[0] == 503), None), "/health"
            )
            assert status == 503
            assert answer["reason"].startswith("a vhost does not serve: it has not answered for ")
            with Wire(broker) as wire:
                wire.hello()
                wire.log_in()
                wire.agree()
                wire.send(commands.Connection.Open(virtual_host="/"))
                code, text = wire.closed()
            assert code == 541
            assert text.startswith("INTERNAL_ERROR - vhost '/' has not answered for ")
        finally:
            os.kill(row["pid"], signal.SIGCONT)
        wait_until(lambda: get(broker, "/health") == (200, {"status": "ok"}), "/health")
        (row,) = broker.control("list_vhosts")
        assert (row["restarts"], row["unserved"], row["why"]) == (0, None, "")
