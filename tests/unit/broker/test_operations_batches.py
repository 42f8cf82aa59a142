"""Batches by operations: commits, replays, who waits for whom, refusals, release, sweeping."""

import gc
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker import background_tasks
from penstock.broker.exactly_once import batches
from penstock.broker.exactly_once.batches import CommitRequest, batch_manager
from penstock.storage.pages.batches import StagedPage, pack_key, pack_page
from tests.helpers.builds import pure_only
from tests.helpers.staged_rig import QUERY, StagedRig, plain
from tests.helpers.steps import cost_of

LINES_MAX = 150_000  # of one step: some 10 ms uncompiled


@pytest.fixture
def rig() -> StagedRig:
    rig = StagedRig()
    rig.result("declare_queue", queue="q")
    return rig


def told(rig: StagedRig, kind: str) -> list[str]:
    return [text for k, text in rig.events if k == kind]


# ---- commits -------------------------------------------------------------------------------------


def test_a_commit_is_answered_and_its_messages_arrive(rig: StagedRig) -> None:
    tokens = rig.stage(0, plain("q", b"a", b"b"), plain("q", b"c"))
    assert rig.bodies() == []
    assert rig.committed(0, tokens) == {"status": "committed", "batch": 0}
    assert rig.bodies() == [b"a", b"b", b"c"]
    row = rig.row()
    assert (row["batch"], row["is_done"], row["rows"], row["pages"]) == (0, True, 3, 2)
    assert (row["target"], row["waits_for"]) == ({"queue": "q"}, "")


def test_a_commit_that_is_repeated_writes_nothing(rig: StagedRig) -> None:
    tokens = rig.stage(3, plain("q", b"a"))
    rig.committed(3, tokens)
    assert rig.committed(3, tokens) == {"status": "already done", "batch": 3}
    rig.restart()
    assert rig.committed(3, tokens) == {"status": "already done", "batch": 3}
    assert rig.bodies() == [b"a"]


def test_commits_are_counted_for_metrics(rig: StagedRig) -> None:
    tokens = rig.stage(0, plain("q", b"a", b"b"), plain("q", b"c"))
    rig.committed(0, tokens)
    rig.committed(0, tokens)
    found = rig.result("metrics")["values"]
    assert (found["batches_committed_total"], found["batches_repeated_total"]) == (1, 1)
    assert (found["batch_rows_total"], found["batches_waiting"]) == (3, 0)
    assert sum(found["batch_commit_seconds"][1:]) == 2


def packed(tokens: list[dict[str, Any]]) -> bytes:
    """The pages as the HTTP process passes them."""
    return b"".join(
        pack_page(
            StagedPage(one["name"], int(one["page_id"], 16), one["rows"], one["bytes"]),
            int(one["checksum"], 16),
        )
        for one in tokens
    )


def test_pages_and_keys_may_be_packed(rig: StagedRig) -> None:
    """They are the same batch as lists, and an unroutable key is found."""
    tokens = rig.stage(0, plain("q", b"a"), plain("q", b"b"))
    more: dict[str, Any] = {"target": {"exchanges": [""]}, "keys": pack_key("", "q") * 600}
    pages: Any = packed(tokens)
    bad = rig.commit(0, pages, target={"exchanges": [""]}, keys=pack_key("", "nobody"))
    rig.roll()
    assert "no queue gets it: key 'nobody'" in bad.replies[0].text
    assert rig.committed(0, pages, **more) == {"status": "committed", "batch": 0}
    assert rig.bodies() == [b"a", b"b"]
    more["keys"] = [["", "q"]]
    assert rig.committed(0, tokens, **more) == {"status": "already done", "batch": 0}
    assert rig.committed(0, pages, **more) == {"status": "already done", "batch": 0}


@pytest.mark.parametrize(
    ("pages", "keys"),
    [(b"\0", b""), (b"\0\5ab", b""), (b"\0\1\xff" + b"1" * 24, b""), (b"\0\1a" + bytes(24), b""),
     (None, b"\5ab"), (None, b"\1a\5ab"), (None, b"\1\xff\0")],
)  # fmt: skip
def test_what_is_packed_wrongly_is_refused(
    rig: StagedRig, pages: bytes | None, keys: bytes
) -> None:
    given: Any = packed(rig.stage(0, plain("q", b"a"))) if pages is None else pages
    asked = rig.commit(0, given, keys=keys)
    rig.roll()
    assert asked.replies[0].code == 406
    assert "of a commit" in asked.replies[0].text or "has no rows" in asked.replies[0].text
    assert rig.bodies() == []


def test_many_pages_and_keys_are_looked_at_in_slices(
    rig: StagedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = {"unpack_pages": 0, "unpack_keys": 0}
    for name in most:

        def counted(data: bytes, at: int, count: int, name: str = name, real: Any = None) -> Any:
            found = real(data, at, count)
            most[name] = max(most[name], len(found[0]))
            return found

        real = getattr(batches, name)
        monkeypatch.setattr(
            batches, name, lambda *args, name=name, real=real: counted(*args, name=name, real=real)
        )
    page = pack_page(StagedPage("0.0.0-a.0.page", 1, 1, 1), 1)
    commit: Any = {"pages": page * 5000, "keys": pack_key("", "q") * 5000}
    asked = rig.commit(0, commit["pages"], target={"exchanges": [""]}, keys=commit["keys"])
    rig.roll()
    assert "staged page '0.0.0-a.0.page'" in asked.replies[0].text  # it is not there
    assert most == {"unpack_pages": batches.PAGES_SLICE, "unpack_keys": batches.KEYS_SLICE}


def test_a_commit_that_is_over_is_not_kept(rig: StagedRig) -> None:
    """No timer knows it for half a minute: anybody may ask for many that are refused."""
    pages: Any = pack_page(StagedPage("0.0.0-a.0.page", 1, 1, 1), 1) * 100
    asked = [rig.commit(0, pages, keys=pack_key("", "q")) for _ in range(3)]
    rig.roll()
    assert [one.replies[0].code for one in asked] == [406] * 3
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, CommitRequest)]


def test_what_a_user_has_waiting_is_bounded(
    rig: StagedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait while the batch before them cannot go on."""
    rig.result("declare_queue", queue="gone")
    monkeypatch.setattr(batches, "USER_WAITING_BYTES_MAX", 3 * batches.REQUEST_BYTES)
    eve, ann = (Identity(name, frozenset(), "", ".*", "") for name in ("eve", "ann"))
    pages = [plain("gone", b"a")] * 3
    first = rig.commit(0, rig.stage(0, *pages), target={"queue": "gone"}, user=eve)
    while not list(batch_manager(rig.vhost).all()):
        rig.vhost.turn()
        rig.vhost.completed()
    rig.vhost.delete_queue(rig.vhost.table.find_queue("gone"))
    waiting = [first]
    while not waiting[-1].has_come:
        assert len(waiting) < 10
        waiting.append(rig.commit(1, [], user=eve))
    assert "commits of user 'eve' that wait take" in waiting.pop().replies[0].text
    assert len(waiting) > 1
    other = rig.commit(0, [], "another", previous=-1, user=ann)
    rig.roll()
    assert other.result["status"] == "committed"
    assert not [one for one in waiting if one.has_come]
    rig.tick(31)
    assert [one.replies[0].code for one in waiting] == [506] * len(waiting)
    assert not rig.commit(1, [], user=eve).has_come


def test_two_commits_of_one_batch_at_once(rig: StagedRig) -> None:
    tokens = rig.stage(0, plain("q", b"a"))
    asked = [rig.commit(0, tokens) for _ in range(2)]
    rig.roll()
    assert [one.result["status"] for one in asked] == ["committed", "already done"]
    assert rig.bodies() == [b"a"]


def test_an_answer_is_durable(rig: StagedRig) -> None:
    tokens = rig.stage(0, plain("q", b"a"))
    asked = rig.commit(0, tokens)
    again = rig.commit(0, tokens)
    while not (asked.has_come or again.has_come):
        rig.vhost.turn()
        rig.vhost.engine.poll()
    rig.fs = rig.fs.crash("lost")
    rig.start()
    rig.roll()
    assert rig.bodies() == [b"a"]


def test_batches_of_one_query_follow_one_another(rig: StagedRig) -> None:
    bodies = [b"%d" % i for i in range(600)]
    first = rig.commit(0, rig.stage(0, plain("q", *bodies[:300])))
    second = rig.commit(1, rig.stage(1, plain("q", *bodies[300:])))
    other = rig.commit(0, rig.stage(0, plain("q", b"x"), query="other"), query="other")
    rig.roll()
    assert [one.result["status"] for one in (first, second, other)] == ["committed"] * 3
    found = rig.bodies()
    assert sorted(found) == sorted([*bodies, b"x"])
    assert [body for body in found if body != b"x"] == bodies


def test_a_commit_waits_for_the_batch_before_but_not_for_ever(rig: StagedRig) -> None:
    rig.result("declare_exchange", exchange="x")
    rig.result("bind_queue", queue="q", exchange="x", routing_key="k")
    target = {"exchanges": ["x"]}
    rig.committed(0, rig.stage(0, plain("k", b"a", exchange="x")), target=target)
    tokens = rig.stage(1, plain("k", b"b", exchange="x"))
    rig.commit(1, tokens, target=target)
    rig.turn()
    rig.result("delete_exchange", exchange="x")
    # Whatever came of batch 1 by now, batch 2 waits for something that is never done.
    stuck = rig.stage(2, plain("k", b"c", exchange="y"))
    rig.result("declare_exchange", exchange="y")
    rig.result("bind_queue", queue="q", exchange="y", routing_key="k")
    rig.roll()
    rig.result("declare_exchange", exchange="x")
    rig.roll()
    rig.tick(2)
    asked = rig.commit(2, stuck, target={"exchanges": ["y"]})
    rig.roll()
    assert asked.result["status"] == "committed"


def test_a_commit_behind_one_that_cannot_go_on_is_refused_later(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="gone")
    rig.commit(0, rig.stage(0, *[plain("gone", b"a")] * 3), target={"queue": "gone"})
    while not list(batch_manager(rig.vhost).all()):
        rig.vhost.turn()
        rig.vhost.completed()
    rig.vhost.delete_queue(rig.vhost.table.find_queue("gone"))
    asked = rig.commit(1, rig.stage(1, plain("q", b"b")))
    rig.roll()
    assert not asked.has_come
    assert "does not exist any more" in rig.row()["waits_for"]
    rig.tick(31)
    error = asked.replies[0]
    assert error.code == 506
    assert "batch 0 is at page" in error.text
    assert "does not exist any more" in error.text


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"queue": "nowhere"}, 404),
        ({"queue": "t"}, 406),
        ({"exchanges": ["nowhere"]}, 404),
        ({"exchanges": ["inner"]}, 403),
        ({"queue": "q", "dead_letter_to": "nowhere"}, 404),
        ({"queue": "q", "exchanges": ["amq.topic"]}, 406),
        ({"queue": 5}, 406),
        ({"exchange": "amq.topic"}, 406),
    ],
)
def test_a_target_that_cannot_be(rig: StagedRig, target: object, code: int) -> None:
    rig.result("declare_queue", queue="t", durable=False)
    rig.result("declare_exchange", exchange="inner", internal=True)
    asked = rig.commit(0, rig.stage(0, plain("q", b"a")), target=target)
    rig.roll()
    assert asked.replies[0].code == code
    assert rig.result("list_batches") == []


def test_pages_that_are_not_what_the_tokens_say(rig: StagedRig) -> None:
    (token,) = rig.stage(0, plain("q", b"a"))
    for changed in (
        {"name": "0.0.0-xx.0.page"}, {"page_id": "0" * 16}, {"rows": 2}, {"bytes": 1 << 20},
        {"page_id": "xyz"}, {"rows": "1"}, {"name": "../../x.page"}, {"name": "1.0.0-aa.0.page"},
    ):  # fmt: skip
        asked = rig.commit(0, [{**token, **changed}])
        rig.roll()
        assert asked.replies[0].code == 406, changed
    assert rig.committed(0, [token])["status"] == "committed"
    assert rig.bodies() == [b"a"]


def test_mandatory_keys_must_lead_somewhere(rig: StagedRig) -> None:
    rig.result("bind_queue", queue="q", exchange="amq.topic", routing_key="a.*")
    tokens = rig.stage(0, plain("a.b", b"a", exchange="amq.topic"))
    target = {"exchanges": ["amq.topic"]}
    refused = {"b.c": 312, "a.b": 0}
    for key, code in refused.items():
        asked = rig.commit(0, tokens, target=target, keys=[["amq.topic", key]])
        rig.roll()
        assert getattr(asked.replies[0], "code", 0) == code
    asked = rig.commit(1, tokens, target=target, keys=[["amq.direct", "a.b"]])
    rig.roll()
    assert asked.replies[0].code == 406
    asked = rig.commit(1, tokens, target=target, keys=[5])
    assert asked.replies[0].code == 406


def test_who_may_not_write(rig: StagedRig) -> None:
    client = rig.client(Identity("ann", frozenset(), "", "^mine", ".*"))
    channel = client.open().handler.channels[1]
    tokens = rig.stage(0, plain("q", b"a"))
    told = rig.result("claim_query", query=QUERY, target={"queue": "q"})
    assert told == {"owner": "operator", "partitions": 1}
    more = {"query": QUERY, "batch": 0, "pages": tokens}
    for target in ({"queue": "q"}, {"exchanges": ["amq.topic"]}, {"exchanges": [""]}):
        assert rig.refusal("commit_batch", channel, target=target, **more).code == 403
    for op, args in (
        ("abort_batch", {"query": QUERY, "batch": 0}), ("release_query", {"query": QUERY}),
    ):  # fmt: skip
        assert rig.refusal(op, channel, **args).code == 403


def test_who_sees_which_batches(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a")))
    for tags, write, count in (((), "^mine", 0), ((), "^q$", 1), (("monitoring",), "", 1)):
        client = rig.client(Identity("ann", frozenset(tags), "", write, ".*"))
        channel = client.open().handler.channels[1]
        assert len(rig.result("list_batches", channel)) == count


# ---- the end of a query --------------------------------------------------------------------------


def test_abort_deletes_what_was_not_decided(rig: StagedRig) -> None:
    tokens = rig.stage(0, plain("q", b"a"))
    assert rig.result("abort_batch", query=QUERY, batch=0) == {"aborted": True}
    rig.roll()
    asked = rig.commit(0, tokens)
    rig.roll()
    assert asked.replies[0].code == 406
    tokens = rig.stage(1, plain("q", b"b"))
    rig.committed(1, tokens)
    assert rig.result("abort_batch", query=QUERY, batch=1) == {"aborted": False}


def test_a_query_that_is_released_is_forgotten(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a")))
    assert rig.result("release_query", query=QUERY) == {"batch": 0}
    assert rig.result("release_query", query=QUERY) == {"batch": None}
    rig.restart()
    assert rig.result("list_batches") == []
    assert rig.committed(0, rig.stage(0, plain("q", b"b")))["status"] == "committed"
    assert rig.bodies() == [b"a", b"b"]


def test_a_query_whose_batch_is_on_its_way_is_released_by_force(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="gone")
    asked = rig.commit(0, rig.stage(0, plain("gone", b"a")), target={"queue": "gone"})
    while not list(batch_manager(rig.vhost).all()):
        rig.vhost.turn()
        rig.vhost.completed()
    rig.vhost.delete_queue(rig.vhost.table.find_queue("gone"))
    rig.roll()
    assert rig.refusal("release_query", query=QUERY).code == 406
    assert rig.result("release_query", query=QUERY, force=True) == {"batch": 0}
    rig.roll()
    assert asked.result["status"] == "committed"  # nothing is left to wait for
    assert rig.committed(0, rig.stage(0, plain("q", b"b")))["status"] == "committed"
    assert rig.bodies() == [b"b"]


def test_zombies_are_swept_by_the_hour(rig: StagedRig) -> None:
    now_us = rig.clock.wall_us()
    old = rig.stage(7, plain("q", b"a"), time_us=now_us - 86_000_000_000)
    young = rig.stage(8, plain("q", b"b"), time_us=now_us)
    rig.tick(3700)
    rig.roll()
    asked = rig.commit(7, old)
    rig.roll()
    assert asked.replies[0].code == 406
    assert rig.committed(8, young)["status"] == "committed"


def test_a_query_of_a_batch_write_is_forgotten_in_time(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a"), query="job-1"), query="job-1")
    rig.committed(0, rig.stage(0, plain("q", b"b")))
    rig.tick(3700)
    assert len(rig.result("list_batches")) == 2
    rig.tick(86_400)
    assert [row["query"] for row in rig.result("list_batches")] == [QUERY]


def test_a_target_is_checked_without_a_batch(rig: StagedRig) -> None:
    """As a sink asks when it starts: nothing is claimed or staged."""
    assert rig.result("check_target", target={"queue": "q"}) == {"target": {"queue": "q"}}
    rig.result("check_target", target={"exchanges": ["amq.topic"]})
    for target, code in (
        ({"queue": "nope"}, 404),
        ({"exchanges": ["amq.topic", "nope"]}, 404),
        ({"queue": "q", "dead_letter_to": "nope"}, 404),
        ({}, 406),
    ):
        assert rig.refusal("check_target", target=target).code == code
    assert rig.result("list_batches") == []


@pure_only  # lines are counted
def test_keys_whose_way_is_long_are_checked_in_slices(
    rig: StagedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All patterns are active at each word of such a key, so each takes some 25,000 steps."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    for i in range(1, 1 << 8):
        pattern = ".".join("#" if bit == "1" else "*" for bit in format(i, "08b"))
        rig.vhost.bind_queue("q", "amq.topic", pattern)
    keys = [["amq.topic", ".".join([str(n), *["w"] * 60])] for n in range(3)]
    target = {"exchanges": ["amq.topic"]}
    asked = rig.commit(0, [], target=target, keys=[*keys, ["amq.topic", "w"]], previous=-1)
    turns = 0
    while not asked.has_come:
        assert cost_of(rig.vhost.turn).lines < LINES_MAX
        rig.vhost.completed()
        turns += 1
        assert turns < 2000
    assert turns > 50
    assert asked.result == {"status": "committed", "batch": 0}
    asked = rig.commit(1, [], target=target, keys=[*keys, ["", "none"]], previous=0)
    rig.roll()
    assert "not among those of the target" in asked.replies[0].text
