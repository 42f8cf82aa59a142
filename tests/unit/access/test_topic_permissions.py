"""Topic permissions: which routing keys a user may publish and bind with, per exchange."""

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.permissions import Identity, Pattern, expanded
from penstock.access.users import KnownUsers, Users
from penstock.errors import AMQPError, OptionError
from penstock.storage.files.user_store import UserStore

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=20)


def made(path: str = ":memory:") -> Users:
    users = Users(UserStore(path), rng=random.Random(1), log2_n=1)
    if "ada" not in [row["user"] for row in users.list_users()]:
        users.add_user("ada", b"secret")
        users.set_permissions("ada", "/", "", ".*", ".*")
    return users


def known(users: KnownUsers) -> Identity:
    who = users.identity("ada", "/")
    assert who is not None
    return who


def test_without_a_topic_permission_every_key_is_allowed() -> None:
    who = known(made())
    assert who.may_write_topic("x", "any")
    assert who.may_read_topic("x", "any")
    assert who.may_write_every_topic("x")


def test_write_and_read_have_their_patterns_for_one_exchange() -> None:
    users = made()
    users.set_topic_permissions("ada", "/", "x", "^a[.]", "")
    who = known(users)
    assert [who.may_write_topic("x", key) for key in ("a.b", "b.a", "")] == [True, False, False]
    assert not who.may_read_topic("x", "a.b")
    assert who.may_read_topic("x", "")  # "" is "^$" in RabbitMQ too
    assert who.may_read_topic("y", "a.b")
    assert not who.may_write_every_topic("x")
    users.set_topic_permissions("ada", "/", "x", ".*", "")
    assert known(users).may_write_every_topic("x")


def test_an_identity_is_made_again_when_something_of_it_has_changed() -> None:
    users = made()
    assert known(users) is known(users)
    assert known(users).may_write("q")
    users.set_permissions("ada", "/", "", "^other$", ".*")
    assert not known(users).may_write("q")
    users.set_topic_permissions("ada", "/", "x", "^a$", "")
    assert not known(users).may_write_topic("x", "b")
    users.set_topic_permissions("ada", "/", "x", "^b$", "")
    assert known(users).may_write_topic("x", "b")
    users.clear_topic_permissions("ada", "/")
    assert known(users).may_write_topic("x", "c")
    users.set_user_tags("ada", ["administrator"])
    assert known(users).is_administrator
    users.clear_permissions("ada", "/")
    assert users.identity("ada", "/") is None


def test_an_empty_routing_key_is_matched_as_it_is() -> None:
    users = made()
    users.set_topic_permissions("ada", "/", "x", "default", "^$|^a$")
    assert not known(users).may_write_topic("x", "")
    assert known(users).may_read_topic("x", "a")


def test_names_are_expanded() -> None:
    users = made()
    users.set_topic_permissions("ada", "/", "x", "^{vhost}[.]{username}[.]", "^{client_id}$")
    who = known(users)
    assert who.may_write_topic("x", "/.ada.orders")
    assert not who.may_write_topic("x", "/.bob.orders")
    assert who.may_read_topic("x", "{client_id}")  # AMQP 0-9-1 has none: it stays as it is


@given(user=NAMES, vhost=NAMES, key=NAMES)
def test_a_name_in_a_pattern_matches_itself_alone(user: str, vhost: str, key: str) -> None:
    pattern = Pattern(expanded(r"^{username}!{vhost}\z", user, vhost))
    assert pattern.is_in(f"{user}!{vhost}")
    said = expanded("{username}", user, vhost)
    assert Pattern(rf"^{said}\z").is_in(key) == (key == user)


@given(pattern=st.text("abc.*^$[]{}username", max_size=20))
def test_a_pattern_without_variables_stays_as_it_is(pattern: str) -> None:
    if not re.search("{username}|{vhost}", pattern):
        assert expanded(pattern, "u.*", "v.*") == pattern


def test_they_are_on_disk_and_go_with_their_user_and_vhost(tmp_path: object) -> None:
    path = f"{tmp_path}/node.db"
    users = made(path)
    users.add_vhost("v")
    users.set_topic_permissions("ada", "/", "x", "a", "b")
    users.set_topic_permissions("ada", "/", "y", "a", "b")
    users.set_topic_permissions("ada", "v", "x", "c", "d")
    users = made(path)
    row = {"user": "ada", "vhost": "/", "exchange": "x", "write": "a", "read": "b"}
    in_v = {**row, "vhost": "v", "write": "c", "read": "d"}
    assert users.list_topic_permissions() == [row, {**row, "exchange": "y"}, in_v]
    assert users.list_topic_permissions(vhost="v") == [in_v]
    assert users.list_topic_permissions(user="guest") == []
    users.clear_topic_permissions("ada", "/", "y")
    for found in (users, made(path)):
        assert found.list_topic_permissions(vhost="/") == [row]
    users = made(path)
    users.clear_topic_permissions("ada", "/")
    users.clear_topic_permissions("ada", "/")  # none is left: nothing happens
    users.delete_vhost("v")
    users.vhost_gone("v")
    for found in (users, made(path)):
        assert found.list_topic_permissions() == []
    users = made(path)
    users.set_topic_permissions("ada", "/", "x", "a", "b")
    users.delete_users(["ada"])
    users.add_user("ada", b"")
    assert users.list_topic_permissions() == []
    assert made(path).list_topic_permissions() == []


def test_an_older_file_gets_the_table(tmp_path: object) -> None:
    path = f"{tmp_path}/node.db"
    users = made(path)
    users._store._db.execute("DROP TABLE topic_permissions")
    users._store.close()
    users = made(path)
    users.set_topic_permissions("ada", "/", "x", "a", "b")
    assert len(made(path).list_topic_permissions()) == 1


def test_what_is_wrong_changes_nothing() -> None:
    users = made()
    with pytest.raises(AMQPError, match="no user 'bob'"):
        users.set_topic_permissions("bob", "/", "x", "", "")
    with pytest.raises(AMQPError, match="no vhost 'v'"):
        users.set_topic_permissions("ada", "v", "x", "", "")
    for patterns in (("(", ""), ("", "("), ("{username}" * 400, "")):
        with pytest.raises(OptionError, match="given"):
            users.set_topic_permissions("ada", "/", "x", *patterns)
    with pytest.raises(AMQPError, match="no user 'bob'"):
        users.clear_topic_permissions("bob", "/")
    with pytest.raises(AMQPError, match="no user 'bob'"):
        users.list_topic_permissions(user="bob")
    assert users.list_topic_permissions() == []


def test_they_go_to_other_processes() -> None:
    users = made()
    users.set_topic_permissions("ada", "/", "x", "^a", "^b")
    other = KnownUsers(rng=random.Random(2), log2_n=1)
    other.take(json.loads(json.dumps(users.facts())))
    who = Identity.from_facts(json.loads(json.dumps(known(other).facts())))
    assert who.may_write_topic("x", "a")
    assert not who.may_read_topic("x", "a")
