"""A stream as a Polars table: what is in its JSON, by routing key.

    python examples/read_stream_polars.py http://guest:guest@localhost:15672 events

Needs polars and pyarrow; the broker needs pyarrow too. Over HTTP come, as Arrow, only the columns
that are asked for.
"""

import base64
import sys
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

import polars as pl
import pyarrow as pa


def read(url: str, stream: str, columns: str) -> pa.RecordBatchReader:
    """All records of a stream of the vhost "/", in batches as they come."""
    parts = urlsplit(url)
    user = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    address = f"{parts.scheme}://{parts.hostname}:{parts.port}/api/streams/%2F/{quote(stream, '')}"
    token = base64.b64encode(user.encode()).decode()
    headers = {"Authorization": f"Basic {token}"}
    return pa.ipc.open_stream(
        urlopen(Request(f"{address}/arrow?columns={columns}", headers=headers))
    )


def main() -> None:
    url, stream = sys.argv[1:]
    table = read(url, stream, "offset,timestamp,routing_key,value").read_all()
    records = pl.DataFrame(pl.from_arrow(table)).with_columns(
        pl.col("value").bin.size().alias("bytes"),
        pl.col("timestamp").dt.truncate("1m").alias("minute"),
    )
    print(
        records.group_by("minute", "routing_key")
        .agg(pl.len().alias("records"), pl.col("bytes").sum())
        .sort("minute", "routing_key")
        .tail(20)
    )
    print(
        f"{records.height} records, offsets {records['offset'].min()} to {records['offset'].max()}"
    )


if __name__ == "__main__":
    main()
