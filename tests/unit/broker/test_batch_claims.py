"""Whose a query is, and which commits are "already done": the same batch, and no other."""

import pytest

from penstock.access.permissions import Identity
from penstock.broker.exactly_once import batches
from penstock.broker.exactly_once.batches import batch_manager
from penstock.storage.pages import staging
from penstock.storage.pages.batches import QueryOwner
from tests.helpers.staged_rig import QUERY, StagedRig, plain

ANN = Identity("ann", frozenset(), "", "^q", "")
BEN = Identity("ben", frozenset(), "", "^q", "")
EVE = Identity("eve", frozenset(), "", "^mine", "")
ROOT = Identity("root", frozenset({"administrator"}), "", "", "")
ALREADY = "already done"


@pytest.fixture
def rig() -> StagedRig:
    rig = StagedRig()
    for name in ("q", "q2", "mine"):
        rig.result("declare_queue", queue=name)
    return rig


def conflict(rig: StagedRig, batch: int, *pages: list[tuple[bytes, bytes]], **more: object) -> str:
    """The 409 of such a commit, which changes nothing."""
    before = rig.result("list_batches"), rig.bodies()
    asked = rig.commit(batch, rig.stage(batch, *pages), **more)
    rig.roll()
    (error,) = asked.replies
    assert error.code == 409, error
    assert (rig.result("list_batches"), rig.bodies()) == before
    assert f"batch {batch} of query 'query-1'" in error.text
    assert "Nothing was written" in error.text
    return str(error.text)


# ---- the same batch again ------------------------------------------------------------------------


def test_the_same_rows_in_other_pages_and_another_order_are_already_done(rig: StagedRig) -> None:
    rig.committed(3, rig.stage(3, plain("q", b"a", b"b"), plain("q", b"c")))
    again = rig.stage(3, plain("q", b"c"), plain("q", b"b", b"a"), partition=4)
    assert rig.committed(3, again) == {"status": ALREADY, "batch": 3}
    rig.restart()
    again = rig.stage(3, plain("q", b"b", b"c", b"a"))
    assert rig.committed(3, again) == {"status": ALREADY, "batch": 3}
    assert rig.bodies() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "rows", [(b"x", b"y"), (b"a", b"b", b"c"), (b"a",), (b"a", b"a"), (b"ab", b"")]
)
def test_other_rows_with_a_known_number_are_an_error(rig: StagedRig, rows: tuple[bytes]) -> None:
    """A fixed queryId and a deleted checkpoint, or two queries with one queryId."""
    rig.committed(0, rig.stage(0, plain("q", b"a", b"b")))
    text = conflict(rig, 0, plain("q", *rows))
    assert "is not the batch of this number that was decided, batch 0 of 2023-" in text
    assert "(2 rows with checksum" in text
    assert f"({len(rows)} rows with checksum" in text
    assert "queryId of its own" in text
    assert "penstock release_query 'query-1'" in text
    rig.restart()
    conflict(rig, 0, plain("q", *rows))


def test_the_header_of_a_row_counts_too(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a", message_id="1")))
    conflict(rig, 0, plain("q", b"a", message_id="2"))


def test_the_same_rows_for_another_target_are_another_batch(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a")))
    text = conflict(rig, 0, plain("q", b"a"), target={"queue": "q2"})
    assert "for queue 'q'" in text
    assert "for queue 'q2'" in text
    target = {"queue": "q", "dead_letter_to": "q2"}
    again = rig.committed(0, rig.stage(0, plain("q", b"a")), target=target)
    assert again["status"] == ALREADY


def test_a_number_below_the_last_is_an_error(rig: StagedRig) -> None:
    """A checkpoint that was copied, deleted, or restored from an older copy."""
    for n in range(3):
        rig.committed(n, rig.stage(n, plain("q", b"%d" % n)))
    text = conflict(rig, 1, plain("q", b"1"))
    assert "is older than the last one, batch 2 of" in text
    assert "restored from an older copy" in text
    conflict(rig, 0, plain("q", b"other"))
    assert rig.bodies() == [b"0", b"1", b"2"]


def test_who_says_so_keeps_what_was_decided_first(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a")))
    again = rig.committed(0, rig.stage(0, plain("q", b"b")), keep_first=True)
    assert again == {"status": ALREADY, "batch": 0}
    conflict(rig, 0, plain("q", b"b"), keep_first=True, target={"queue": "q2"})
    assert rig.bodies() == [b"a"]


def test_a_batch_of_a_version_without_checksums_is_known_by_number_and_target(
    rig: StagedRig,
) -> None:
    rig.vhost.engine.batches.decide(QUERY, 4, '{"queue":"q"}', [])
    for _ in range(2):
        again = rig.committed(4, rig.stage(4, plain("q", b"whatever")), user=BEN)
        assert again == {"status": ALREADY, "batch": 4}
        rig.restart()
    conflict(rig, 4, plain("q", b"a"), target={"queue": "q2"})
    conflict(rig, 3, plain("q", b"a"))
    refused = rig.commit(5, rig.stage(5, plain("q", b"a")), user=EVE, target={"queue": "mine"})
    rig.roll()
    assert refused.replies[0].code == 403
    assert rig.committed(9, rig.stage(9, plain("q", b"b")), user=BEN)["status"] == "committed"
    assert rig.row()["owner"] == ""


# ---- batches that are missing --------------------------------------------------------------------


def test_a_gap_in_the_batches_of_a_sink_that_reports_all_is_an_error(rig: StagedRig) -> None:
    """A broker that was restored from a backup which is older than the checkpoint."""
    rig.committed(0, rig.stage(0, plain("q", b"0")), previous=-1)
    rig.committed(1, rig.stage(1, plain("q", b"1")), previous=0)
    text = conflict(rig, 4, plain("q", b"4"), previous=3)
    assert "follows batch 3, but this broker knows batch 1 of" in text
    assert "batches 2 to 3 are missing here" in text
    assert "restored from a backup" in text
    assert "failOnDataLoss=false" in text
    assert "batch 2 is missing here" in conflict(rig, 3, plain("q", b"3"), previous=2)
    rig.committed(4, rig.stage(4, plain("q", b"4")))
    assert rig.committed(5, rig.stage(5, plain("q", b"5")), previous=4)["status"] == "committed"
    assert rig.bodies() == [b"0", b"1", b"4", b"5"]


def test_a_query_that_the_broker_does_not_know_any_more_is_missed_too(rig: StagedRig) -> None:
    text = conflict(rig, 6, plain("q", b"6"), previous=5)
    assert "this broker knows no batch of this query" in text
    assert "batches 0 to 5 are missing here" in text


def test_a_query_may_begin_late_if_it_is_said(rig: StagedRig) -> None:
    """A target that was added to a running query; from then on gaps are noticed."""
    assert "beginsLate=true" in conflict(rig, 6, plain("q", b"6"), previous=5)
    rig.committed(6, rig.stage(6, plain("q", b"6")), previous=5, begins_late=True)
    text = conflict(rig, 9, plain("q", b"9"), previous=8, begins_late=True)
    assert "batches 7 to 8 are missing here" in text
    assert "beginsLate" not in text
    rig.committed(7, [], previous=6, begins_late=True)
    assert rig.bodies() == [b"6"]


def test_batches_without_rows_are_known_by_their_number(rig: StagedRig) -> None:
    assert rig.committed(0, [], previous=-1) == {"status": "committed", "batch": 0}
    assert rig.committed(0, [], previous=-1) == {"status": ALREADY, "batch": 0}
    assert rig.committed(1, [], previous=0)["status"] == "committed"
    rig.restart()
    assert rig.committed(2, rig.stage(2, plain("q", b"2")), previous=1)["status"] == "committed"
    conflict(rig, 2, previous=1)


def test_a_gap_behind_a_sink_that_did_not_report_all_is_none(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"0")))
    assert rig.committed(4, rig.stage(4, plain("q", b"4")), previous=3)["status"] == "committed"


def test_no_pages_and_numbers_far_ahead_are_refused(rig: StagedRig) -> None:
    """An empty batch of number 2^63-1 made all later ones "already done"."""
    rig.committed(0, rig.stage(0, plain("q", b"0")))
    far = batches.JUMP_MAX
    for batch, more in (
        ((1 << 63) - 1, {}), (1, {}), (far + 1, {"previous": far}), (5, {"previous": 5}),
        (5, {"previous": -2}), (5, {"previous": True}),
    ):  # fmt: skip
        asked = rig.commit(batch, [], **more)
        rig.roll()
        assert asked.replies[0].code == 406
    asked = rig.commit(far + 1, rig.stage(far + 1, plain("q", b"x")))
    rig.roll()
    assert asked.replies[0].code == 406
    first = batches.FIRST_NUMBER_MAX + 1
    asked = rig.commit(first, rig.stage(first, plain("q", b"x"), query="new"), query="new")
    rig.roll()
    assert asked.replies[0].code == 406
    assert rig.committed(far, rig.stage(far, plain("q", b"1")))["status"] == "committed"


# ---- owners --------------------------------------------------------------------------------------


def refused(rig: StagedRig, user: Identity) -> None:
    """The user may do nothing to the query, and changes nothing."""
    before = rig.result("list_batches"), staged(rig)
    calls: list[tuple[str, dict[str, object]]] = [
        ("abort_batch", {"batch": 0}), ("abort_batch", {"batch": 1}),
        ("release_query", {}), ("release_query", {"force": True}),
        ("claim_query", {}), ("claim_query", {"target": {"queue": "mine"}}),
    ]  # fmt: skip
    for batch in (0, 1, 5):
        pages = rig.stage(batch, plain("mine", b"x"), query="another")
        commit = {"batch": batch, "pages": pages, "target": {"queue": "mine"}}
        calls.append(("commit_batch", commit))
    for op, args in calls:
        asked = rig.ask(op, query=QUERY, as_user=user.facts(), **args)
        rig.roll()
        assert asked.replies[0].code == 403, op
        assert "query 'query-1'" in asked.replies[0].text
    assert (rig.result("list_batches"), staged(rig)) == before


def staged(rig: StagedRig) -> list[str]:
    """The names of the query's staged pages."""
    path = staging.query_path(rig.vhost.path, QUERY)
    found = rig.fs.list(path) if rig.fs.exists(path) else []
    return sorted(name for name in found if name.endswith(".page"))


def test_a_query_belongs_to_who_staged_first(rig: StagedRig) -> None:
    claim = {"query": QUERY, "target": {"queue": "q"}, "as_user": ANN.facts()}
    for _ in range(2):
        assert rig.result("claim_query", **claim)["owner"]
    tokens = rig.stage(0, plain("q", b"a"))
    refused(rig, EVE)
    rig.restart()
    refused(rig, EVE)
    assert rig.committed(0, tokens, user=BEN)["status"] == "committed"
    assert rig.row()["owner"] == "ann"
    refused(rig, EVE)
    rig.restart()
    refused(rig, EVE)
    for user in (ANN, BEN, ROOT):
        given = {"query": QUERY, "as_user": user.facts()}
        assert rig.result("claim_query", **given)["owner"]
        assert rig.result("abort_batch", batch=0, **given) == {"aborted": False}
    assert rig.result("release_query", query=QUERY, as_user=ANN.facts()) == {"batch": 0}


def test_rows_that_were_staged_cannot_be_committed_by_others(rig: StagedRig) -> None:
    claim = {"query": QUERY, "as_user": ANN.facts()}
    assert rig.result("claim_query", **claim)["owner"]
    tokens = rig.stage(0, plain("q", b"secret"))
    for _ in range(2):
        asked = rig.commit(0, tokens, user=EVE, target={"queue": "mine"})
        rig.roll()
        assert asked.replies[0].code == 403
        rig.restart()
    assert rig.bodies("mine") == []
    assert rig.committed(0, tokens, user=ANN)["status"] == "committed"
    refused(rig, EVE)


def test_the_first_to_commit_owns_a_query_that_nobody_staged_for(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a")), user=ANN)
    assert rig.row()["owner"] == "ann"
    refused(rig, EVE)
    target = {"exchanges": ["amq.topic", ""]}
    writer = Identity("ann", frozenset(), "", "^amq", "")
    asked = rig.commit(1, rig.stage(1, plain("q", b"b")), user=writer, target=target)
    rig.roll()
    assert asked.result["status"] == "committed"
    refused(rig, EVE)
    assert rig.committed(2, rig.stage(2, plain("q", b"c")), user=BEN)["status"] == "committed"


def test_over_amqp_the_same_permissions_count(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", b"a")), user=ANN)
    channels = {one.name: rig.client(one).open().handler.channels[1] for one in (EVE, BEN)}
    staged = rig.stage(1, plain("q", b"b"))
    commit = {"query": QUERY, "batch": 1, "pages": staged}
    eve, ben = channels["eve"], channels["ben"]
    error = rig.refusal("commit_batch", eve, target={"queue": "mine"}, **commit)
    assert error.code == 403
    for op in ("abort_batch", "release_query"):
        more = {"batch": 1} if op == "abort_batch" else {}
        assert rig.refusal(op, eve, query=QUERY, **more).code == 403
        faked = {**more, "as_user": ANN.facts()}
        assert rig.refusal(op, eve, query=QUERY, **faked).code in (403, 406)
    asked = rig.ask("commit_batch", ben, target={"queue": "q"}, **commit)
    rig.roll()
    assert asked.result["status"] == "committed"
    assert rig.refusal(
        "commit_batch", ben, query=QUERY, batch=1, target={"queue": "q"},
        pages=rig.stage(1, plain("q", b"x")),
    ).code == 409  # fmt: skip
    assert rig.result("release_query", ben, query=QUERY) == {"batch": 1}


def test_a_query_that_is_released_belongs_to_nobody(rig: StagedRig) -> None:
    for user, batch in ((ANN, 0), (EVE, 1)):
        claim = {"query": QUERY, "target": {"queue": f"{user.write[1:]}"}, "as_user": user.facts()}
        assert rig.result("claim_query", **claim)["owner"]
        rig.stage(batch, plain("q", b"never committed"))
        rig.result("release_query", query=QUERY, as_user=user.facts())
        rig.roll()
        assert not rig.fs.exists(staging.query_path(rig.vhost.path, QUERY))


def test_what_a_sweep_takes_belongs_to_nobody(rig: StagedRig) -> None:
    claim = {"query": QUERY, "target": {"queue": "q"}, "as_user": ANN.facts()}
    rig.result("claim_query", **claim)
    rig.tick(3700)
    rig.roll()
    assert not rig.fs.exists(staging.query_path(rig.vhost.path, QUERY))
    mine = {"query": QUERY, "target": {"queue": "mine"}, "as_user": EVE.facts()}
    assert rig.result("claim_query", **mine)["owner"]


def test_an_owner_that_a_power_cut_left_torn_is_none(rig: StagedRig) -> None:
    path = rig.vhost.path
    staging.claim(rig.fs, path, QUERY, QueryOwner("ann", ""))
    for torn in (b"", b"{", b"[]", b"\xff", b'{"user": "x"}', b"null"):
        file = rig.fs.open(staging.query_path(path, QUERY) + "/" + staging.OWNER)
        file.truncate(0)
        file.pwrite(torn, 0)
        file.close()
        assert staging.read_owner(rig.fs, path, QUERY) is None


def test_only_so_many_owners_are_remembered(
    rig: StagedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "REMEMBERED_MAX", 2)
    for n in range(5):
        given = {"query": f"query {n}", "as_user": ANN.facts()}
        assert rig.result("claim_query", **given)["owner"]
    assert len(batch_manager(rig.vhost).claims._staged) <= 2
    assert rig.refusal("claim_query", query="query 0", as_user=EVE.facts()).code == 403


@pytest.mark.parametrize("given", [5, {}, {"name": "x"}, ANN.facts() | {"write": "("}])
def test_an_operator_names_the_user_rightly(rig: StagedRig, given: object) -> None:
    assert rig.refusal("claim_query", query=QUERY, as_user=given).code == 406


@pytest.mark.parametrize("query", ["", "x" * 256, "a\0b", "\udcff"])
def test_a_name_that_is_none(rig: StagedRig, query: str) -> None:
    for op, more in (("claim_query", {}), ("release_query", {}), ("abort_batch", {"batch": 0})):
        assert rig.refusal(op, query=query, **more).code == 406


# ---- how many there are --------------------------------------------------------------------------


def empty(rig: StagedRig, query: str, user: Identity, batch: int = 0) -> str:
    """Commit a batch without rows; the status, or the refusal."""
    target = {"queue": "mine" if user is EVE else "q"}
    asked = rig.commit(batch, [], query, target=target, user=user, previous=batch - 1)
    rig.roll()
    (reply,) = asked.replies
    return str(reply["status"] if isinstance(reply, dict) else reply.text)


def test_one_user_has_a_share_of_the_queries(
    rig: StagedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of each is in RAM until it is released, and costs nothing to commit."""
    monkeypatch.setattr(batches, "USER_QUERIES_MAX", 2)
    monkeypatch.setattr(batches, "QUERIES_MAX", 3)
    assert [empty(rig, name, EVE) for name in "ab"] == ["committed"] * 2
    assert "user 'eve' has 2 queries, at most 2 are allowed" in empty(rig, "c", EVE)
    assert empty(rig, "a", EVE, 1) == "committed"
    rig.restart()
    assert "user 'eve' has 2 queries" in empty(rig, "c", EVE)
    assert empty(rig, "d", ANN) == "committed"
    assert "there are 3 queries" in empty(rig, "e", ANN)
    rig.result("release_query", query="a")
    assert empty(rig, "c", EVE) == "committed"


def test_so_many_claims_of_a_user_and_no_more(
    rig: StagedRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CLAIMS_MAX", 2)
    mine = {"target": {"queue": "mine"}, "as_user": EVE.facts()}
    for query in "aabb":
        assert rig.result("claim_query", query=query, **mine)["owner"] == "eve"
    refused = rig.refusal("claim_query", query="c", **mine)
    assert (refused.code, "has claimed 2 queries" in refused.text) == (506, True)
    q = {"target": {"queue": "q"}, "as_user": ANN.facts()}
    assert rig.result("claim_query", query="d", **q)["owner"] == "ann"
    rig.tick(batches.SWEEP_S)
    assert rig.result("claim_query", query="c", **mine)["owner"] == "eve"


def test_queries_of_batch_writes_are_forgotten_a_few_at_a_time(rig: StagedRig) -> None:
    for n in range(batches.RELEASED_MAX + 5):
        assert empty(rig, f"job-{n}", EVE) == "committed"
    left = []
    rig.clock.advance(100_000)
    while not left or left[-1]:
        rig.vhost.tick()
        rig.turn()
        left.append(len(rig.result("list_batches")))
    assert left == [5, 0]
