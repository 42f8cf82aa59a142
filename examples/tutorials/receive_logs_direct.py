"""Print the lines of some severities, until Ctrl-C: receive_logs_direct.py warning error."""

import contextlib
import sys

import pika


def on_line(channel, method, properties, body):
    print(method.routing_key, body.decode(), flush=True)


parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare("direct_logs", "direct")
    queue = channel.queue_declare("", exclusive=True).method.queue
    for severity in sys.argv[1:] or ["info", "warning", "error"]:
        channel.queue_bind(queue, "direct_logs", severity)
    channel.basic_consume(queue, on_line, auto_ack=True)
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
