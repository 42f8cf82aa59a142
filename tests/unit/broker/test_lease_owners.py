"""One running program owns a reader: a second is told, one that was lost is fenced."""

import pytest

from penstock.access.permissions import Identity
from penstock.broker.exactly_once import leases
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig
from tests.helpers.steps import cost_of

KEY = {"queue": "q", "reader": "r"}


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    rig.put("q", *[b"%d" % n for n in range(10)])
    return rig


def own(rig: OperationRig, owner: str, *, is_held: bool = False, seconds: int = 15) -> bool:
    found = rig.result("own_lease", owner=owner, seconds=seconds, is_held=is_held, **KEY)
    return bool(found["is_owner"])


def lease(rig: OperationRig, owner: str | None, messages: int = 2) -> int:
    """How many the reader has then; the code of an error, negative."""
    args = {**KEY, "messages": messages, "bytes": None, "owner": owner}
    asked = rig.ask("lease_queue", **args)
    rig.turn()
    found = asked.replies[0]
    return int(found["head"]) if isinstance(found, dict) else -int(found.code)


def test_a_second_program_is_told_while_the_first_is_heard_of(rig: OperationRig) -> None:
    assert own(rig, "one")
    told = rig.result("own_lease", owner="two", seconds=15, is_held=False, **KEY)
    assert told == {"is_owner": False, "renewals": 1, "expires_s": 15.0}
    rig.tick(14)
    assert own(rig, "one", is_held=True)
    rig.tick(14)
    assert lease(rig, "one") == 2  # which is heard, too
    rig.tick(14)
    told = rig.result("own_lease", owner="two", seconds=15, is_held=False, **KEY)
    assert (told["is_owner"], told["renewals"]) == (False, 3)
    for owner in ("two", ""):
        assert lease(rig, owner) == -405
        for op, more in (("commit_lease", {"offset": 1}), ("release_lease", {})):
            error = rig.refusal(op, owner=owner, **KEY, **more)
            assert error.code == 405
            assert "belongs to another program that runs" in error.text
    assert rig.result("describe_lease", **KEY)["head"] == 2
    assert rig.result("commit_lease", offset=1, owner="one", **KEY) == {"first": 1}


def test_a_program_that_is_not_heard_of_is_followed_and_fenced(rig: OperationRig) -> None:
    assert own(rig, "one")
    lease(rig, "one")
    rig.tick(15)
    assert own(rig, "two")
    assert lease(rig, "one") == -405
    assert not own(rig, "one", is_held=True)
    assert rig.refusal("commit_lease", offset=2, owner="one", **KEY).code == 405
    rig.tick(15)  # also when the other one has gone
    assert not own(rig, "one", is_held=True)
    assert rig.refusal("commit_lease", offset=2, owner="one", **KEY).code == 405
    assert rig.result("describe_lease", **KEY)["first"] == 0
    assert own(rig, "three")
    assert lease(rig, "three") == 4


def test_a_program_that_ends_says_so(rig: OperationRig) -> None:
    assert own(rig, "one")
    assert rig.result("disown_lease", owner="two", **KEY) == {"disowned": False}
    assert not own(rig, "two")
    assert rig.result("disown_lease", owner="one", **KEY) == {"disowned": True}
    assert own(rig, "two")


def test_readers_and_queues_have_owners_of_their_own(rig: OperationRig) -> None:
    assert own(rig, "one")
    more = {"owner": "two", "seconds": 15}
    assert rig.result("own_lease", queue="q", reader="s", **more)["is_owner"]
    assert rig.result("own_lease", queue="p", reader="r", **more)["is_owner"]


def test_without_an_owner_nobody_needs_a_token(rig: OperationRig) -> None:
    assert lease(rig, "") == 2
    assert own(rig, "one")
    rig.tick(15)
    assert lease(rig, "") == 4  # it has gone
    assert own(rig, "one")
    assert rig.result("release_lease", **KEY) == {"messages": 4}  # an operator's


def test_after_a_start_who_held_the_reader_is_first(rig: OperationRig) -> None:
    assert own(rig, "one")
    lease(rig, "one")
    rig.restart()
    told = rig.result("own_lease", owner="two", seconds=15, is_held=False, **KEY)
    assert (told["is_owner"], told["renewals"], told["expires_s"]) == (False, 0, 15.0)
    assert lease(rig, "one") == 4
    rig.tick(5)
    assert own(rig, "one", is_held=True)
    rig.tick(11)
    assert not own(rig, "two")
    rig.restart()
    assert not own(rig, "two")
    rig.tick(15)
    assert own(rig, "two")
    assert not own(rig, "one", is_held=True)


def test_after_a_start_a_reader_without_a_lease_waits_for_nobody(rig: OperationRig) -> None:
    rig.restart()
    assert own(rig, "two")


def test_who_may_not_read_the_queue_owns_nothing(rig: OperationRig) -> None:
    client = rig.client(Identity("eve", frozenset(), "", ".*", "^mine"))
    channel = client.open().handler.channels[1]
    for op, more in (("own_lease", {"seconds": 15}), ("disown_lease", {})):
        assert rig.refusal(op, channel, owner="x", **KEY, **more).code == 403


@pytest.mark.parametrize(
    "given",
    [{"owner": ""}, {"owner": 5}, {"seconds": 0}, {"seconds": 3601}, {"seconds": 1.5},
     {"is_held": 1}, {"owner": "x" * 256}],
)  # fmt: skip
def test_what_is_refused(rig: OperationRig, given: dict[str, object]) -> None:
    right = {"owner": "one", "seconds": 15, "is_held": False}
    assert rig.refusal("own_lease", **KEY, **{**right, **given}).code == 406


def test_so_many_owners_and_no_more(rig: OperationRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "OWNERS_MAX", 2)
    more = {"queue": "q", "owner": "one", "seconds": 15}
    for reader in ("a", "b"):
        assert rig.result("own_lease", reader=reader, **more)["is_owner"]
    assert rig.refusal("own_lease", reader="c", **more).code == 506
    assert rig.result("own_lease", reader="a", **more)["is_owner"]
    rig.tick(15)
    assert rig.result("own_lease", reader="c", **more)["is_owner"]


def test_one_user_has_a_share_of_the_owners(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may own readers still, and what has run out or was given up counts no more."""
    monkeypatch.setattr(leases, "OWNERS_MAX", 4)
    monkeypatch.setattr(leases, "USER_OWNERS_MAX", 2)
    eve, ann = (Identity(name, frozenset(), "", "", ".*").facts() for name in ("eve", "ann"))
    more = {"queue": "q", "seconds": 15}

    def own(user: dict[str, object], reader: str) -> bool:
        asked = rig.result("own_lease", reader=reader, owner=user["name"], as_user=user, **more)
        return bool(asked["is_owner"])

    assert own(eve, "a")
    assert own(eve, "b")
    refused = rig.refusal("own_lease", reader="c", owner="eve", as_user=eve, **more)
    assert refused.code == 506
    assert "user 'eve' owns 2 readers" in refused.text
    assert own(eve, "a")
    assert own(ann, "c")
    disowned = rig.result("disown_lease", queue="q", reader="a", owner="eve", as_user=eve)
    assert disowned == {"disowned": True}
    assert own(eve, "d")
    rig.tick(15)
    assert own(ann, "b")  # which was hers, and is counted for ann now
    assert own(eve, "e")
    assert own(eve, "f")
    assert rig.refusal("own_lease", reader="g", owner="x", as_user=eve, **more).code == 506


# ---- how many have leases ------------------------------------------------------------------------


def test_one_user_has_a_share_of_the_readers_with_leases(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has files and takes some KiB, however little it has leased."""
    monkeypatch.setattr(leases, "READERS_MAX", 4)
    monkeypatch.setattr(leases, "USER_READERS_MAX", 2)
    eve, ann = (Identity(name, frozenset(), "", "", ".*").facts() for name in ("eve", "ann"))

    def lease(user: dict[str, object], reader: str, queue: str = "q") -> str:
        more = {"queue": queue, "reader": reader, "messages": 1, "as_user": user}
        asked = rig.ask("lease_queue", **more)
        rig.turn()
        return "" if isinstance(asked.replies[0], dict) else str(asked.replies[0].text)

    assert [lease(eve, "a"), lease(eve, "b"), lease(eve, "a")] == ["", "", ""]
    assert "user 'eve' has leases of 2 readers, at most 2 are allowed" in lease(eve, "c")
    assert [lease(ann, "d"), lease(ann, "e")] == ["", ""]
    assert "4 readers have leases" in lease({**ann, "name": "bob"}, "f")
    rig.result("release_lease", queue="q", reader="a")
    rig.tick(leases.LOOK_S)
    assert lease(eve, "c") == ""
    rig.tick(leases.LOOK_S)
    assert "user 'eve' has leases of 2 readers" in lease(eve, "g")


def test_leases_of_before_a_start_count_for_who_declared_the_queue(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "USER_READERS_MAX", 1)
    eve = {"as_user": Identity("eve", frozenset(), ".*", ".*", ".*").facts()}
    rig.result("declare_queue", queue="mine", **eve)
    rig.put("mine", b"1", b"2")
    assert rig.result("lease_queue", queue="mine", reader="a", messages=1, **eve)["head"] == 1
    rig.restart()
    assert rig.refusal("lease_queue", queue="mine", reader="b", **eve).code == 506
    assert rig.result("lease_queue", queue="mine", reader="a", **eve)["head"] == 2


@pure_only  # lines are counted
def test_a_purge_does_not_look_at_the_leases_of_other_queues(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="p")
    lines = []
    for count in (2, 100):
        rig.put("q", *[b"x"] * count)
        for n in range(count):
            rig.result("lease_queue", queue="q", reader=f"r{n}", messages=1)
        rig.put("p", b"1", b"2")
        rig.result("lease_queue", queue="p", reader="r", messages=1)
        lines.append(cost_of(lambda: rig.result("purge_queue", queue="p")).lines)
        rig.result("release_lease", queue="p", reader="r")
        rig.result("purge_queue", queue="p")
    assert lines[1] < lines[0] * 1.2


@pure_only  # lines are counted
def test_a_request_does_not_look_at_the_leases_of_others(rig: OperationRig) -> None:
    lines = []
    for count in (2, 200):
        rig.put("q", *[b"x"] * count)
        for n in range(count):
            rig.result("lease_queue", queue="q", reader=f"r{n}", messages=1)
        asked = cost_of(lambda: rig.result("describe_lease", queue="q", reader="r0"))
        lines.append(asked.lines)
    assert lines[0] == lines[1]
