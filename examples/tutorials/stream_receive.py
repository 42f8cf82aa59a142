"""Print the trips of the stream `trips`, until Ctrl-C: stream_receive.py first, last, next or 3."""

import contextlib
import sys

import pika


def on_record(channel, method, properties, body):
    print(properties.headers["x-stream-offset"], body.decode(), flush=True)
    channel.basic_ack(method.delivery_tag)  # makes room for another; the record stays


where = sys.argv[1] if len(sys.argv) > 1 else "first"
parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("trips", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_qos(prefetch_count=100)  # a stream's consumer needs one
    offset = int(where) if where.isdigit() else where
    channel.basic_consume("trips", on_record, arguments={"x-stream-offset": offset})
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
