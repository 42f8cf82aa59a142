"""Ask for Fibonacci numbers: rpc_client.py 30 90."""

import sys

import pika

ANSWERS = "amq.rabbitmq.reply-to"  # no queue: the broker hands answers to this channel

parameters = pika.URLParameters("amqp://guest:guest@localhost:5672/")
with pika.BlockingConnection(parameters) as connection:
    channel = connection.channel()
    channel.queue_declare("rpc", durable=True)
    waiting = set(sys.argv[1:] or ["30"])

    def on_answer(channel, method, properties, body):
        print(f"fibonacci({properties.correlation_id}) = {body.decode()}")
        waiting.remove(properties.correlation_id)
        if not waiting:
            channel.stop_consuming()

    channel.basic_consume(ANSWERS, on_answer, auto_ack=True)
    for n in sorted(waiting):
        question = pika.BasicProperties(reply_to=ANSWERS, correlation_id=n)
        channel.basic_publish("", "rpc", n.encode(), question)
    channel.start_consuming()
