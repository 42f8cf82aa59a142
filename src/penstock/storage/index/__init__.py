"""Index: where each message of a queue is, without its body.

A QueueIndex is made of segments, as in RabbitMQ's variable_queue.md. Leases say which messages a
reader has; the routing table keeps bindings as rows.
"""
