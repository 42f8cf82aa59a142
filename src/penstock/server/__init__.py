"""The server: asyncio, sockets and processes, which no package below uses.

`supervisor` listens, logs clients in and starts one process per vhost. `vhost_process` is that
process: it takes over connections and runs the broker's core for them.
"""
