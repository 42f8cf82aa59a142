"""AMQP 0-9-1 as bytes: methods, field tables, content properties and frames.

Pure functions and plain values: nothing here knows of connections, of their states or of sockets.
Whatever came from the network is checked before it is believed: every declared length against what
is there, before anything is allocated. What does not hold is an AMQPConnectionError.
"""
