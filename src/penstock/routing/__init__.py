"""Exchanges and bindings in memory: from a message's exchange, key and headers to queue names.

Nothing here knows what a queue is, or what is durable: the vhost keeps that, and calls. Users of
this package import its modules: topic_trie < exchange_types < router.
"""
