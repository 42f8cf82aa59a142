"""Send a line to all who listen."""

import sys

import pika

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.exchange_declare("logs", "fanout")
    line = " ".join(sys.argv[1:]) or "Hello World!"
    channel.basic_publish("logs", "", line.encode())
    print("sent", line)
