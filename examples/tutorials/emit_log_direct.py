"""Send a line with a severity: emit_log_direct.py error "the disk is full"."""

import sys

import pika

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare("direct_logs", "direct")
    severity = sys.argv[1] if len(sys.argv) > 1 else "info"
    line = " ".join(sys.argv[2:]) or "Hello World!"
    channel.basic_publish("direct_logs", severity, line.encode())
    print("sent", severity, line)
