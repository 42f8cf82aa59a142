"""UserStore: what is written is there again, whole or not at all; no stranger's file is taken."""

import sqlite3
from pathlib import Path

import pytest

from penstock.errors import CorruptionError, StorageError, VersionError
from penstock.storage.files.user_store import CREATING, READY, UserStore


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "node.db")


def filled(path: str) -> UserStore:
    store = UserStore(path)
    with store.transaction():
        store.begin()
        store.put_user("u", "hash", ("b", "a"))
        store.put_vhost("v", CREATING, '{"a": 1}')
        store.put_permission("u", "v", ("c", "w", "r"))
    return store


def test_what_was_written_is_there_again(path: str) -> None:
    filled(path).close()
    store = UserStore(path)
    assert store.users() == {"u": ("hash", ("b", "a"))}
    assert store.vhosts() == {"v": (CREATING, '{"a": 1}')}
    assert store.permissions() == {("u", "v"): ("c", "w", "r")}
    store.close()


def test_another_put_replaces_and_keeps_what_hangs_on_it(path: str) -> None:
    store = filled(path)
    store.put_user("u", "other", ())
    store.put_vhost("v", READY)
    assert store.users() == {"u": ("other", ())}
    assert store.vhosts() == {"v": (READY, "{}")}
    assert store.permissions() == {("u", "v"): ("c", "w", "r")}
    store.put_permission("u", "v", ("", "", ""))
    assert store.permissions() == {("u", "v"): ("", "", "")}


@pytest.mark.parametrize("what", ["user", "vhost"])
def test_permissions_go_with_what_they_hang_on(path: str, what: str) -> None:
    store = filled(path)
    if what == "user":
        store.delete_user("u")
    else:
        store.delete_vhost("v")
    assert store.permissions() == {}
    store.delete_user("u")
    store.delete_vhost("v")
    store.delete_permission("u", "v")
    assert not store.users()
    assert not store.vhosts()


def test_a_permission_needs_its_user_and_vhost(path: str) -> None:
    store = filled(path)
    for user, vhost in (("nobody", "v"), ("u", "nowhere")):
        with pytest.raises(sqlite3.IntegrityError):
            store.put_permission(user, vhost, ("", "", ""))


def test_it_is_new_until_it_was_begun(path: str) -> None:
    store = UserStore(path)
    assert store.is_new
    store.close()
    store = UserStore(path)
    assert store.is_new
    store.close()
    filled(path).close()
    assert not UserStore(path).is_new


def test_a_transaction_that_fails_leaves_nothing(path: str) -> None:
    store = UserStore(path)

    def fail() -> None:
        with store.transaction():
            store.begin()
            store.put_user("u", "hash", ())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.users() == {}
    store.close()
    assert UserStore(path).is_new


def test_a_process_killed_in_the_middle_leaves_nothing(path: str, tmp_path: Path) -> None:
    store = filled(path)
    store._db.execute("PRAGMA cache_size = 1")  # so that it writes into the file before COMMIT
    copy = tmp_path / "copy" / "node.db"
    copy.parent.mkdir()
    with store.transaction():
        for number in range(200):
            store.put_user(f"user{number}", "h" * 500, ())
        for file in tmp_path.glob("node.db*"):
            (copy.parent / file.name).write_bytes(file.read_bytes())
    assert (copy.parent / "node.db-journal").exists()
    assert list(UserStore(str(copy)).users()) == ["u"]
    assert len(store.users()) == 201


def test_only_its_owner_may_read_it(path: str) -> None:
    filled(path)
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_a_change_is_synced_before_its_call_returns(path: str) -> None:
    assert UserStore(path)._db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_what_is_no_database_is_left_alone(path: str) -> None:
    Path(path).write_bytes(b"not a database, but long enough to look like one" * 100)
    before = Path(path).read_bytes()
    with pytest.raises(CorruptionError, match="not a database"):
        UserStore(path)
    assert Path(path).read_bytes() == before


def test_damage_is_found_when_it_is_opened(path: str) -> None:
    filled(path).close()
    data = bytearray(Path(path).read_bytes())
    data[4096:8192] = b"\xff" * 4096
    Path(path).write_bytes(data)
    with pytest.raises(CorruptionError):
        UserStore(path)


def test_a_newer_one_is_left_alone(path: str) -> None:
    filled(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(VersionError, match="expected version 1, found 2"):
        UserStore(path)


def test_where_nothing_can_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        UserStore(str(tmp_path / "no" / "such" / "node.db"))
    with pytest.raises(StorageError):
        UserStore(str(tmp_path))


def test_limits_go_with_their_user_or_vhost(path: str) -> None:
    store = filled(path)
    store.put_limits("user", "u", '{"max-channels": 1}')
    store.put_limits("vhost", "v", '{"max-queues": 2}')
    store.put_limits("vhost", "v", '{"max-queues": 3}')
    store.close()
    store = UserStore(path)
    assert store.limits("user") == {"u": '{"max-channels": 1}'}
    assert store.limits("vhost") == {"v": '{"max-queues": 3}'}
    store.delete_user("u")
    store.delete_vhost("v")
    assert (store.limits("user"), store.limits("vhost")) == ({}, {})


def test_a_file_without_limits_is_opened_and_gets_their_table(path: str) -> None:
    store = filled(path)
    store._db.execute("DROP TABLE limits")
    store.close()
    store = UserStore(path)
    assert list(store.users()) == ["u"]
    assert store.limits("user") == {}
    store.put_limits("user", "u", "{}")
    assert store.limits("user") == {"u": "{}"}
