"""Exchanges and bindings in memory: from a message's exchange, key and headers to queue names.

The vhost keeps the queues and what is durable, and calls this package. Its modules: exchange_types
< router.
"""
