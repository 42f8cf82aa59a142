"""Send a task for each argument: the number below which primes are counted."""

import sys

import pika

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("tasks", durable=True)
    channel.confirm_delivery()  # basic_publish returns when the message is on disk
    for limit in sys.argv[1:] or ["10000"]:
        channel.basic_publish("", "tasks", limit.encode(), pika.BasicProperties(delivery_mode=2))
        print("sent", limit)
