"""Store: the MessageStore, for bodies that are large or stand in many queues.

A body is written once and counted; a garbage collector combines files that are mostly garbage.
FileQueueBacking keeps what must not outlive the process.
"""
