"""What the driver learns of streams: from a store's directories, and from a broker."""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotAStoreError, OptionError, StorageError
from penstock.spark.catalog import BrokerCatalog, StoreCatalog, catalog_of, stream_paths
from penstock.spark.http_link import LinkError, RefusedError
from penstock.spark.options import SourceOptions, parse_source_options
from penstock.storage.files.data_directory import DataDirectory, hash_name
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.tiny_http import Answer, TinyHttp
from tests.helpers.tiny_streams import in_vhost, open_stream, stream_id_hex, write_stream


def options_of(**given: str) -> SourceOptions:
    fast = {"fetchOffset.retryIntervalMs": "0", **given}
    return parse_source_options(fast, is_streaming=True)


def payloads(n: int) -> list[bytes]:
    return [b"record %d" % i for i in range(n)]


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# ---- a store -------------------------------------------------------------------------------------


def test_one_stream_that_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write_stream(path, payloads(500))
    catalog = catalog_of(options_of(path=str(path)))
    (found,) = catalog.heads()["events"].values()
    assert (found.first, found.head, found.last_time_us) == (0, 500, 1000 + 499_000)
    assert found.bytes == sum(file.stat().st_size for file in path.glob("*.page"))
    assert found.stream_id == stream_id_hex(path)
    assert catalog.find("events", 0, 1000 + 250_000) == 250
    table = catalog.pages("events", 0)
    assert table.bytes_before(500) == found.bytes
    assert table.border_near(3) == 0


def test_an_empty_stream(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write_stream(path, [])
    catalog = catalog_of(options_of(path=str(path)))
    head = catalog.heads()["events"][0]
    assert (head.first, head.head, head.bytes) == (0, 0, 0)
    assert catalog.pages("events", 0).bytes_before(0) == 0
    assert catalog.find("events", 0, 5) == 0


def vhost_of(path: Path) -> Path:
    """Streams: orders in 3 partitions, events and clicks in one each."""
    for number in range(3):
        write_stream(in_vhost(path, b"orders\0p%d" % number, number), payloads(number + 1))
    write_stream(in_vhost(path, b"events", 7), payloads(10))
    write_stream(in_vhost(path, b"clicks", 8), payloads(20))
    (path / "CURRENT").write_bytes(b"1")
    return path


def heads_of(**given: str) -> dict[str, dict[int, int]]:
    heads = catalog_of(options_of(**given)).heads()
    return {name: {n: head.head for n, head in found.items()} for name, found in heads.items()}


def test_streams_of_a_vhost_by_name_pattern_and_partition(tmp_path: Path) -> None:
    path = str(vhost_of(tmp_path / "v"))
    orders = {0: 1, 1: 2, 2: 3}
    assert heads_of(path=path, subscribe="orders, events") == {"events": {0: 10}, "orders": orders}
    assert heads_of(path=path, subscribePattern=".*s") == {
        "clicks": {0: 20}, "events": {0: 10}, "orders": orders,
    }  # fmt: skip
    assert heads_of(path=path, subscribePattern="order") == {}
    assert heads_of(path=path, assign='{"orders": [2, 0]}') == {"orders": {0: 1, 2: 3}}
    with pytest.raises(OptionError, match=r"partitions of 'orders': \[0, 1, 2\]"):
        heads_of(path=path, assign='{"orders": [3]}')
    with pytest.raises(OptionError, match="'clicks', 'events', 'orders'"):
        heads_of(path=path, subscribe="order")
    with pytest.raises(OptionError, match="one or more of"):
        heads_of(path=path)


def test_streams_of_a_whole_store(tmp_path: Path) -> None:
    vhost_of(tmp_path / "vhosts" / hash_name(b"/"))
    write_stream(in_vhost(tmp_path / "vhosts" / hash_name(b"other"), b"x", 1), payloads(3))
    assert heads_of(path=str(tmp_path), subscribe="events") == {"events": {0: 10}}
    assert heads_of(path=str(tmp_path), vhost="other") == {"x": {0: 3}}
    with pytest.raises(NotAStoreError, match="no vhost 'none' in it"):
        heads_of(path=str(tmp_path), vhost="none")


def test_streams_of_a_store_on_two_disks(tmp_path: Path) -> None:
    data, spill = tmp_path / "data", tmp_path / "spill"
    directory = DataDirectory(OsFileSystem(0), str(data), spill_directory=str(spill))
    vhost = directory.vhost_path(b"/")
    directory.close()
    write_stream(in_vhost(spill / hash_name(b"/"), b"x", 1), payloads(3))
    assert heads_of(path=str(data), vhost="/") == {"x": {0: 3}}
    assert heads_of(path=vhost) == {"x": {0: 3}}
    [(name, parts)] = stream_paths(str(data), "/").items()
    assert name == "x"
    assert Path(parts[0]).is_relative_to(spill)
    assert heads_of(path=parts[0]) == {"x": {0: 3}}


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="expected the directory of a stream, a vhost"):
        stream_paths(str(tmp_path), "/")
    with pytest.raises(NotAStoreError):
        stream_paths(str(tmp_path / "missing"), "/")
    bad = tmp_path / "streams" / "x.1"
    bad.mkdir(parents=True)
    (bad / ".queue_name").write_bytes(b"orders\0what")
    with pytest.raises(StorageError, match="is not the name of a partition"):
        stream_paths(str(tmp_path), "/")


def test_a_classic_queue_of_a_store_is_refused_by_name(tmp_path: Path) -> None:
    path = vhost_of(tmp_path / "v")
    (path / "queues" / f"{hash_name(b'tasks')}.12").mkdir(parents=True)
    with pytest.raises(OptionError, match=r"given 'tasks', expected 'url' of the broker.*leases"):
        heads_of(path=str(path), subscribe="events,tasks")
    with pytest.raises(OptionError, match="classic queues need a 'url'"):
        heads_of(path=str(path), subscribe="task")
    catalog = catalog_of(options_of(path=str(path), subscribe="events"))
    for call in (lambda: catalog.lease("tasks", 0, 1, None), lambda: catalog.commit("tasks", 1)):
        with pytest.raises(OptionError, match="'url' of a broker"):
            call()


def test_heads_are_believed_for_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write_stream(path, payloads(5))
    clock = Hands()
    catalog = StoreCatalog(options_of(path=str(path)), clock)
    assert catalog.heads()["events"][0].head == 5
    stream = open_stream(path)
    stream.append(b"x", b"")
    stream.force()
    assert catalog.heads()["events"][0].head == 5
    assert catalog.heads(is_fresh=True)["events"][0].head == 6
    stream.append(b"y", b"")
    stream.force()
    clock.now_s += catalog.fresh_s
    assert catalog.heads()["events"][0].head == 7
    stream.close()


def test_a_store_that_is_only_read_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events"
    write_stream(path, payloads(5))
    before = sorted(tmp_path.rglob("*"))
    catalog = catalog_of(options_of(path=str(path)))
    catalog.hold("r", {"events": {"0": 1}}, {"events": {"0": 1}})
    catalog.release("r")
    assert sorted(tmp_path.rglob("*")) == before


# ---- a broker ------------------------------------------------------------------------------------


def described(name: str, *heads: int) -> dict[str, Any]:
    """A stream as the broker describes it."""
    partitions = [
        {"partition": n, "number": n, "stream_id": f"{n:032x}", "path": f"/p/{n}", "first": 0,
         "head": head, "last_time_us": 5, "bytes": head * 10, "records": head}
        for n, head in enumerate(heads)
    ]  # fmt: skip
    return {"name": name, "partitions": partitions, "readers": {}, "arguments": {}}


def broker_catalog(broker: TinyHttp, **given: str) -> BrokerCatalog:
    catalog = catalog_of(options_of(url=broker.url.replace("//", "//me:secret@"), **given))
    assert isinstance(catalog, BrokerCatalog)
    return catalog


STREAM = "GET /api/streams/%2F/my%2Fs"


def test_heads_of_a_broker() -> None:
    with TinyHttp({STREAM: [Answer(200, described("my/s", 3, 4))]}) as broker:
        catalog = broker_catalog(broker, subscribe="my/s")
        found = catalog.heads()["my/s"]
        assert {n: (head.first, head.head) for n, head in found.items()} == {0: (0, 3), 1: (0, 4)}
        assert (found[1].stream_id, found[1].path) == (f"{1:032x}", "/p/1")
        assert broker.asked[0][2] == "Basic bWU6c2VjcmV0"


def test_streams_of_a_broker_by_pattern() -> None:
    rows = [described("a1", 1), described("b", 2), described("a2", 3)]
    with TinyHttp({"GET /api/streams/%2F": [Answer(200, rows)]}) as broker:
        assert list(broker_catalog(broker, subscribePattern="a.").heads()) == ["a1", "a2"]


def test_heads_of_a_broker_are_believed_for_a_moment() -> None:
    answers = [Answer(200, described("my/s", 3)), Answer(200, described("my/s", 9))]
    with TinyHttp({STREAM: answers}) as broker:
        clock = Hands()
        catalog = BrokerCatalog(options_of(url=broker.url, subscribe="my/s"), clock)
        assert [catalog.heads()["my/s"][0].head for _ in range(50)] == [3] * 50
        assert len(broker.asked) == 1
        clock.now_s += catalog.fresh_s
        assert catalog.heads()["my/s"][0].head == 9
        assert len(broker.asked) == 2
        assert catalog.heads(is_fresh=True)["my/s"][0].head == 9
        assert len(broker.asked) == 3


def test_offsets_by_time_and_pages() -> None:
    pages = [{"base": 5, "records": 10, "bytes": 100, "is_sealed": True}]
    answers = {
        STREAM: [Answer(200, described("my/s", 3, 15))],
        f"{STREAM}/offset?partition=1&time_us=77": [Answer(200, {"offset": 12})],
        f"{STREAM}/pages?partition=1": [Answer(200, {"pages": pages})],
    }
    with TinyHttp(answers) as broker:
        catalog = broker_catalog(broker, subscribe="my/s")
        assert catalog.find("my/s", 1, 77) == 12
        assert catalog.pages("my/s", 1).bytes_before(10) == 50


def test_a_broker_that_does_not_tell_its_pages() -> None:
    with TinyHttp({STREAM: [Answer(200, described("my/s", 8))]}) as broker:
        catalog = broker_catalog(broker, subscribe="my/s")
        assert catalog.pages("my/s", 0).bytes_before(4) == 40


def test_a_reader_is_held_and_released() -> None:
    address = "/api/streams/%2F/my%2Fs/readers/job%201"
    answers = {
        STREAM: [Answer(200, described("my/s", 8))],
        f"PUT {address}": [Answer(204)],
        f"DELETE {address}": [Answer(204)],
    }
    with TinyHttp(answers) as broker:
        catalog = broker_catalog(broker, subscribe="my/s")
        catalog.heads()
        catalog.hold("job 1", {"my/s": {"0": 5}}, {"my/s": {"0": 3}})
        catalog.release("job 1")
        assert [asked[:2] for asked in broker.asked[1:]] == [
            (f"PUT {address}", {"offsets": {"0": 5}, "kept_from": {"0": 3}}),
            (f"DELETE {address}", None),
        ]


def test_a_broker_that_is_away_for_a_moment_is_asked_again() -> None:
    away = Answer(503, {"error": "unavailable", "reason": "vhost restarts"})
    good = Answer(200, described("my/s", 3))
    with TinyHttp({STREAM: [away, Answer(200, b"{}", cut_at=1), good]}) as broker:
        assert broker_catalog(broker, subscribe="my/s").heads()["my/s"][0].head == 3
        assert len(broker.asked) == 3


def test_a_broker_that_stays_away() -> None:
    away = Answer(503, {"error": "unavailable", "reason": "vhost restarts"})
    with TinyHttp({STREAM: [away]}) as broker:
        given = {"subscribe": "my/s", "fetchOffset.numRetries": "1"}
        catalog = broker_catalog(broker, **given)
        with pytest.raises(RefusedError, match="503: vhost restarts"):
            catalog.heads()
        assert len(broker.asked) == 2


def test_a_broker_that_is_not_there() -> None:
    with TinyHttp({}) as broker:
        catalog = broker_catalog(broker, subscribe="s", **{"fetchOffset.numRetries": "3"})
    with pytest.raises(LinkError, match="Connection refused") as caught:
        catalog.heads()
    assert "secret" not in str(caught.value)


def test_a_refusal_is_told_at_once() -> None:
    no = Answer(403, {"error": "access_refused", "reason": "read access refused"})
    with TinyHttp({STREAM: [no]}) as broker:
        with pytest.raises(OptionError, match="'my/s', expected read permission"):
            broker_catalog(broker, subscribe="my/s").heads()
        assert len(broker.asked) == 1
