"""The Celery application of test_celery.py: its tasks, and the settings that make them hard.

acks_late with prefetch 8: a task that was begun is done again if its worker dies. The broker's URL
and the ledger file come from the environment; each task that ends appends one line to the ledger in
one write, so that the test can count what was really done.
"""

import os
from typing import Any

from celery import Celery, Task

app = Celery("conformance", broker=os.environ["CONFORMANCE_URL"], backend="rpc://")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    task_default_queue=os.environ["CONFORMANCE_QUEUE"],
    task_queue_max_priority=5,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    result_expires=600,
)


def note(line: str) -> None:
    """One line to the ledger, whole."""
    ledger = os.open(os.environ["CONFORMANCE_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, f"{line}\n".encode())
    os.close(ledger)


@app.task
def add(x: int, y: int) -> int:
    note(f"add {x}")
    return x + y


@app.task(bind=True, max_retries=5)
def fail_at_first(self: "Task[Any, Any]", number: int) -> int:
    """Fails on the first two attempts, and is retried by way of a countdown."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    note(f"retried {number}")
    return number
