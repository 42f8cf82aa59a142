"""The small files of a stream, byte by byte."""

import struct
from zlib import crc32

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages import stream_meta
from penstock.storage.pages.stream_meta import AllMeta, ReaderOffset, StreamHead
from tests.helpers.faulty_filesystem import FaultyFileSystem


def closed(data: bytes) -> bytes:
    data = data.ljust(60, b"\0")
    return data + struct.pack("<I", crc32(data))


ALL = AllMeta(5, bytes(range(16)), 1000)
HEAD = StreamHead(9, 4, 300, 77)
FILES = {
    "all": stream_meta.encode_all(ALL),
    "head": stream_meta.encode_head(HEAD),
    "tail": stream_meta.encode_tail(8),
    "reader": stream_meta.encode_reader("r", ReaderOffset(3, None)),
}


def test_the_formats() -> None:
    assert FILES["all"] == closed(
        b"PNSTALLM" + struct.pack("<HHI", 1, 0, 5) + bytes(range(16)) + struct.pack("<I", 1000)
    )
    assert FILES["head"] == closed(b"PNSTHEAD" + struct.pack("<HHIQQq", 1, 0, 300, 4, 9, 77))
    assert FILES["tail"] == closed(b"PNSTTAIL" + struct.pack("<HHIQ", 1, 0, 0, 8))
    assert stream_meta.decode_all("f", FILES["all"]) == ALL
    assert stream_meta.decode_head("f", FILES["head"]) == HEAD
    assert stream_meta.decode_tail("f", FILES["tail"]) == 8


@pytest.mark.parametrize("kept", [None, 0, 17])
@pytest.mark.parametrize("name", ["r", "", "ä/..\0x", "x" * 300])
def test_a_reader_comes_back(name: str, kept: int | None) -> None:
    data = stream_meta.encode_reader(name, ReaderOffset(12, kept))
    assert stream_meta.decode_reader("f", data) == (name, ReaderOffset(12, kept))


@pytest.mark.parametrize("kind", FILES)
def test_damage_is_noticed(kind: str) -> None:
    data = FILES[kind]
    decode = getattr(stream_meta, f"decode_{kind}")
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError):
            decode("f", bytes(spoilt))
    for length in range(64):
        with pytest.raises(CorruptionError, match="f: at byte"):
            decode("f", data[:length])
    other = FILES["tail" if kind != "tail" else "all"]
    with pytest.raises(CorruptionError, match="expected b'PNST"):
        decode("f", other)


def test_readers_are_kept_by_name() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/q")
    assert stream_meta.load_readers(fs, "/q") == {}
    stream_meta.save_reader(fs, "/q", "a", ReaderOffset(1, None))
    stream_meta.save_reader(fs, "/q", "b/../c", ReaderOffset(2, 1))
    stream_meta.save_reader(fs, "/q", "a", ReaderOffset(3, None))
    expected = {"a": ReaderOffset(3, None), "b/../c": ReaderOffset(2, 1)}
    assert stream_meta.load_readers(fs.crash("kept"), "/q") == expected
    stream_meta.remove_reader(fs, "/q", "a")
    assert list(stream_meta.load_readers(fs, "/q")) == ["b/../c"]


def test_a_reader_under_another_name_is_refused() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/q")
    stream_meta.save_reader(fs, "/q", "a", ReaderOffset(1, None))
    fs.rename("/q/readers/" + stream_meta.reader_file("a"), "/q/readers/x")
    with pytest.raises(CorruptionError, match="it is of reader 'a'"):
        stream_meta.load_readers(fs, "/q")


def test_a_missing_readmeta_means_that_nothing_went() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/q")
    assert stream_meta.read_tail(fs, "/q") == 0
    stream_meta.replace_small(fs, "/q", "readMeta", FILES["tail"])
    assert stream_meta.read_tail(fs, "/q") == 8
    assert fs.list("/q") == ["readMeta"]
