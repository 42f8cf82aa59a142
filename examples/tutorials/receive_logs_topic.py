"""Print the lines that match, until Ctrl-C: receive_logs_topic.py "kernel.*" "*.critical"."""

import contextlib
import sys

import pika


def on_line(channel, method, properties, body):
    print(method.routing_key, body.decode(), flush=True)


parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare("topic_logs", "topic")
    queue = channel.queue_declare("", exclusive=True).method.queue
    for pattern in sys.argv[1:] or ["#"]:
        channel.queue_bind(queue, "topic_logs", pattern)
    channel.basic_consume(queue, on_line, auto_ack=True)
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
