"""Queues: bounded memory over the storage engine, and what a queue does besides queueing.

`variable_queue` is the queue, `backing_queue` the contract that it fulfils; priorities, expiry,
limits, delays and dead letters stand on that contract. Nothing here knows threads, sockets or a
wire protocol: library and broker both run it, under their own lock or loop.
"""
