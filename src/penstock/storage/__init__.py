"""Files: everything that Penstock keeps beyond the life of a process.

Knows no AMQP, no asyncio and no queue's policy. The order in which its modules
import each other, lowest first: filesystem, record; checkpoint, log_file;
transaction_log, queue_index, message_store; recovery, verify, dump. The lowest,
``filesystem``, is the only module of the project that calls the operating
system about files, so that all the others run on a simulated disk in tests.
"""
