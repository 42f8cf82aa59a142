"""Celery on Penstock: tasks that survive the death of their worker, and one that kills it.

    penstock serve
    penstock declare_queue shop.dead
    celery --workdir examples --app celery_tasks worker
    python examples/celery_tasks.py

The last command sends three tasks and prints their results. docs/guides/celery.md explains the
settings.
"""

import os
import signal

from celery import Celery
from kombu import Exchange, Queue

app = Celery("celery_tasks", broker="amqp://guest:guest@localhost:5672/", backend="rpc://")
app.conf.update(
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_default_queue="shop",
    task_queues=[
        Queue(
            "shop",
            Exchange("shop"),
            "shop",
            queue_arguments={
                "x-delivery-limit": 2,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "shop.dead",
            },
        )
    ],
)


@app.task
def add(x, y):
    """Return the sum."""
    return x + y


@app.task(bind=True, max_retries=5)
def charge(self, order):
    """Fail twice, as if a server were busy; Celery sends the task again."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return f"order {order} is charged, at attempt {self.request.retries + 1}"


@app.task
def poison():
    """Kill the process that does it, each time."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    poison.delay()
    print(add.delay(2, 3).get(timeout=60))
    print(charge.delay(7).get(timeout=60))
