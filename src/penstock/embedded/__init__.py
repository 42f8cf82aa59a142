"""The embedded library: durable queues in the process of whoever uses them, without a server.

`penstock.open` makes a Box, a Box gives Queues, a Queue gives Jobs; `penstock.aio` is the same for
asyncio. `penstock.open_stream` and `penstock.persist` have one stream in a directory, and no box.
Calls run the core (`penstock.queues`, `penstock.storage`) in the caller's thread, under the one
lock of the box; this package adds threads, waiting and the spellings of people, and nothing that
decides what happens to a message.
"""
