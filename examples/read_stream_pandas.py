"""A stream as a pandas table: how many records came by routing key, and how large they are.

    python examples/read_stream_pandas.py http://guest:guest@localhost:15672 events

Needs pandas and pyarrow; the broker needs pyarrow too. The records come over HTTP as Arrow.
"""

import base64
import sys
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

import pandas as pd
import pyarrow as pa


def read(url: str, stream: str) -> pa.RecordBatchReader:
    """All records of a stream of the vhost "/", in batches as they come."""
    parts = urlsplit(url)
    user = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    address = f"{parts.scheme}://{parts.hostname}:{parts.port}/api/streams/%2F/{quote(stream, '')}"
    token = base64.b64encode(user.encode()).decode()
    request = Request(f"{address}/arrow", headers={"Authorization": f"Basic {token}"})
    return pa.ipc.open_stream(urlopen(request))


def main() -> None:
    url, stream = sys.argv[1:]
    records: pd.DataFrame = read(url, stream).read_pandas()
    records["bytes"] = records["value"].str.len()
    by_key = records.groupby("routing_key")["bytes"]
    print(by_key.agg(["count", "mean", "max"]).sort_values("count", ascending=False).head(20))
    print(f"{len(records)} records, the last at {records['timestamp'].max()}")


if __name__ == "__main__":
    main()
