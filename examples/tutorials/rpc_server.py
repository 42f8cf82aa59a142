"""Answer questions for Fibonacci numbers, until Ctrl-C."""

import contextlib

import pika


def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def on_question(channel, method, properties, body):
    answer = pika.BasicProperties(correlation_id=properties.correlation_id)
    channel.basic_publish("", properties.reply_to, str(fibonacci(int(body))).encode(), answer)
    channel.basic_ack(method.delivery_tag)


parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with contextlib.suppress(KeyboardInterrupt), pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("rpc", durable=True)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("rpc", on_question)
    print("waiting, Ctrl-C ends it", flush=True)
    channel.start_consuming()
