"""move_messages: to another queue, or each to where it died; in order, once, and what stays."""

from typing import Any

import pytest

from penstock.broker.operations import messages
from penstock.errors import AMQPError
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig


def bodies(rig: OperationRig, queue: str) -> list[bytes]:
    return [one["body"] for one in rig.result("peek", queue=queue, count=100)["messages"]]


def rig_with(**arguments: object) -> OperationRig:
    rig = OperationRig()
    rig.result("declare_queue", queue="from")
    rig.result(
        "declare_queue",
        queue="to",
        arguments={k.replace("_", "-"): v for k, v in arguments.items()},
    )
    return rig


def moved(rig: OperationRig, **args: object) -> Any:
    return rig.result("move_messages", queue="from", **args)


def test_messages_move_in_their_order_and_stay_after_a_restart() -> None:
    rig = rig_with()
    rig.put("to", b"there")
    rig.put("from", b"a", b"b", b"c", b"x" * 100_000)
    assert moved(rig, to="to", count=2) == {
        "moved": 2, "by_queue": {"to": 2}, "stays": 0, "why": ""
    }  # fmt: skip
    assert moved(rig, to="to", dry_run=True)["moved"] == 2
    assert bodies(rig, "from") == [b"c", b"x" * 100_000]
    assert moved(rig, to="to")["moved"] == 2
    assert moved(rig, to="to")["moved"] == 0
    rig.restart()
    assert bodies(rig, "from") == []
    assert bodies(rig, "to") == [b"there", b"a", b"b", b"c", b"x" * 100_000]


def test_a_full_queue_takes_no_more_and_the_rest_keeps_its_place() -> None:
    rig = rig_with(x_max_length=2, x_overflow="reject-publish")
    rig.put("from", b"a", b"b", b"c", b"d")
    found = moved(rig, to="to")
    assert found == {"moved": 2, "by_queue": {"to": 2}, "stays": 1, "why": "queue 'to' is full"}
    assert bodies(rig, "from") == [b"c", b"d"]
    assert bodies(rig, "to") == [b"a", b"b"]


def test_dead_letters_go_back_to_where_they_died() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="dead")
    for name in ("one", "two"):
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        rig.result("declare_queue", queue=name, arguments=dead)
    rig.put("one", b"1a", b"1b", expiration="600000")
    rig.put("two", b"2a")
    rig.put("dead", b"no dead letter")
    for name in ("one", "two"):
        queue = rig.vhost.table.find_messages(name, None, "")
        while (delivery := queue.amq.fetch()) is not None:
            queue.amq.reject(delivery.tag)
    rig.turn()
    would = rig.result("move_messages", queue="dead", dry_run=True)
    assert would["by_queue"] == {"one": 2, "two": 1}
    assert len(bodies(rig, "dead")) == 4
    assert rig.result("move_messages", queue="dead") == {
        "moved": 3, "by_queue": {"one": 2, "two": 1}, "stays": 1,
        "why": "a message did not die in any queue: it has no x-death",
    }  # fmt: skip
    assert bodies(rig, "dead") == [b"no dead letter"]
    assert bodies(rig, "one") == [b"1a", b"1b"]
    assert bodies(rig, "two") == [b"2a"]
    (message, _) = rig.result("peek", queue="one", count=2)["messages"]
    assert "expiration" not in message["properties"]
    assert message["properties"]["headers"]["x-death"][0]["queue"] == "one"


def test_a_dead_letter_whose_queue_is_gone_stays() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    rig.result("declare_queue", queue="gone", arguments=dead)
    rig.put("gone", b"m")
    queue = rig.vhost.table.find_messages("gone", None, "")
    delivery = queue.amq.fetch()
    assert delivery is not None
    queue.amq.reject(delivery.tag)
    rig.result("delete_queue", queue="gone")
    found = rig.result("move_messages", queue="dead")
    assert (found["moved"], found["stays"]) == (0, 1)
    assert "there is no queue 'gone'" in found["why"]
    assert bodies(rig, "dead") == [b"m"]


@pure_only
def test_only_what_matches_moves_and_the_others_keep_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_with()
    for n, body in enumerate((b"red 0", b"blue 1", b"red 2", b"blue 3" + b"x" * 100_000)):
        properties = {"headers": {"n": n}, "delivery_mode": 2}
        rig.result("publish", routing_key="from", properties=properties, bodies=[body])
    assert moved(rig, to="to", body="red", dry_run=True)["moved"] == 2
    assert moved(rig, to="to", key="fro", headers={"n": None, "x": None})["moved"] == 0
    assert moved(rig, to="to", headers={"n": "2"}) == {
        "moved": 1, "by_queue": {"to": 1}, "stays": 0, "why": ""
    }  # fmt: skip
    assert moved(rig, to="to", body="xxx", key="from", count=1)["moved"] == 1
    assert [body[:5] for body in bodies(rig, "from")] == [b"red 0", b"blue "]
    assert [body[:6] for body in bodies(rig, "to")] == [b"red 2", b"blue 3"]
    assert moved(rig, to="to", body="none", dry_run=True)["moved"] == 0
    for is_dry in (True, False):
        monkeypatch.setattr(messages, "STAYING_MAX", 1)
        found = moved(rig, to="to", body="blue", dry_run=is_dry)
        assert (found["moved"], found["stays"]) == (0, 1)
        assert "was not looked at" in found["why"]
        monkeypatch.undo()
    rig.restart()
    assert [body[:5] for body in bodies(rig, "from")] == [b"red 0", b"blue "]


def test_only_what_is_chosen_by_its_tag_moves() -> None:
    rig = rig_with()
    rig.put("from", b"a", b"b", b"c", b"d")
    found = rig.result("browse_messages", queue="from", count=4)["messages"]
    tags = [found[1]["tag"], found[3]["tag"]]
    assert moved(rig, to="to", tags=tags, dry_run=True)["moved"] == 2
    assert moved(rig, to="to", tags=[*tags, 10**9]) == {
        "moved": 2, "by_queue": {"to": 2}, "stays": 0, "why": ""
    }  # fmt: skip
    assert bodies(rig, "from") == [b"a", b"c"]
    assert bodies(rig, "to") == [b"b", b"d"]
    assert moved(rig, to="to", tags=tags)["moved"] == 0


@pytest.mark.parametrize("to", ["from", "none"])
def test_where_it_cannot_move(to: str) -> None:
    rig = rig_with()
    error: AMQPError = rig.refusal("move_messages", queue="from", to=to)
    assert error.code == (406 if to == "from" else 404)


def deleted(rig: OperationRig, **args: object) -> Any:
    return rig.result("delete_messages", queue="from", **args)


def test_the_first_messages_are_deleted_and_the_rest_is_there_after_a_restart() -> None:
    rig = rig_with()
    rig.put("from", b"a", b"b", b"c", b"x" * 100_000)
    gone = {"deleted": 2, "stays": 0, "why": ""}
    assert deleted(rig, count=2, dry_run=True) == gone
    assert len(bodies(rig, "from")) == 4
    assert deleted(rig, count=2) == gone
    assert bodies(rig, "from") == [b"c", b"x" * 100_000]
    rig.restart()
    assert bodies(rig, "from") == [b"c", b"x" * 100_000]
    assert deleted(rig) == gone
    rig.restart()
    assert bodies(rig, "from") == []


def test_what_is_old_is_deleted() -> None:
    rig = rig_with()
    rig.put("from", b"1", b"2")
    rig.tick(100.0)
    rig.put("from", b"3")
    assert deleted(rig, older=90, dry_run=True) == {"deleted": 2, "stays": 0, "why": ""}
    assert deleted(rig, older=90)["deleted"] == 2
    assert bodies(rig, "from") == [b"3"]
    assert deleted(rig, older=90)["deleted"] == 0


def test_only_what_is_meant_is_deleted_and_makes_no_dead_letters() -> None:
    rig = OperationRig()
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "to"}
    rig.result("declare_queue", queue="to")
    rig.result("declare_queue", queue="from", arguments=dead)
    rig.put("from", b"a1", b"b", b"a2", b"c", b"a3")
    tag = rig.result("browse_messages", queue="from", body="c")["messages"][0]["tag"]
    assert deleted(rig, tags=[tag])["deleted"] == 1
    assert deleted(rig, body="a", count=2)["deleted"] == 2
    assert deleted(rig, tags=[tag])["deleted"] == 0
    rig.turn()
    assert bodies(rig, "from") == [b"b", b"a3"]
    assert bodies(rig, "to") == []


def test_a_stream_and_a_queue_that_is_not_there_have_no_messages_to_delete() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="log", arguments={"x-queue-type": "stream"})
    assert rig.refusal("delete_messages", queue="log").code == 540
    assert rig.refusal("delete_messages", queue="none").code == 404
