"""The AMQP 0-9-1 protocol without I/O: bytes in, events out, and bytes to send.

Both roles, server and client, share one Connection. Its owner reads the socket, keeps the times of
heartbeats and writes what `send` returns. The tables of states.py hold all rules about which method
may come when. The broker and the client implement what a method does.
"""
