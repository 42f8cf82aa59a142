"""Do the tasks of the queue `tasks`, one at a time, until Ctrl-C."""

import contextlib

import pika


def primes_below(limit):
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))


def on_task(channel, method, properties, body):
    count = primes_below(int(body))
    channel.basic_ack(method.delivery_tag)  # only now: the task is done
    print("task", body.decode(), "has", count, "primes", flush=True)


parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("tasks", durable=True)
    channel.basic_qos(prefetch_count=1)  # no second task before the first is acknowledged
    channel.basic_consume("tasks", on_task)
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
