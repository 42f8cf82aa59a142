"""The server: here begin asyncio, sockets and processes, and nowhere below.

`supervisor` listens, logs clients in and starts one process per vhost; `vhost_process` is that
process: it gets each connection handed over and runs the broker's core over it.
"""
