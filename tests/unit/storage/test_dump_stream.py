"""Every file of a stream as text; damage is a line that says so."""

import pytest

from penstock.errors import NotAStoreError
from penstock.storage.pages.stream_meta import reader_file
from penstock.storage.tools.dump import dump, is_of_stream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone, fill


def stored() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 12, 5)
    queue.set_reader("r", 3, 2)
    queue.retain(max_records=2, now_us=0)
    queue.append(b"torn", b"")
    queue.close()
    return fs


def lines(fs: FaultyFileSystem, name: str) -> list[str]:
    return list(dump(fs, f"{PATH}/{name}"))


def test_each_file() -> None:
    fs = stored()
    page = next(name for name in fs.list(PATH) if name.endswith(".page"))
    base = int(page[:20])
    found = lines(fs, page)
    assert found[0].startswith("         0  page ")
    assert found[0].endswith(f"of stream 0, from offset {base}, time {1000 + base}")
    assert found[1].startswith(f"        64  record {base}, time {1000 + base}, meta of ")
    index = lines(fs, page.replace(".page", ".idx"))
    assert index[0].endswith(f"from offset {base}, 7 records, {fs.size(PATH + '/' + page)} bytes, "
                             f"times {1000 + base} to {1006 + base}")  # fmt: skip
    assert index[1] == f"        64  record {base} at 64, payload 7, time {1000 + base}"
    assert index[-1].startswith("       176  block 0, crc ")
    assert lines(fs, "allMeta")[0].endswith("pages of 300 bytes")
    assert "head at offset 13, byte " in lines(fs, "writeMeta")[0]
    reader = lines(fs, f"readers/{reader_file('r')}")
    assert reader == ["         0  reader 'r' at offset 3, keeps from 2 on"]


def test_readmeta_and_an_active_index() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    queue.retain(max_records=2, now_us=0)
    queue.close()
    first = queue.first_offset
    assert lines(fs, "readMeta") == [f"         0  the first page begins with offset {first}"]
    index = lines(fs, f"{queue.pages.bases[-1]:020}.idx")
    assert index[0].endswith("not sealed")


def test_damage_is_a_line() -> None:
    fs = stored()
    for name in [*fs.list(PATH), f"readers/{reader_file('r')}"]:
        path = f"{PATH}/{name}"
        if name in ("LOCK", "readers"):
            continue
        clean = list(dump(fs, path))
        for position in range(fs.size(path)):
            spoilt = fs.fork()
            spoilt.damage_flip(path, position)
            found = list(dump(spoilt, path))
            assert found != clean
            if not name.endswith(".idx") or found[0].endswith("bytes"):
                assert any(line.startswith("DAMAGED ") for line in found), (name, position)


def test_names() -> None:
    assert is_of_stream("/s/00000000000000000001.page")
    assert not is_of_stream("/s/1.page")
    assert not is_of_stream("/s/1.qi")
    with pytest.raises(NotAStoreError, match="the name of a file of a store"):
        dump(FaultyFileSystem(), "/s/other")
