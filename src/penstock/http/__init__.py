"""The HTTP process: the API of streams, page ranges for Spark, Arrow for pandas, Polars and DuckDB.

The supervisor starts `python -m penstock.http.process`. It has the broker's users, reads the pages
of streams from the files, and calls operations of the broker for everything else.
"""
