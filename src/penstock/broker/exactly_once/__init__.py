"""Exactly once: leases, by which readers of queues get messages, and batches, by which sinks write.

Both are requests of programs that may repeat them after a crash (Spark), so what was done is in the
log with each step. A reader of the usual path of a message does not need this package.
"""
