"""What the tests of clusters share: how a driver is run, and the records that it finds."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.helpers.live_broker import LiveBroker, wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

JOB = Path(__file__).parent / "cluster_job.py"
JOB_S = 400  # on a machine that does much else


def run_job(job: str, variables: Mapping[str, str], **given: object) -> dict[str, Any]:
    """The driver of that name as a process; what it found."""
    done = subprocess.run(
        [sys.executable, str(JOB), job, json.dumps(given)],
        env=dict(variables), capture_output=True, text=True, timeout=JOB_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def amqp_url(broker: LiveBroker) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


def http_url(broker: LiveBroker) -> str:
    return f"http://guest:guest@127.0.0.1:{broker.http_port}/"


def settle(broker: LiveBroker) -> None:
    """Until all that was committed is where it belongs."""
    wait_until(
        lambda: all(row["is_done"] for row in broker.control("list_batches", "/")),
        "batches that are moved", JOB_S,
    )  # fmt: skip


def records_of(broker: LiveBroker, stream: str) -> list[tuple[bytes, str]]:
    """(body, routing key) of all that is in the stream, with what is on its way."""
    settle(broker)
    with penstock.open(amqp_url(broker)) as box:
        return [(record.body, record.key or "") for record in box.stream(stream).read(offset=0)]
