"""The AMQP 0-9-1 protocol without I/O: bytes in, events out, and bytes to send.

Both roles, server and client, and no clock: who owns a connection reads its socket, watches its
heartbeats and writes what `send` gives. All rules about which method may come when are the tables
of states.py. What a method does is not here: that is the broker's, or the client's.
"""
