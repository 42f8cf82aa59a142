"""Pages: streams, as pages of records with an offset each.

The PersistentQueue writes and reads them; a batch is staged as whole pages beside the stream and
adopted when its transaction is decided, so that it is there once or not at all.
"""
