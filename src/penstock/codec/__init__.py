"""AMQP 0-9-1 as bytes: methods, field tables, content properties and frames.

Pure functions and plain values, without connections, states or sockets. All bytes from the network
are checked before use: every declared length is compared with the bytes that are there before
anything is allocated. Malformed bytes raise AMQPConnectionError.
"""
