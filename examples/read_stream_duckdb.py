"""A stream in SQL, by DuckDB: the records are read as they come, and are never all in memory.

    python examples/read_stream_duckdb.py http://guest:guest@localhost:15672 events

Needs duckdb and pyarrow; the broker needs pyarrow too.
"""

import base64
import sys
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

import duckdb
import pyarrow as pa

QUERY = """
    select routing_key, count(*) as records, sum(octet_length(value)) as bytes,
           min("offset") as first, max("offset") as last
    from records group by routing_key order by records desc, routing_key limit 20
"""


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
    with duckdb.connect() as database:
        database.register("records", read(url, stream, "routing_key,offset,value"))
        total = 0
        for key, records, size, first, last in database.execute(QUERY).fetchall():
            print(f"{key:20} {records:9} records {size:12} bytes  offsets {first} to {last}")
            total += records
    print(f"{total} records")


if __name__ == "__main__":
    main()
