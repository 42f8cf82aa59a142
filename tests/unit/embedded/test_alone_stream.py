"""Streams that stand alone, for threads: the contract, and what only they do."""

import logging
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.embedded import waiting
from penstock.errors import (
    CorruptionError,
    ForkedError,
    LockedError,
    NotAStoreError,
    OptionError,
)
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.tools.verify import verify_stream
from tests.contracts.box import Opens, until
from tests.contracts.stream import SMALL_PAGE, bodies, numbers, offsets
from tests.contracts.stream_alone import AloneLifeContract, AloneStreamContract
from tests.helpers.alone_boxes import AloneBox
from tests.unit.embedded.conftest import opened


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    yield from opened(tmp_path, AloneBox, AloneBox.end)


class TestStreams(AloneStreamContract):
    pass


class TestLife(AloneLifeContract):
    pass


# ---- opening -------------------------------------------------------------------------------------


def test_a_directory_is_for_one_at_a_time(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "s") as s:
        assert s.path == str(tmp_path / "s")
        with pytest.raises(LockedError, match=f"locked by pid {os.getpid()} .*, this process;"):
            penstock.open_stream(tmp_path / "s")
        s.append(b"a")
    with penstock.open_stream(tmp_path / "s") as s:
        assert bodies(s) == [b"a"]


def test_what_is_no_stream_is_left_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "box.d") as box:
        box.stream("s").append(b"a")
        (vhost,) = (tmp_path / "box.d" / "vhosts").iterdir()
        (inner,) = (vhost / "streams").iterdir()
        with pytest.raises((LockedError, NotAStoreError)):
            penstock.open_stream(tmp_path / "box.d")
    with pytest.raises(NotAStoreError, match="it is not empty and not a stream"):
        penstock.open_stream(tmp_path / "box.d")
    with pytest.raises(NotAStoreError, match="it is a stream of a vhost"):
        penstock.open_stream(inner)
    with penstock.open(tmp_path / "box.d") as box:
        assert bodies(box.stream("s")) == [b"a"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(NotAStoreError, match="'file'"):
        penstock.open_stream(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]
    with pytest.raises(NotAStoreError, match="it is a file"):
        penstock.open_stream(tmp_path / "other" / "file")
    with pytest.raises(FileNotFoundError):
        penstock.open_stream(tmp_path / "none" / "s")
    with penstock.open_stream(tmp_path / "s"), pytest.raises(NotAStoreError):
        penstock.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"force_every": 0}, "force_every: given 0, expected a number of records from 1 to"),
        ({"force_every": 0.5}, 'force_every: given 0.5, .* a time such as "100ms"'),
        ({"force_every": True}, "force_every: given True"),
        ({"force_every": "5"}, "force_every: given '5'"),
        ({"force_every": "often"}, "force_every: given 'often'"),
        ({"force_every": timedelta(0)}, "force_every: given"),
        ({"force_every": None}, "force_every: given None"),
        ({"page_bytes": "1 KiB"}, "page_bytes: given '1 KiB', expected a size from 4 KiB to"),
        ({"max_age": 0.5}, "max_age: given 0.5, expected a second or more"),
        ({"max_bytes": "lots"}, "max_bytes: given 'lots', expected a size"),
        ({"max_records": -1}, "max_records: given -1, expected a whole number"),
    ],
)
def test_an_option_that_is_wrong(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        penstock.open_stream(tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_what_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"directory: given .* box\.stream of penstock\.open"):
        penstock.open_stream("amqp://localhost/s")
    with pytest.raises(TypeError):
        penstock.open_stream(5)  # type: ignore[arg-type]


def test_pages_are_as_the_stream_was_made_and_retention_as_it_is_opened(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "s", page_bytes=SMALL_PAGE, max_records=5) as s:
        s.append_many([bytes(1000)] * 20)
        until(lambda: (s.retain() or True) and len(s) < 10)
    with pytest.raises(OptionError, match="page_bytes: given 8192, expected 4096, as the stream"):
        penstock.open_stream(tmp_path / "s", page_bytes=8192)
    events: list[str] = []
    tell = lambda kind, text: events.append(kind)  # noqa: E731
    with penstock.open_stream(tmp_path / "s", on_event=tell) as s:
        before = len(s)
        s.append_many([bytes(1000)] * 20)
        assert s.retain() == 0
        assert len(s) == before + 20
    assert events == []


# ---- what is forced when -------------------------------------------------------------------------


def test_appends_of_many_threads_share_their_syncs(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "s") as s:
        given: list[int] = []
        threads = [
            threading.Thread(target=lambda: given.extend(s.append(b"x") for _ in range(20)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(given) == list(range(160))
        assert len(s) == 160


@pytest.mark.parametrize("force_every", [1000, "1h", timedelta(hours=1)])
def test_what_is_not_forced_is_not_read(tmp_path: Path, force_every: Any) -> None:
    with penstock.open_stream(tmp_path / "s", force_every=force_every) as s:
        assert s.append_many(numbers(3)) == [0, 1, 2]
        s.force()
        assert bodies(s) == numbers(3)
        assert s.append(b"3", durability="disk") == 3
        assert s.next == 4
        for durability in ("os", "none", "interval", "fast", 5):
            with pytest.raises(OptionError, match=r"durability: given .* \(as force_every says\)"):
                s.append(b"4", durability=durability)  # type: ignore[arg-type]
    with penstock.open_stream(tmp_path / "s", force_every=force_every) as s:
        s.append(b"4")
    with penstock.open_stream(tmp_path / "s") as s:
        assert bodies(s) == numbers(5)


def test_after_so_many_records_and_after_a_while(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "n", force_every=3) as s:
        for n in range(7):
            assert s.append(b"%d" % n) == n
        until(lambda: s.next >= 6)
        until(lambda: s.next == 7)  # within a second
    with penstock.open_stream(tmp_path / "t", force_every="1ms") as s:
        s.append(b"a")
        until(lambda: s.next == 1)


def test_so_much_in_ram_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.embedded.alone_stream.UNFORCED_BYTES_MAX", 5000)
    with penstock.open_stream(tmp_path / "s", force_every="1h") as s:
        for _ in range(40):
            s.append(bytes(1000))
        assert s.next >= 35


# ---- the end -------------------------------------------------------------------------------------


def test_a_stream_that_is_left_open_is_closed_at_the_end(tmp_path: Path) -> None:
    s = penstock.open_stream(tmp_path / "s", force_every="1h")
    s.append(b"a")
    waiting.OPEN._close_all()
    with penstock.open_stream(tmp_path / "s") as s:
        assert bodies(s) == [b"a"]


def test_an_interrupt_in_the_middle_of_a_change_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> list[int]:
        raise KeyboardInterrupt

    with penstock.open_stream(tmp_path / "s") as s:
        s.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(s._driver.core, "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                s.append(b"b")
        for call in (lambda: s.append(b"c"), lambda: bodies(s), lambda: s.next, s.force, s.retain):
            with pytest.raises(penstock.StoppedError, match="interrupted by KeyboardInterrupt"):
                call()
    with penstock.open_stream(tmp_path / "s") as s:
        assert bodies(s) == [b"a"]


def test_a_forked_child_may_not_use_it(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "s") as s:
        s.append(b"a")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                s.append(b"b")
            except ForkedError:
                os.write(write, b"forked")
            except BaseException as error:
                os.write(write, repr(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"forked"
        os.close(read)
        os.close(write)
        assert s.append(b"c") == 1
    with penstock.open_stream(tmp_path / "s") as s:
        assert bodies(s) == [b"a", b"c"]


def test_damage_is_told_where_it_is_and_the_rest_is_read(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "s", page_bytes=SMALL_PAGE) as s:
        s.append_many([b"%d " % i + bytes(1000) for i in range(12)])
    pages = sorted((tmp_path / "s").glob("*.page"))
    data = bytearray(pages[1].read_bytes())
    data[200] ^= 1
    pages[1].write_bytes(data)
    with penstock.open_stream(tmp_path / "s") as s:
        assert offsets(s.read(max_records=3)) == [0, 1, 2]
        with pytest.raises(CorruptionError) as caught:
            bodies(s)
        assert caught.value.path == str(pages[1])
        assert offsets(s.read(offset=6)) == list(range(6, 12))
        assert s.append(b"12") == 12
    (tmp_path / "s" / "allMeta").write_bytes(b"?" * 64)
    with pytest.raises(CorruptionError, match="allMeta"):
        penstock.open_stream(tmp_path / "s")


def test_it_verifies(tmp_path: Path) -> None:
    with penstock.open_stream(tmp_path / "s", page_bytes=SMALL_PAGE, max_records=8) as s:
        s.append_many([bytes(1000)] * 40)
        s.reader("r", offset=35).commit(wait=True)
        until(lambda: (s.retain() or True) and len(s) < 12)
    found = verify_stream(OsFileSystem(0), str(tmp_path / "s"))
    assert not found.problems
    assert not found.notes


def test_events_are_told_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with penstock.open_stream(tmp_path / "s", page_bytes=SMALL_PAGE) as s:
        s.append_many(numbers(3))
    (page,) = (tmp_path / "s").glob("*.page")
    with page.open("ab") as file:
        file.write(b"torn")
    events: list[tuple[str, str]] = []

    def tell(kind: str, text: str) -> None:
        events.append((kind, text))
        raise SystemExit

    with (
        caplog.at_level(logging.INFO, "penstock"),
        penstock.open_stream(tmp_path / "s", on_event=tell) as s,
    ):
        until(lambda: bool(events))
        assert bodies(s) == numbers(3)
    assert events[0][0] == "cut"
    assert "4 bytes cut" in caplog.text
    assert "on_event has failed" in caplog.text
