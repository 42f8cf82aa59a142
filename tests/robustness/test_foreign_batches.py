"""A user attacks another user's exactly-once batches, over HTTP and over AMQP, and changes nothing.

The victim stages and commits all the while; a user with write permission on a queue of their own
aborts, commits, releases and stages for the victim's query.
"""

import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import ClientChannel, connect
from penstock.errors import ChannelError
from tests.helpers.http_caller import HttpCaller, meta, ready_bodies
from tests.helpers.live_broker import LiveBroker, is_gone, wait_until

pytestmark = pytest.mark.real
QUERY = "late"
VICTIM, EVE = "victim", "eve"
FAR = (1 << 63) - 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    data = tmp_path_factory.mktemp("batches") / "data"
    with LiveBroker(data, has_http=True) as live:
        for user, write in ((VICTIM, "^late$"), (EVE, "^mine$")):
            live.control("add_user", name=user, password=user)
            live.control(
                "set_permissions", "/", user=user, configure="", write=write, read=""
            )  # fmt: skip
        for queue in ("late", "mine"):
            live.control("declare_queue", "/", queue=queue, durable=True, arguments={})
        yield live
        assert live.stop() == 0, live.log_text()


@pytest.fixture
def victim(broker: LiveBroker) -> Iterator[HttpCaller]:
    with HttpCaller(broker, VICTIM) as caller:
        yield caller
        broker.control("purge_queue", "/", queue="late")
        broker.control("release_query", "/", query=QUERY)


@pytest.fixture
def eve(broker: LiveBroker) -> Iterator[HttpCaller]:
    with HttpCaller(broker, EVE) as caller:
        yield caller


@pytest.fixture
def channel(broker: LiveBroker) -> Iterator[ClientChannel]:
    """Eve's."""
    with connect(f"amqp://{EVE}:{EVE}@{broker.host}:{broker.port}/") as connection:
        yield connection.channel()


ATTEMPTS = itertools.count()


def stage(victim: HttpCaller, batch: int, *bodies: bytes) -> dict[str, Any]:
    """A token of these rows, under an attempt name of its own."""
    page = [(body, meta("", "late")) for body in bodies]
    return victim.stage(QUERY, batch, [page], attempt=f"0-{next(ATTEMPTS):08x}")


def attack(eve: HttpCaller, channel: ClientChannel, batch: int, token: dict[str, Any]) -> None:
    """Whatever Eve may try: all of it is a 403."""
    address = f"staging/%2F/late/{batch}"
    mine = {"target": {"queue": "mine"}}
    far = f"staging/%2F/late/{FAR}"
    for method, at, body in (
        ("DELETE", address, None), ("DELETE", f"{address}?target=mine", None),
        ("DELETE", "staging/%2F/late", None),
        ("DELETE", "staging/%2F/late?force=true", None),
        ("PUT", address, {**mine, "tokens": [token]}), ("PUT", address, {**mine, "tokens": []}),
        ("PUT", far, {**mine, "tokens": []}),
        ("PUT", far, {**mine, "tokens": [], "previous": FAR - 1}),
        ("PUT", f"staging/%2F/late/{batch + 1}", {"tokens": [], "previous": batch}),
        ("POST", f"{address}/9/0-00000000?target=mine", b""),
        ("POST", f"{address}/9/0-00000000", b""),
    ):  # fmt: skip
        status, answer = eve.ask(method, at, body)
        assert status == 403, (method, at, body, answer)
    for op, args in (
        ("abort_batch", {"batch": batch}), ("release_query", {"force": True}),
        ("claim_query", {"target": {"queue": "mine"}}),
        ("commit_batch", {"batch": FAR, "pages": [], **mine}),
        ("commit_batch", {"batch": batch, "pages": token["pages"], **mine}),
        ("commit_batch", {"batch": batch + 1, "pages": [], "previous": batch, **mine}),
    ):  # fmt: skip
        with pytest.raises(ChannelError) as caught:
            channel.call(op, {"query": QUERY, **args}).result(120)
        assert caught.value.code == 403, (op, args, caught.value)


def test_a_foreign_query_can_be_neither_ended_nor_read_nor_continued(
    broker: LiveBroker, victim: HttpCaller, eve: HttpCaller, channel: ClientChannel
) -> None:
    target = {"queue": "late"}
    for batch in range(2):
        body = b"batch %d" % batch
        token = stage(victim, batch, body)
        attack(eve, channel, batch, token)
        assert victim.commit(QUERY, batch, target, [token])["status"] == "committed"
        attack(eve, channel, batch, token)
        assert victim.commit(QUERY, batch, target, [token])["status"] == "already done"
    assert ready_bodies(broker, "late") == [b"batch 0", b"batch 1"]
    assert ready_bodies(broker, "mine") == []
    assert eve.json("GET", "staging/%2F") == []
    assert [row["owner"] for row in victim.json("GET", "staging/%2F")] == [VICTIM]


def test_staged_rows_belong_to_their_owner_after_a_restart_too(
    broker: LiveBroker, victim: HttpCaller, eve: HttpCaller
) -> None:
    token = stage(victim, 0, b"before")
    (row,) = broker.control("list_vhosts")
    os.kill(row["pid"], signal.SIGKILL)
    wait_until(lambda: is_gone(row["pid"]), "the end of the vhost's process")
    for method, address in (
        ("DELETE", "staging/%2F/late/0"),
        ("POST", "staging/%2F/late/0/9/0-00000000"),
    ):
        assert eve.ask(method, address, None if method == "DELETE" else b"")[0] == 403
    told = victim.commit(QUERY, 0, {"queue": "late"}, [token])
    assert told == {"status": "committed", "batch": 0}


def test_the_owner_cannot_be_silently_skipped(broker: LiveBroker, victim: HttpCaller) -> None:
    """Numbers far ahead, batches without rows: nothing makes other rows "already done"."""
    target = {"queue": "late"}
    told = victim.commit(QUERY, 0, target, [stage(victim, 0, b"0")])
    assert told["status"] == "committed"
    for batch in (1, FAR):
        address = f"staging/%2F/late/{batch}"
        victim.json("PUT", address, {"target": target, "tokens": []}, 400)
    body = {"target": target, "tokens": [], "previous": FAR - 1}
    victim.json("PUT", f"staging/%2F/late/{FAR}", body, 400)
    for batch, bodies in ((0, (b"other",)), (0, (b"0", b"0"))):
        token = stage(victim, batch, *bodies)
        body = {"target": target, "tokens": [token]}
        told = victim.json("PUT", "staging/%2F/late/0", body, 409)
        assert told["error"] == "batch_conflict"
        assert "Nothing was written" in told["reason"]
    assert ready_bodies(broker, "late") == [b"0"]


def test_a_user_whose_permission_was_taken_away_commits_nothing(
    broker: LiveBroker, victim: HttpCaller
) -> None:
    token = stage(victim, 0, b"0")
    none = {"user": VICTIM, "configure": "", "read": ""}
    broker.control("set_permissions", "/", write="^other$", **none)
    body = {"target": {"queue": "late"}, "tokens": [token]}
    victim.json("PUT", "staging/%2F/late/0", body, 403)
    broker.control("set_permissions", "/", write="^late$", **none)
    assert victim.commit(QUERY, 0, {"queue": "late"}, [token])["status"] == "committed"
