"""Append five trips to the stream `trips`."""

import json

import pika

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("trips", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for day in range(5):
        trip = {"day": day, "carrier": "UA", "delay": 7 * day}
        channel.basic_publish("", "trips", json.dumps(trip).encode())
    print("sent 5 trips")
