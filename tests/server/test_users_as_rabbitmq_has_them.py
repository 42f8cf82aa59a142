"""Users put whole, deleted together, and lists of what was set, in a broker that runs."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika import BlockingConnection, ConnectionParameters, PlainCredentials
from pika.exceptions import AMQPConnectionError

from penstock.server.control import ControlError
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.wire import Refused, Wire

SHA256 = "rabbit_password_hashing_sha256"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("users") / "data") as live:
        yield live


def logs_in(broker: LiveBroker, name: str, password: str) -> bool:
    credentials = PlainCredentials(name, password)
    try:
        with BlockingConnection(ConnectionParameters(broker.host, broker.port, "/", credentials)):
            return True
    except AMQPConnectionError:
        return False


def rabbitmq_hash(password: str) -> str:
    salt = b"\x01\x02\x03\x04"
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def test_a_password_or_a_hash(broker: LiveBroker) -> None:
    put = {"name": "ann", "tags": ["management"]}
    assert broker.control("put_user", **put, password="one") == {"is_new": True}
    broker.control("set_permissions", "/", user="ann", configure="", write="", read="")
    assert logs_in(broker, "ann", "one")
    hashed = rabbitmq_hash("two")
    assert broker.control("put_user", **put, password_hash=hashed) == {"is_new": False}
    (row,) = [row for row in broker.control("list_users", with_hashes=True) if row["name"] == "ann"]
    assert row == {
        "name": "ann", "password_hash": hashed, "hashing_algorithm": SHA256,
        "tags": ["management"], "limits": {}, "penstock": {},
    }  # fmt: skip
    assert not logs_in(broker, "ann", "one")
    assert logs_in(broker, "ann", "two")
    broker.control("put_user", **put, limits={"max-channels": 7})
    assert not logs_in(broker, "ann", "two")
    assert not logs_in(broker, "ann", "")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"password": "a", "password_hash": "b"}, "both_password_and_password_hash_are_provided"),
        ({"password_hash": "!!"}, "the base64 of 36 bytes"),
        ({"password_hash": rabbitmq_hash("x"), "hashing_algorithm": "x"}, "hashing_algorithm"),
        ({"limits": {"max-cats": 1}}, "max-cats"),
    ],
)
def test_a_user_that_is_wrong(broker: LiveBroker, args: dict[str, object], told: str) -> None:
    with pytest.raises(ControlError, match=told) as refused:
        broker.control("put_user", name="wrong", tags=[], **args)
    assert refused.value.code == 406
    assert all(row["name"] != "wrong" for row in broker.control("list_users"))


def test_users_without_permissions_are_deleted_together(broker: LiveBroker) -> None:
    for name in ("one", "two"):
        broker.control("put_user", name=name, tags=[])
    found = broker.control("list_users", without_permissions=True)
    assert {"one", "two"} <= {row["name"] for row in found}
    assert all(row["name"] != "guest" for row in found)
    with pytest.raises(ControlError, match="no user 'three'"):
        broker.control("delete_users", names=["one", "three", "two"])
    broker.control("delete_users", names=["one", "two"])
    assert not {"one", "two"} & {row["name"] for row in broker.control("list_users")}


def test_limits_without_defaults(broker: LiveBroker) -> None:
    broker.control("put_user", name="lim", tags=[], limits={"max-channels": 7})
    assert {"user": "lim", "max-channels": 7} in broker.control(
        "list_user_limits", without_defaults=True
    )
    assert broker.control("list_user_limits", user="guest", without_defaults=True) == []
    assert broker.control("list_vhost_limits", "", without_defaults=True) == []
    broker.control("set_vhost_limits", "/", limits={"max-queues": 50})
    assert broker.control("list_vhost_limits", "/", without_defaults=True) == [
        {"vhost": "/", "max-queues": 50}
    ]


def test_loopback_users_may_connect_from_this_machine_only(tmp_path: Path) -> None:
    """A trusted proxy says where they come from. Who is not in the list comes from everywhere."""
    environment = {
        "PENSTOCK_LOOPBACK_USERS": "ann", "PENSTOCK_PROXY_PROTOCOL_FROM": "127.0.0.1",
    }  # fmt: skip
    with LiveBroker(tmp_path / "data", environment=environment) as broker:
        broker.control("add_user", name="ann", password="ann")
        broker.control("set_permissions", user="ann", configure="", write="", read="")
        for user, host, is_accepted in (
            ("ann", "127.0.0.9", True), ("guest", "192.0.2.7", True), ("ann", "192.0.2.7", False),
        ):  # fmt: skip
            with Wire(broker) as wire:
                wire.send_raw(f"PROXY TCP4 {host} 192.0.2.9 40000 5672\r\n".encode())
                if is_accepted:
                    wire.open(user=user)
                    continue
                with pytest.raises(Refused) as caught:
                    wire.open(user=user)
                assert caught.value.code == 403
        wait_until(lambda: "it may connect from this machine only" in broker.log_text())
