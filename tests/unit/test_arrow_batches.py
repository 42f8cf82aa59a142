"""Batches of columns: what records hold, whichever way the batch is made."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="these are its batches")

import pyarrow as pa

from penstock.arrow_batches import (
    BYTES_MAX,
    COLUMNS,
    ROWS_MAX,
    SCHEMA,
    TYPES,
    BatchMaker,
    decode_meta,
    schema_of,
    walked,
)
from penstock.codec.fields import Table
from penstock.codec.properties import BasicProperties
from penstock.errors import OptionError
from penstock.page_frames import PageMap, decode_chunk
from penstock.queues.amqp_headers import FORMAT_BYTE, AmqpHeaders
from penstock.queues.headers import Death, PlainHeaders
from penstock.storage.pages.page import decode_chunk_head
from tests.helpers.tiny_pages import Record, page_of

TIME_US = 1_700_000_000_000_000


def meta(exchange: bytes = b"", key: bytes = b"", **properties: Any) -> bytes:
    """A header as the broker writes it."""
    route = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return FORMAT_BYTE + route + BasicProperties(**properties).encode()


def table_of(
    tmp_path: Path, records: Sequence[Record], columns: Sequence[str] = COLUMNS, base: int = 0
) -> pa.Table:
    """All records of a page, as a table."""
    path = page_of(records, base).write(tmp_path)
    frames = PageMap(str(path), base, len(records)).frames(base, base + len(records))
    maker = BatchMaker("events", 3, columns)
    return pa.Table.from_batches(list(maker.batches(frames)), maker.schema)


def test_the_columns_of_a_few_records(tmp_path: Path) -> None:
    records = [
        Record(TIME_US, b"one", meta(b"ex", b"k.1", message_id="m1", headers={"n": 7})),
        Record(TIME_US + 1, b"", b""),
        Record(TIME_US + 1, b"three \xff", meta(b"", b"q", delivery_mode=2)),
    ]
    found = table_of(tmp_path, records, tuple(TYPES), 40).to_pylist()
    assert found[0] == {
        "queue": "events", "partition": 3, "offset": 40,
        "timestamp": datetime.fromtimestamp(TIME_US / 1e6, UTC), "exchange": "ex",
        "routing_key": "k.1", "message_id": "m1", "value": b"one", "headers": [("n", "7")],
        "properties": [("message_id", "m1")],
    }  # fmt: skip
    assert (found[1]["exchange"], found[1]["routing_key"]) == ("", "events")
    assert (found[1]["message_id"], found[1]["value"], found[1]["headers"]) == (None, b"", [])
    assert found[2]["value"] == b"three \xff"
    assert found[2]["properties"] == [("delivery_mode", "2")]
    assert [row["offset"] for row in found] == [40, 41, 42]


@pytest.mark.parametrize("name", TYPES)
def test_each_column_alone_and_its_type(tmp_path: Path, name: str) -> None:
    records = [Record(TIME_US + i, b"x" * i, meta(b"e", b"k")) for i in range(5)]
    alone = table_of(tmp_path, records, (name,))
    assert alone.schema == pa.schema([pa.field(name, TYPES[name])])
    assert (
        alone.column(name).to_pylist()
        == table_of(tmp_path, records, tuple(TYPES)).column(name).to_pylist()
    )


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    found = table_of(tmp_path, [Record(1, b"v")], ("value", "offset", "queue"))
    assert found.column_names == ["value", "offset", "queue"]


def test_an_unknown_column_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match="unknown option 'offsett', did you mean 'offset'"):
        schema_of(["value", "offsett"])


def test_binary_and_time_are_what_spark_takes() -> None:
    assert SCHEMA.field("value").type == pa.binary()
    assert SCHEMA.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_batches_are_bounded_by_rows_and_by_bytes(tmp_path: Path) -> None:
    small = [Record(i, b"x", b"") for i in range(2 * ROWS_MAX + 5)]
    path = page_of(small).write(tmp_path)
    frames = PageMap(str(path), 0, len(small)).frames(0, len(small))
    maker = BatchMaker("q")
    assert [b.num_rows for b in maker.batches(frames)] == [ROWS_MAX, ROWS_MAX, 5]
    sizes = [100, BYTES_MAX // 2, BYTES_MAX // 2, BYTES_MAX + 9, 1, BYTES_MAX - 60, 2, 3]
    path = page_of([Record(0, bytes(size)) for size in sizes]).write(tmp_path)
    frames = PageMap(str(path), 0, len(sizes)).frames(0, len(sizes))
    batches = list(maker.batches(frames))
    assert [b.num_rows for b in batches] == [2, 1, 1, 2, 2]
    lengths = [len(v) for b in batches for v in b.column("value").to_pylist()]
    assert lengths == sizes
    assert [o for b in batches for o in b.column("offset").to_pylist()] == list(range(len(sizes)))


def test_a_chunk_gives_the_same_batches_as_its_page(tmp_path: Path) -> None:
    records = [Record(TIME_US + i, b"p%d" % i, meta(b"e", b"k%d" % i)) for i in range(40)]
    tiny = page_of(records, 9)
    raw = tiny.chunk(19, 29)
    frames = decode_chunk(decode_chunk_head("", raw[:64]), raw[64:], "")
    (batch,) = BatchMaker("events", 3).batches(frames)
    assert batch.to_pylist() == table_of(tmp_path, records, COLUMNS, 9).to_pylist()[10:20]


def test_no_records_are_no_batches(tmp_path: Path) -> None:
    path = page_of([Record(0, b"x")]).write(tmp_path)
    assert list(BatchMaker("q").batches(PageMap(str(path), 0, 1).frames(1, 1))) == []


HEADERS: list[Table | None] = [None, {}, {"a": "text", "b": [1, {"c": b"\xff"}], "d": None}]


@pytest.mark.parametrize("is_walked", [True, False])
def test_headers_that_all_differ_are_the_same_walked_or_decoded(
    tmp_path: Path, is_walked: bool
) -> None:
    metas = [
        meta(
            b"exchange"[: i % 9], b"key.%d" % i, message_id=f"id-{i}" if i % 3 else None,
            content_type="text/plain" if i % 2 else None, headers=HEADERS[i % 3],
            delivery_mode=i % 4 or None, priority=i % 5 or None,
            correlation_id="c" * (i % 7) or None, reply_to="r" if i % 11 == 0 else None,
            expiration="60" if i % 6 == 0 else None, timestamp=i or None, app_id="app",
        )
        for i in range(200)
    ]  # fmt: skip
    metas[::4] = [AmqpHeaders().with_death(one, Death("q", "expired", 1)) for one in metas[::4]]
    if not is_walked:  # one with a prefix: then none is walked
        metas.append(AmqpHeaders().with_(metas[0], attempts=3))
    records = [Record(i, b"v", one) for i, one in enumerate(metas)]
    found = table_of(tmp_path, records, ("exchange", "routing_key", "message_id")).to_pylist()
    expected = [decode_meta(one, "events") for one in metas]
    names = ("exchange", "routing_key", "message_id")
    assert found == [{name: one[name] for name in names} for one in expected]


@pytest.mark.parametrize("has_died", [False, True])
def test_a_walk_stops_at_what_runs_over_its_header(has_died: bool) -> None:
    import numpy as np

    whole = meta(b"ex", b"key", headers={"a": "b"}, message_id="an id", app_id="x")
    if has_died:
        whole = AmqpHeaders().with_death(whole, Death("q", "expired", 1))
        unusual = AmqpHeaders().with_death(whole, Death("q", "delivery_limit", 1, 3))
        bounds = np.array([0]), np.array([len(unusual)])
        assert walked(np.frombuffer(unusual, np.uint8), *bounds) is None
    id_end = whole.index(b"an id") + 5
    for end in range(id_end):
        data = np.frombuffer(whole[:end] + b"\xff" * 300, np.uint8)
        assert walked(data, np.array([0]), np.array([end])) is None
    assert walked(np.frombuffer(whole, np.uint8), np.array([0]), np.array([len(whole)]))


def test_text_that_is_no_utf8_is_shown_all_the_same(tmp_path: Path) -> None:
    records = [Record(0, b"", FORMAT_BYTE + b"\x01\xff\x02k\xfe\0\0" + b"") for _ in range(2)]
    records += [Record(0, b"", meta(b"e", b"%d" % i)) for i in range(50)]
    found = table_of(tmp_path, records, ("exchange", "routing_key")).to_pylist()
    assert found[0] == {"exchange": "\ufffd", "routing_key": "k\ufffd"}
    assert found[2] == {"exchange": "e", "routing_key": "0"}


def test_headers_of_the_library() -> None:
    header = PlainHeaders().with_values(b"", {"t": "x", "n": 5, "f": 1.5, "y": True, "b": b"\xff"})
    found = decode_meta(header, "stream")
    assert (found["exchange"], found["routing_key"]) == ("", "stream")
    assert dict(found["headers"]) == {"t": "x", "n": "5", "f": "1.5", "y": "true", "b": "/w=="}


def test_values_of_headers_as_text() -> None:
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    table: Table = {
        "none": None,
        "list": [1, "a", moment],
        "time": moment,
        "bytes": b"ok",
        "no": False,
    }
    found = dict(decode_meta(meta(headers=table), "q")["headers"])
    assert found == {
        "none": None, "list": '[1, "a", "2013-01-01T05:00:00+00:00"]',
        "time": "2013-01-01T05:00:00+00:00", "bytes": "ok", "no": "false",
    }  # fmt: skip


@pytest.mark.parametrize("garbage", [b"\x07what", b"\x02", b"\x02\xff\xff", b"\xf2\0\0"])
def test_a_header_of_no_known_form_shows_as_nothing(garbage: bytes) -> None:
    assert decode_meta(garbage, "q") == {
        "exchange": "", "routing_key": "", "message_id": None, "headers": [], "properties": [],
    }  # fmt: skip


def test_many_different_headers_do_not_stay_in_memory(tmp_path: Path) -> None:
    records = [Record(0, b"", meta(key=b"%d" % i, app_id=str(i))) for i in range(9000)]
    path = page_of(records).write(tmp_path)
    maker = BatchMaker("q", 0, ("headers", "routing_key"))
    frames = PageMap(str(path), 0, 9000).frames(0, 9000)
    keys = [k for b in maker.batches(frames) for k in b.column("routing_key").to_pylist()]
    assert keys == [str(i) for i in range(9000)]
    assert len(maker._decoded) <= 4096


# ---- what it costs to begin ----------------------------------------------------------------------

BEGIN = """
import sys
from penstock.arrow_batches import COLUMNS, BatchMaker
from penstock.page_frames import PageMap
frames = PageMap(sys.argv[1], 0, int(sys.argv[2])).frames(0, int(sys.argv[2]))
assert sum(batch.num_rows for batch in BatchMaker("s", 0, COLUMNS).batches(frames)) > 0
print(sorted({"pandas", "pyarrow", "penstock.protocol"} & set(sys.modules)))
"""


@pytest.mark.parametrize("different", [1, 3, 40])
def test_the_columns_that_are_given_by_default_need_no_pandas(
    tmp_path: Path, different: int
) -> None:
    """pyarrow imports it for pa.array and pa.scalar, in each worker of Spark."""
    pytest.importorskip("pandas")
    ids = [None if n % 2 else f"m{n}" for n in range(different)]
    metas = [meta(b"x", b"k", message_id=id) for id in ids]
    records = [Record(TIME_US, b"a", metas[n % different]) for n in range(80)]
    path = page_of(records, 0).write(tmp_path)
    command = [sys.executable, "-c", BEGIN, str(path), "80"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['pyarrow']"


def test_columns_of_one_header_and_of_several(tmp_path: Path) -> None:
    """A header that changes between batches, and back."""
    one, two = meta(b"x", b"k"), meta(b"", "käse".encode(), message_id="m")
    metas = [one] * 20_000 + [one, two] * 10 + [two] * 20_000
    table = table_of(tmp_path, [Record(TIME_US, b"", each) for each in metas])
    wanted = [("x", "k", None) if each == one else ("", "käse", "m") for each in metas]
    names = ("exchange", "routing_key", "message_id")
    assert list(zip(*[table.column(name).to_pylist() for name in names], strict=True)) == wanted
