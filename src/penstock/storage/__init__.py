"""Storage: all files that Penstock keeps beyond the life of a process.

It knows no AMQP, no asyncio and no queue's policy. From the lowest to the highest, its main modules
are filesystem, record, log_file, transaction_log, queue_index, message_store, state, journal,
checkpoint, recovery and engine. `filesystem` is the only one that calls the operating system about
files, so that all others run on a simulated disk in tests.
"""
