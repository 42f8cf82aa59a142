"""Messages of a queue over HTTP: what of the address becomes an argument of the operation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

ADDRESS = "/api/penstock/queues/%2F/orders/messages"
NOTHING = {"messages": [], "after": None, "scanned": 0, "is_end": True}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.users.take(users_facts(boss=EVERYTHING))
    rig.node.answers["browse_messages"] = NOTHING
    yield rig
    rig.close()


def test_filters_become_arguments(rig: HttpRig) -> None:
    query = "count=5&after=7&skip=1&key=k%20y&header=kind:fruit&header=n&body=a:b&truncate=9"
    reply = rig.ask(f"{ADDRESS}?{query}&encoding=base64&unknown=1", user="boss")
    assert (reply.status, reply.json()) == (200, NOTHING)
    ((op, vhost, args),) = rig.node.asked
    assert (op, vhost) == ("browse_messages", "/")
    args = {name: value for name, value in args.items() if name != "as_user"}
    assert args == {
        "queue": "orders", "count": 5, "after": 7, "skip": 1, "key": "k y", "body": "a:b",
        "headers": {"kind": "fruit", "n": None}, "truncate": 9, "encoding": "base64",
    }  # fmt: skip


@pytest.mark.parametrize("given", ["x", "-1", "", "1.5", "9" * 30, "%D9%A3"])
def test_what_is_not_a_number(rig: HttpRig, given: str) -> None:
    reply = rig.ask(f"{ADDRESS}?count={given}", user="boss")
    assert (reply.status, reply.json()["error"]) == (400, "bad_request")
    assert not rig.node.asked
