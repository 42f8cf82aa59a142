"""Log: what is durable is what stands in it.

A record has a checksum and a sequence number; records stand in files of bounded size; the
TransactionLog writes them in groups, syncs, and says up to which one the disk has them.
"""
