"""Dumps: golden ones of every format, and what damage looks like."""

import random

import pytest

from penstock.errors import NotAStoreError
from penstock.storage.tools.dump import dump, dump_tree
from tests.helpers.faults import DAMAGES
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.golden import golden
from tests.helpers.tool_stores import DATA, image, make, vhost_path

# name of the golden file -> path below the vhost's directory, in the killed store
KILLED = {
    "dump_wal": "wal/0000000001.wal",
    "dump_wal_vouch": "wal/0000000002.wal",
    "dump_qi": "queues/{big}/0.qi",
    "dump_qs": "queues/{big}/0.qs",
    "dump_qs_stored": "queues/{big}/2.qs",
    "dump_rdq": "msg_store_persistent/1.rdq",
    "dump_hint": "msg_store_persistent/1.hint",
    "dump_msg": "msg_store_persistent/00/0.msg",
    "dump_checkpoint": "checkpoint-2",
    "dump_current": "CURRENT",
    "dump_queue_name": "queues/{big}/.queue_name",
    "dump_vhost": ".vhost",
}


@pytest.fixture(scope="module")
def killed() -> FaultyFileSystem:
    return make()


def path_of(fs: FaultyFileSystem, name: str) -> str:
    vhost = vhost_path(fs)
    big = next(d for d in fs.list(vhost + "/queues") if d.endswith(".1"))
    return f"{vhost}/{name.format(big=big)}"


@pytest.mark.parametrize("name", KILLED)
def test_every_format_is_as_it_was(killed: FaultyFileSystem, name: str) -> None:
    golden(name, "\n".join(dump(killed, path_of(killed, KILLED[name]))))


def test_a_clean_checkpoint_is_as_it_was() -> None:
    fs = make(is_clean=True)
    vhost = vhost_path(fs)
    number = fs.read(vhost + "/CURRENT").split()[0].decode()
    golden("dump_checkpoint_clean", "\n".join(dump(fs, f"{vhost}/{number}")))


def test_version_and_reserve(killed: FaultyFileSystem) -> None:
    golden("dump_version", "\n".join(dump(killed, DATA + "/VERSION")))
    fs = FaultyFileSystem()
    file = fs.open("/reserve", create=True)
    file.pwrite(bytes(100), 0)
    assert list(dump(fs, "/reserve")) == ["         0  100 bytes, all of them zeros"]
    file.pwrite(b"x", 50)
    assert list(dump(fs, "/reserve")) == ["         0  100 bytes, not all of them zeros"]


def test_nothing_is_damaged_in_a_whole_store(killed: FaultyFileSystem) -> None:
    for fs in (killed, make(is_clean=True)):
        assert not [line for line in dump_tree(fs, DATA) if "DAMAGED" in line]


@pytest.mark.parametrize("name", [n for n in KILLED if n not in ("dump_current", "dump_vhost")])
def test_a_flipped_bit_shows(killed: FaultyFileSystem, name: str) -> None:
    """Every bit of these files but padding is under a checksum, or is text that is shown."""
    path = path_of(killed, KILLED[name])
    before = list(dump(killed, path))
    rng = random.Random(name)
    for _ in range(40):
        fs = killed.fork()
        at = rng.randrange(fs.size(path))
        fs.damage_flip(path, at, rng.randrange(8))
        after = list(dump(fs, path))
        if killed.read(path)[at] or name == "dump_qs":
            assert after != before, f"byte {at}"


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_the_bytes_are_there_is_a_dump(killed: FaultyFileSystem, damage: str) -> None:
    rng = random.Random(damage)
    for path, data in image(killed).items():
        if data:
            for _ in range(3):
                fs = killed.fork()
                DAMAGES[damage](fs, path, rng)
                assert all(len(line) > 12 for line in dump(fs, path))


def test_a_header_that_claims_too_many_slots_does_not_hold_it_up(killed: FaultyFileSystem) -> None:
    fs = killed.fork()
    path = path_of(fs, KILLED["dump_qs"])
    fs.open(path).pwrite(b"\xff\xff\xff\xff", 24)
    header, *entries = dump(fs, path)
    assert "DAMAGED header" in header
    assert "slots 4294967295" in header
    assert entries


def test_an_empty_file_is_damaged(killed: FaultyFileSystem) -> None:
    for name in ("wal", "qi", "qs", "rdq", "hint", "msg", "checkpoint"):
        fs = killed.fork()
        path = path_of(fs, KILLED[f"dump_{name}"])
        fs.damage_cut(path, 0)
        assert any("DAMAGED" in line for line in dump(fs, path)), name


def test_what_is_not_ours_is_not_dumped() -> None:
    fs = FaultyFileSystem()
    fs.open("/notes.txt", create=True).pwrite(b"hello", 0)
    with pytest.raises(NotAStoreError, match=r"notes\.txt"):
        dump(fs, "/notes.txt")
    assert list(dump_tree(fs, "/")) == ["== /notes.txt", "5 bytes that are not ours"]
