"""Print the messages of the queue `hello`, until Ctrl-C."""

import contextlib

import pika


def on_message(channel, method, properties, body):
    print("received", body.decode(), flush=True)


parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("hello", durable=True)
    channel.basic_consume("hello", on_message, auto_ack=True)
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
