"""Parts: what the engine is made of, a file for each.

Streams, leases, batches and transactions.
Each takes the journal and never the engine.
"""
