"""Print each line that is sent from now on, until Ctrl-C."""

import contextlib

import pika


def on_line(channel, method, properties, body):
    print("line", body.decode(), flush=True)


parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare("logs", "fanout")
    queue = channel.queue_declare("", exclusive=True).method.queue  # the broker makes a name
    channel.queue_bind(queue, "logs")
    channel.basic_consume(queue, on_line, auto_ack=True)
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
