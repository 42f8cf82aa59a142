"""A Celery application on quorum queues with native delayed delivery: see test_celery.py.

A task with a countdown goes through queues celery_delayed_27 .. celery_delayed_0, each with a TTL
of 2^n seconds and the next as its dead letter exchange. A retry is published with the headers that
the task came with, x-death among them: Celery does so up to 5.6, and from 5.7 on leaves x-death
out, which is undone here. The broker's URL and the ledger file come from the environment.
"""

import os
from typing import Any

from celery import Celery, Task
from celery.app.task import Context

from tests.conformance.celery_app import note

RETRIES = 2
COUNTDOWN_S = 3  # two bits: it waits in celery_delayed_1, then in celery_delayed_0


def _unfiltered(_: Context, headers: dict[str, Any] | None) -> dict[str, Any]:
    """Return the headers as the task came with them."""
    return dict(headers or {})


Context._filter_x_death_headers = _unfiltered  # type: ignore[attr-defined]

app = Celery("quorum", broker=os.environ["CONFORMANCE_URL"])
app.conf.update(
    task_default_queue=os.environ["CONFORMANCE_QUEUE"],
    task_default_queue_type="quorum",
    task_default_exchange=os.environ["CONFORMANCE_QUEUE"],
    task_default_exchange_type="topic",
    broker_native_delayed_delivery_queue_type="quorum",
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    worker_detect_quorum_queues=True,
    worker_hijack_root_logger=False,
    task_acks_late=True,
)


@app.task(bind=True, max_retries=RETRIES + 1)
def fail_twice(self: "Task[Any, Any]", number: int) -> None:
    """Fails on the first attempts, and is retried after some seconds."""
    if self.request.retries < RETRIES:
        raise self.retry(countdown=COUNTDOWN_S)
    note(f"retried {number}")
