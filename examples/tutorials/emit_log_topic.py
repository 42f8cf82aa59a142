"""Send a line with a topic: emit_log_topic.py kernel.critical "the disk is full"."""

import sys

import pika

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare("topic_logs", "topic")
    topic = sys.argv[1] if len(sys.argv) > 1 else "anonymous.info"
    line = " ".join(sys.argv[2:]) or "Hello World!"
    channel.basic_publish("topic_logs", topic, line.encode())
    print("sent", topic, line)
