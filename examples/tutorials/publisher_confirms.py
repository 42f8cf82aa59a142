"""Publish 1,000 messages that are on disk: one after the other, then many at a time."""

import time

import pika

import penstock

URL = "amqp://guest:guest@localhost:5672/"
BODIES = [b"order %d" % n for n in range(1000)]


def one_at_a_time():
    """Each publish waits for its confirm."""
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        for body in BODIES:
            channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))


def all_at_once():
    """Many are on their way; put_many returns when the last is confirmed."""
    with penstock.open(URL) as box:
        box.queue("orders").put_many(BODIES)


def to_a_queue_that_is_missing():
    """A mandatory message that no queue takes comes back."""
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", "no-such-queue", b"order 0", mandatory=True)
        except pika.exceptions.UnroutableError:
            print("returned: no queue is called no-such-queue")


for publish in (one_at_a_time, all_at_once):
    start = time.perf_counter()
    publish()
    print(f"{publish.__name__}: {len(BODIES)} confirmed in {time.perf_counter() - start:.2f} s")
to_a_queue_that_is_missing()
