"""The broker below its sockets: vhosts, channels, consumers, publishing, over queues and routing.

Everything here is synchronous and deterministic; see vhost.py for what a vhost is made of, and
connection_handler.py for a client. Processes and sockets are in penstock.server.
"""
