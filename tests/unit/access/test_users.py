"""Users: passwords, what is remembered of them, permissions, vhosts, and that it is all on disk."""

import base64
import hashlib
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.access import users as module
from penstock.access.users import (
    KnownUsers,
    Tables,
    Users,
    hash_password,
    is_of_rabbitmq,
    rabbitmq_hash,
    verify,
)
from penstock.clock import ManualClock
from penstock.errors import AMQPError, OptionError
from penstock.storage.files.user_store import UserStore


class World:
    """A clock, and Users over one file, opened as often as wanted."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "node.db")
        self.clock = ManualClock()
        self.store: UserStore | None = None
        self.open()

    def open(self) -> Users:
        if self.store is not None:
            self.store.close()
        self.store = UserStore(self.path)
        rng = random.Random(1)
        self.users = Users(self.store, rng=rng, log2_n=1)
        return self.users


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def is_right(users: Users, name: str, password: bytes) -> bool:
    """Look at a password and remember it, as server.authenticator does beside the loop."""
    if users.remembers(name, password):
        return True
    claim = users.claim(name)
    if not module.verify(password, claim):
        return False
    if is_of_rabbitmq(claim):
        hashed = users.new_hash(password)
        claim = hashed if users.renew(name, claim, hashed) else claim
    users.remember(name, password, claim)
    return True


# --- the first start ---


def test_the_first_start_makes_guest_and_a_vhost(world: World) -> None:
    for users in (world.users, world.open()):
        assert users.list_users() == [{"user": "guest", "tags": ["administrator"]}]
        assert users.vhosts() == {"/": "creating"}
        assert is_right(users, "guest", b"guest")
        who = users.identity("guest", "/")
        assert who is not None
        assert who.is_administrator
        assert who.may_configure("x")
        assert who.may_write("")
        assert who.may_read("x")


def test_guest_does_not_come_back_once_it_was_deleted(world: World) -> None:
    world.users.delete_users(["guest"])
    world.users.delete_vhost("/")
    world.users.vhost_gone("/")
    assert world.open().list_users() == []
    assert world.users.vhosts() == {}


def test_a_first_start_cut_short_is_still_the_first(tmp_path: Path) -> None:
    UserStore(str(tmp_path / "node.db")).close()  # the tables are there, nobody is in
    assert is_right(World(tmp_path).users, "guest", b"guest")


# --- passwords ---


def test_a_password_is_right_or_wrong(world: World) -> None:
    world.users.add_user("u", b"secret", ["monitoring"])
    for users in (world.users, world.open()):
        assert is_right(users, "u", b"secret")
        assert not is_right(users, "u", b"Secret")
        assert not is_right(users, "u", b"")
        assert not is_right(users, "nobody", b"secret")
        assert users.tags("u") == ("monitoring",)


def test_any_bytes_may_be_a_password(world: World) -> None:
    world.users.add_user("u", b"\x00\xff$")
    assert is_right(world.users, "u", b"\x00\xff$")
    assert not is_right(world.users, "u", b"\x00\xff")
    world.users.add_user("empty", b"")
    assert is_right(world.users, "empty", b"")


def test_nothing_that_a_file_may_hold_for_a_hash_lets_anyone_in() -> None:
    good = hash_password(b"p", salt=b"s" * 16, log2_n=1)
    assert verify(b"p", good)
    kind, n, r, p, salt, hashed = good.split("$")
    for bad in (
        "", "plain$p", good + "$", good[:-4], f"{kind}${n}${r}${p}${salt}$",
        f"{kind}$40${r}${p}${salt}${hashed}", f"{kind}$x${r}${p}${salt}${hashed}",
        f"{kind}${n}$0${p}${salt}${hashed}", f"{kind}${n}${r}${p}$?${hashed}",
        f"pbkdf2${n}${r}${p}${salt}${hashed}", f"{kind}$0${r}${p}${salt}${hashed}",
    ):  # fmt: skip
        assert not verify(b"p", bad), bad


def test_the_default_cost_works_and_salts_differ() -> None:
    first, second = (hash_password(b"p", salt=salt) for salt in (b"1" * 16, b"2" * 16))
    assert first.startswith("scrypt$14$8$1$")
    assert first.split("$")[-1] != second.split("$")[-1]
    assert verify(b"p", first)
    assert not verify(b"q", first)


# --- what is remembered ---


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that were really hashed."""
    asked: list[bytes] = []

    def counting(password: bytes, hashed: str) -> bool:
        asked.append(password)
        return verify(password, hashed)

    monkeypatch.setattr(module, "verify", counting)
    return asked


def test_a_success_is_remembered_until_the_hash_changes(
    world: World, verified: list[bytes]
) -> None:
    users = world.users
    users.add_user("ann", b"a")
    for _ in range(2):
        assert is_right(users, "guest", b"guest")
        assert is_right(users, "ann", b"a")
        assert not users.remembers("ann", b"guest")
    assert len(verified) == 2
    users.set_user_tags("guest", [])
    assert users.remembers("guest", b"guest")
    users.change_password("guest", b"guest")
    assert not users.remembers("guest", b"guest")
    assert is_right(users, "guest", b"guest")
    assert len(verified) == 3


def test_a_failure_is_not_remembered_and_costs_as_much_for_nobody(
    world: World, verified: list[bytes]
) -> None:
    for name in ("guest", "nobody", "guest", "nobody"):
        assert not is_right(world.users, name, b"wrong")
    assert len(verified) == 4


def test_nothing_is_remembered_across_a_change(world: World) -> None:
    users = world.users
    users.add_user("u", b"old")
    assert is_right(users, "u", b"old")
    users.change_password("u", b"new")
    assert not is_right(users, "u", b"old")
    assert is_right(users, "u", b"new")
    users.delete_users(["u"])
    assert not users.remembers("u", b"new")
    assert not is_right(users, "u", b"new")
    users.add_user("u", b"new")
    assert not users.remembers("u", b"new")


def test_a_success_for_a_hash_that_changed_meanwhile_counts_for_nothing(world: World) -> None:
    claim = world.users.claim("guest")
    assert verify(b"guest", claim)
    world.users.change_password("guest", b"other")
    world.users.remember("guest", b"guest", claim)
    assert not world.users.remembers("guest", b"guest")


def test_name_and_password_are_not_run_together(world: World) -> None:
    world.users.remember("ab", b"c", world.users.claim("ab"))
    assert world.users.remembers("ab", b"c")
    assert not world.users.remembers("a", b"bc")


def test_what_is_remembered_is_bounded_by_the_users_there_are(world: World) -> None:
    users = world.users
    for number in range(100):
        name = f"u{number}"
        users.add_user(name, b"p")
        assert is_right(users, name, b"p")
        assert not is_right(users, name, b"wrong")
        users.delete_users([name])
    assert len(users._remembered) <= 2


# --- permissions ---


def test_permissions_are_per_vhost_and_replaced_whole(world: World) -> None:
    users = world.users
    users.add_user("u", b"p")
    users.add_vhost("v")
    assert users.identity("u", "v") is None
    assert users.identity("u", "no such") is None
    assert users.identity("nobody", "/") is None
    users.set_permissions("u", "v", "^c", "^w", "")
    users.set_permissions("u", "v", "^c", "^x", "")
    for now in (users, world.open()):
        assert now.identity("u", "/") is None
        who = now.identity("u", "v")
        assert who is not None
        assert (who.configure, who.write, who.read) == ("^c", "^x", "")
        assert now.list_permissions(user="u") == now.list_permissions(vhost="v")
        assert [(p["user"], p["vhost"]) for p in now.list_permissions()] == [
            ("guest", "/"), ("u", "v"),
        ]  # fmt: skip
    world.users.clear_permissions("u", "v")
    assert world.users.identity("u", "v") is None
    assert world.open().identity("u", "v") is None


def test_tags_are_in_the_identity(world: World) -> None:
    world.users.set_user_tags("guest", ["management", "monitoring"])
    who = world.open().identity("guest", "/")
    assert who is not None
    assert who.tags == {"management", "monitoring"}


def test_tags_keep_their_order_as_in_rabbitmq(world: World) -> None:
    """Terraform has them in a list, and would change them in each run."""
    tags = ["policymaker", "management"]
    world.users.add_user("ann", b"ann", [*tags, "policymaker"])
    for users in (world.users, world.open()):
        assert users.tags("ann") == ("policymaker", "management")
        assert {"user": "ann", "tags": tags} in users.list_users()
    world.users.set_user_tags("ann", tags[::-1])
    assert world.open().tags("ann") == ("management", "policymaker")


def test_permissions_go_with_their_user_and_their_vhost(world: World) -> None:
    users = world.users
    users.add_vhost("v")
    for name in ("u", "w"):
        users.add_user(name, b"p")
        users.set_permissions(name, "v", "", "", "")
    users.delete_users(["u"])
    assert [p["user"] for p in users.list_permissions(vhost="v")] == ["w"]
    users.delete_vhost("v")
    users.vhost_gone("v")
    users.add_user("u", b"p")
    users.add_vhost("v")
    for now in (users, world.open()):
        assert now.list_permissions(vhost="v") == []


# --- vhosts ---


def test_a_vhost_is_created_and_deleted_in_steps_that_a_crash_cannot_lose(world: World) -> None:
    world.users.add_vhost("v")
    assert world.open().vhosts()["v"] == "creating"
    world.users.vhost_made("v")
    assert world.open().vhosts()["v"] == "ready"
    world.users.delete_vhost("v")
    assert world.open().vhosts()["v"] == "deleting"
    world.users.vhost_made("v")  # late news of its making does not bring it back
    assert world.users.vhosts()["v"] == "deleting"
    world.users.vhost_gone("v")
    assert world.open().vhosts() == {"/": "creating"}


def test_that_a_vhost_was_stopped_is_on_disk_until_it_is_started(world: World) -> None:
    world.users.vhost_made("/")
    assert world.users.stopped_ms("/") is None
    world.users.stop_vhost("/", 1_700_000_000_000)
    for now in (world.users, world.open()):
        assert now.stopped_ms("/") == 1_700_000_000_000
        assert now.vhosts() == {"/": "ready"}
    with pytest.raises(AMQPError, match=r"vhost '/' is stopped already, since 2023-11-14T22:13:20"):
        world.users.stop_vhost("/", 5)
    assert world.users.start_vhost("/") is True
    assert world.users.start_vhost("/") is False
    assert world.open().stopped_ms("/") is None


def test_a_vhost_that_is_ready_is_not_forgotten(world: World) -> None:
    world.users.vhost_made("/")
    with pytest.raises(AssertionError):
        world.users.vhost_gone("/")
    assert world.open().vhosts() == {"/": "ready"}


# --- refusals ---


@pytest.mark.parametrize(
    ("code", "text", "call"),
    [
        (404, "no user 'n'", lambda u: u.change_password("n", b"")),
        (404, "no user 'n'", lambda u: u.set_user_tags("n", [])),
        (404, "no user 'n'", lambda u: u.delete_users(["n"])),
        (404, "no user 'n'", lambda u: u.tags("n")),
        (404, "no user 'n'", lambda u: u.set_permissions("n", "/", "", "", "")),
        (404, "no user 'n'", lambda u: u.clear_permissions("n", "/")),
        (404, "no user 'n'", lambda u: u.list_permissions(user="n")),
        (404, "no vhost 'n'", lambda u: u.set_permissions("guest", "n", "", "", "")),
        (404, "no vhost 'n'", lambda u: u.clear_permissions("guest", "n")),
        (404, "no vhost 'n'", lambda u: u.list_permissions(vhost="n")),
        (404, "no vhost 'n'", lambda u: u.delete_vhost("n")),
        (404, "no vhost 'n'", lambda u: u.vhost_made("n")),
        (404, "no vhost 'n'", lambda u: u.stop_vhost("n", 1)),
        (404, "no vhost 'n'", lambda u: u.start_vhost("n")),
        (406, "user 'guest' already exists", lambda u: u.add_user("guest", b"")),
        (406, "vhost '/' already exists", lambda u: u.add_vhost("/")),
    ],
)
def test_refusals_say_why(
    world: World, code: int, text: str, call: Callable[[Users], object]
) -> None:
    with pytest.raises(AMQPError, match=text) as caught:
        call(world.users)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "call",
    [
        lambda u: u.add_user("", b""),
        lambda u: u.add_user("x" * 256, b""),
        lambda u: u.add_user("\udc80", b""),
        lambda u: u.add_user("a\nb", b""),
        lambda u: u.add_vhost(""),
        lambda u: u.add_vhost("v\x00"),
        lambda u: u.add_user("u", b"", ["two words"]),
        lambda u: u.set_user_tags("guest", [""]),
        lambda u: u.set_user_tags("guest", ["a\udc80"]),
        lambda u: u.set_permissions("guest", "/", "(", "", ""),
        lambda u: u.set_permissions("guest", "/", "", "*", ""),
        lambda u: u.set_permissions("guest", "/", "", "", "\udc80"),
    ],
)
def test_values_that_make_no_sense_change_nothing(
    world: World, call: Callable[[Users], object]
) -> None:
    with pytest.raises(OptionError):
        call(world.users)
    for users in (world.users, world.open()):
        assert users.list_users() == [{"user": "guest", "tags": ["administrator"]}]
        assert users.vhosts() == {"/": "creating"}
        assert [p["configure"] for p in users.list_permissions()] == [".*"]


# --- another process of the broker ---


def test_whoever_is_handed_the_facts_decides_as_the_owner_does(world: World) -> None:
    users = world.users
    other = KnownUsers(rng=random.Random(2), log2_n=1)
    told: list[str] = []

    def tell() -> None:
        told.append(json.dumps(users.facts()))
        other.take(json.loads(told[-1]))

    assert not verify(b"guest", other.claim("guest"))
    users.on_change = tell
    users.add_user("ann", b"a", ["monitoring"])
    users.vhost_made("/")
    users.set_permissions("ann", "/", "", "^w", "^r")
    assert len(told) == 3
    assert other.vhosts() == {"/": "ready"}
    claim = other.claim("ann")
    assert verify(b"a", claim)
    other.remember("ann", b"a", claim)
    assert other.remembers("ann", b"a")
    who = other.identity("ann", "/")
    assert who is not None
    assert (who.tags, who.may_read("r"), who.may_read("w")) == ({"monitoring"}, True, False)

    users.change_password("ann", b"b")
    assert not other.remembers("ann", b"a")
    users.set_user_tags("ann", [])
    users.clear_permissions("ann", "/")
    assert other.identity("ann", "/") is None
    users.add_vhost("v")
    users.delete_vhost("v")
    users.vhost_gone("v")
    users.delete_users(["ann"])
    assert not verify(b"b", other.claim("ann"))
    assert len(told) == 10


def test_facts_of_another_process_hold_no_password(world: World) -> None:
    world.users.add_user("ann", b"open sesame")
    assert "open sesame" not in json.dumps(world.users.facts())


# --- limits ---


def test_limits_are_on_disk_and_go_with_their_user(world: World) -> None:
    users = world.users
    users.add_user("u", b"p")
    users.set_limits("user", "u", {"max-channels": 5, "max-connections": -1})
    users.set_limits("user", "u", {"max-channels": 6})
    users.set_limits("vhost", "/", {"max-queues": 7})
    for known in (users, world.open()):
        assert known.limits("user") == {"u": {"max-channels": 6, "max-connections": -1}}
        assert known.limits("vhost") == {"/": {"max-queues": 7}}
    world.users.clear_limits("user", "u", "max-channels")
    assert world.users.limits("user") == {"u": {"max-connections": -1}}
    world.users.clear_limits("user", "u")
    world.users.set_limits("user", "u", {"max-publish-rate": 1})
    world.users.delete_users(["u"])
    for known in (world.users, world.open()):
        assert known.limits("user") == {}


@pytest.mark.parametrize(
    ("kind", "name", "given", "expected"),
    [
        ("user", "guest", {"max-queues": 1}, OptionError),
        ("vhost", "/", {"max-channels": 1}, OptionError),
        ("user", "guest", {"max-channels": True}, OptionError),
        ("user", "guest", {"max-channels": "1"}, OptionError),
        ("user", "guest", {"max-channels": 1 << 40}, OptionError),
        ("user", "nobody", {"max-channels": 1}, AMQPError),
        ("vhost", "nowhere", {"max-queues": 1}, AMQPError),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    world: World, kind: str, name: str, given: dict[str, object], expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        world.users.set_limits(kind, name, given)
    assert world.users.limits(kind) == {}


def test_an_unknown_limit_cannot_be_cleared(world: World) -> None:
    with pytest.raises(OptionError):
        world.users.clear_limits("user", "guest", "max-channel")


# --- RabbitMQ's hashes ---

# The password is "s3cret": the first as RabbitMQ 3.10 exported it.
RABBITMQ_SHA256 = "rLu+VoGM+MmKOgDTjwYzajit2eKX+J50CQlNJWzsFV3x0Oke"
RABBITMQ_SHA512 = base64.b64encode(b"salt" + hashlib.sha512(b"salts3cret").digest()).decode()


@pytest.mark.parametrize(
    ("algorithm", "text"), [("sha256", RABBITMQ_SHA256), ("sha512", RABBITMQ_SHA512)]
)
def test_a_hash_of_rabbitmq_is_replaced_at_the_first_login(
    world: World, algorithm: str, text: str
) -> None:
    hashed = rabbitmq_hash(text, f"rabbit_password_hashing_{algorithm}")
    store = world.store
    assert store is not None
    store.put_user("bob", hashed, ("management",))
    users = world.open()
    assert not is_right(users, "bob", b"s3cret2")
    assert users.claim("bob") == hashed
    assert is_right(users, "bob", b"s3cret")
    assert users.claim("bob").startswith("scrypt$")
    assert users.remembers("bob", b"s3cret")
    again = world.open()
    assert is_right(again, "bob", b"s3cret")
    assert again.tags("bob") == ("management",)


def test_a_user_without_a_password_cannot_log_in_with_one(world: World) -> None:
    hashed = rabbitmq_hash("", "rabbit_password_hashing_sha256")
    assert not verify(b"", hashed)
    assert not verify(b"none", hashed)


@pytest.mark.parametrize(
    ("text", "algorithm", "said"),
    [
        ("x" * 48, "rabbit_password_hashing_md5", "set again, with change_password"),
        ("!!", "rabbit_password_hashing_sha256", "the base64 of 36 bytes"),
        (RABBITMQ_SHA256[:-4], "rabbit_password_hashing_sha256", "the base64 of 36 bytes"),
        (RABBITMQ_SHA256, "rabbit_password_hashing_sha512", "the base64 of 68 bytes"),
    ],
)
def test_hashes_that_cannot_be_verified_are_refused(text: str, algorithm: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        rabbitmq_hash(text, algorithm)


# --- what is said of a vhost, and of the broker ---


def test_what_is_said_of_a_vhost_is_kept(world: World) -> None:
    users = world.users
    users.add_vhost("v", {"description": "d", "tags": "a,b", "default_queue_type": "quorum"})
    users.add_vhost("plain")
    users.stop_vhost("v", 5)
    users.update_vhost("v", {"description": "other"})
    for now in (users, world.open()):
        assert now.vhost_options("v") == {
            "description": "other", "tags": ["a", "b"], "default_queue_type": "quorum",
        }  # fmt: skip
        assert now.stopped_ms("v") == 5
        assert now.queue_types() == {"v": "quorum"}
        assert now.vhost_options("plain") == {
            "description": "", "tags": [], "default_queue_type": "undefined",
        }  # fmt: skip
    world.users.update_vhost("v", {"default_queue_type": "undefined", "tags": []})
    assert world.open().queue_types() == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"default_queue_type": "fast"}, "expected classic, quorum, stream or undefined"),
        ({"description": 5}, "expected a text"), ({"tags": 5}, "expected tags with commas"),
        ({"descripton": ""}, "did you mean 'description'"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_of_a_vhost(
    world: World, options: dict[str, object], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        world.users.add_vhost("v", {"description": "d", **options})
    assert list(world.users.vhosts()) == ["/"]
    with pytest.raises(OptionError, match=said):
        world.users.update_vhost("/", {"tags": "a", **options})
    assert world.users.vhost_options("/")["tags"] == []
    with pytest.raises(AMQPError, match="no vhost 'v'"):
        world.users.update_vhost("v", {})


def test_global_parameters_are_kept(world: World) -> None:
    world.users.set_global_parameter("cluster_name", "ops-lab")
    world.users.set_global_parameter("map", {"1883": "/"})
    assert world.open().global_parameters() == {"cluster_name": "ops-lab", "map": {"1883": "/"}}
    world.users.clear_global_parameter("map")
    assert world.open().global_parameters() == {"cluster_name": "ops-lab"}
    with pytest.raises(AMQPError, match="no global parameter 'map'"):
        world.users.clear_global_parameter("map")
    with pytest.raises(OptionError, match="at most 65536 characters"):
        world.users.set_global_parameter("large", "x" * 65_536)


# --- the first administrator ---


def test_init_makes_an_administrator_and_deletes_guest_once(world: World) -> None:
    users = world.users
    users.add_vhost("v")
    assert users.init("admin", b"secret", is_forced=False) == (True, True)
    for found in (users, world.open()):
        assert found.list_users() == [{"user": "admin", "tags": ["administrator"]}]
        assert is_right(found, "admin", b"secret")
        for vhost in ("/", "v"):
            who = found.identity("admin", vhost)
            assert who is not None
            assert (who.configure, who.write, who.read) == (".*", ".*", ".*")
        assert found.identity("guest", "/") is None
    assert world.users.init("admin", b"other", is_forced=False) == (False, False)
    assert is_right(world.users, "admin", b"secret")
    assert world.users.init("admin", b"other", is_forced=True) == (True, False)
    assert is_right(world.open(), "admin", b"other")


def test_init_keeps_the_other_tags_of_a_user_that_exists(world: World) -> None:
    world.users.add_user("ann", b"ann", ["impersonator"])
    assert world.users.init("ann", b"x", is_forced=False) == (False, True)
    assert world.users.tags("ann") == ("impersonator", "administrator")


def test_init_does_all_or_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_store: UserStore, _name: str) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(UserStore, "delete_user", fails)
        with pytest.raises(OSError, match="gone"):
            world.users.init("admin", b"secret", is_forced=False)
    for found in (world.users, world.open()):
        assert found.list_users() == [{"user": "guest", "tags": ["administrator"]}]
        assert [row["user"] for row in found.list_permissions()] == ["guest"]
    with pytest.raises(OptionError, match="another name"):
        world.users.init("guest", b"secret", is_forced=False)
    assert world.users.init("admin", b"secret", is_forced=False) == (True, True)


# --- definitions ---


def test_rows_of_definitions_are_put_all_or_none(world: World) -> None:
    new = Tables(
        users={"ann": (hash_password(b"a", salt=b"s" * 16, log2_n=1), ("monitoring",))},
        vhosts={"shop": {"description": "sells"}},
        permissions={("ann", "shop"): ("", ".*", ".*"), ("zoe", "moon"): ("", "", "")},
        topics={("ann", "shop", "t"): ("^a", ".*")},
        limits={"user": {"ann": {"max-channels": 5}}, "vhost": {}},
        parameters={"cluster_name": "x"},
    )
    assert world.users.unknown_in(new) == [
        "permissions of user 'zoe' in vhost 'moon': no user 'zoe'",
        "permissions of user 'zoe' in vhost 'moon': no vhost 'moon'",
    ]
    before = world.users.tables()
    with pytest.raises(sqlite3.IntegrityError):
        world.users.put(new)
    assert world.users.tables() == before == world.open().tables()
    del new.permissions[("zoe", "moon")]
    assert world.users.put(new) == new
    world.users.vhost_made("shop")
    tables = world.users.tables()
    assert tables == world.open().tables()
    assert tables.vhosts == {"shop": {"description": "sells"}}
    assert world.users.put(tables) == Tables()
    world.users.delete_vhost("shop")
    assert world.users.unknown_in(new) == ["vhost 'shop' is being deleted"]


# --- put and deleted as RabbitMQ's HTTP API does it ---


def test_a_user_is_put_with_a_hash_tags_and_limits(world: World) -> None:
    users = world.users
    hashed = users.new_hash(b"one")
    assert users.put_user("ann", hashed, ["monitoring"], {"max-channels": 5})
    assert not users.put_user("ann", users.new_hash(b"two"), [], {})
    for known in (users, world.open()):
        assert is_right(known, "ann", b"two")
        assert known.tags("ann") == ()
        assert known.limits("user") == {"ann": {"max-channels": 5}}


@pytest.mark.parametrize(
    ("name", "tags", "limits"),
    [("", [], {}), ("ann", ["a b"], {}), ("ann", [], {"max-cats": 1})],
)
def test_a_user_that_is_wrong_is_not_put(
    world: World, name: str, tags: list[str], limits: dict[str, object]
) -> None:
    with pytest.raises(OptionError):
        world.users.put_user(name, "none", tags, limits)
    assert [user["user"] for user in world.open().list_users()] == ["guest"]


def test_users_are_deleted_all_or_none(world: World) -> None:
    for name in ("ann", "bob"):
        world.users.add_user(name, b"x")
    with pytest.raises(AMQPError, match="no user 'eve'"):
        world.users.delete_users(["ann", "eve", "bob"])
    assert is_right(world.open(), "ann", b"x")
    world.users.delete_users(["ann", "bob", "ann"])
    assert [user["user"] for user in world.open().list_users()] == ["guest"]


def test_what_is_set_says_whether_it_is_new(world: World) -> None:
    users = world.users
    users.add_user("ann", b"x")
    for is_new in (True, False):
        assert users.set_permissions("ann", "/", "", "", "") is is_new
        assert users.set_topic_permissions("ann", "/", "x", "", "") is is_new
        assert users.set_global_parameter("p", {"n": 1}) is is_new
    for was_there in (True, False):
        assert users.clear_topic_permissions("ann", "/", "x") is was_there
        assert users.clear_permissions("ann", "/") is was_there
