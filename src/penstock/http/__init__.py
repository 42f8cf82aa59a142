"""The HTTP process: the API of streams, page ranges for Spark, Arrow for pandas, Polars and DuckDB.

`python -m penstock.http.process` is started by the supervisor. It knows users as the broker does,
reads the pages of streams by itself, and asks the broker for whatever else it needs.
"""
