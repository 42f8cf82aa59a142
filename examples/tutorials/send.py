"""Send one message to the queue `hello`."""

import pika

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("hello", durable=True)
    channel.basic_publish(exchange="", routing_key="hello", body=b"Hello World!")
    print("sent Hello World!")
