"""AMQP sessions that Penstock and RabbitMQ are compared by, and what RabbitMQ answered."""
