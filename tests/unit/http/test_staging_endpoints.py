"""Staging: bounds, who may, commits and the rest that is asked of the vhost."""

import asyncio
import errno
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.http import staging_endpoints
from penstock.http.api import Api
from penstock.http.bodies import BodyMemory
from penstock.server.control import ControlError
from penstock.storage.files.filesystem import OsFile
from penstock.storage.pages import staging
from penstock.storage.pages.batches import QueryOwner, StagedPage, pack_key, pack_page
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.chunk_maker import PageMaker
from tests.helpers.http_rig import HttpRig, users_facts
from tests.helpers.uploads import ADDRESS, RECORDS, files, post

pytestmark = pytest.mark.real


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    yield rig
    rig.close()


# --- bounds ---


def test_so_many_bytes_are_staged_and_no_more(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.staging_bytes_max = 15_000
    page = PageMaker(1)
    body = page.chunk([(b"x" * 6000, b"")])
    assert post(rig, body).status == 201
    reply = post(rig, page.chunk(RECORDS) + body, ADDRESS[:-1] + "e")
    assert reply.status == 400
    two = PageMaker(2)
    reply = post(rig, two.chunk(RECORDS[:20]) + two.chunk([(b"x" * 6000, b"")]), ADDRESS[:-1] + "e")
    assert (reply.status, reply.json()["error"]) == (507, "staging_full")
    assert "at most 15000" in reply.json()["reason"]
    assert len(files(rig)) == 2
    for file in files(rig):
        file.unlink()
    assert post(rig, body, ADDRESS[:-1] + "f").status == 201


def test_a_permission_that_is_revoked_ends_an_upload(rig: HttpRig) -> None:
    page = PageMaker(1)
    first, second = page.chunk(RECORDS), page.chunk(RECORDS)

    async def scenario(app: Api) -> Reply:
        sent = iter((first, second))

        async def receive() -> dict[str, Any]:
            piece = next(sent)
            if piece is second:
                rig.users.take(users_facts(guest=("", "", ".*")))
            return {"type": "http.request", "body": piece, "more_body": piece is first}

        async def between(scope: Any, _receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        return await ask(between, ADDRESS, method="POST", body=b"")

    assert rig.run(scenario).status == 403
    assert not files(rig)


def test_one_user_takes_no_more_than_their_share(rig: HttpRig) -> None:
    """Of the disk: what is staged for a query counts for its owner, whoever stages it."""
    rig.staging_user_bytes_max = 15_000
    vhost = rig.vhost_path("/")
    body = PageMaker(1).chunk([(b"x" * 6000, b"")])

    def claim(_vhost: str | None, query: str, **_: object) -> Any:
        owner = QueryOwner("ann" if query == "query/1" else "ben", "")
        return {"owner": staging.claim(rig.fs, vhost, query, owner).user}

    rig.node.answers["claim_query"] = claim
    assert post(rig, body).status == 201
    reply = post(rig, body, ADDRESS[:-1] + "e")
    assert (reply.status, reply.json()["error"]) == (507, "staging_full")
    assert "of user 'ann', at most 15000 may be (staging_user_bytes_max)" in reply.json()["reason"]
    assert post(rig, body, ADDRESS.replace("query%2F1", "other")).status == 201
    assert set(staging.staged_bytes(rig.fs, vhost)) == {"ann", "ben"}


def test_one_user_has_not_all_uploads_at_a_time(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.users.take(users_facts(guest=(".*", ".*", ".*"), ann=("", ".*", "")))
    monkeypatch.setattr(staging_endpoints, "USER_UPLOADS_MAX", 1)
    body = PageMaker(1).chunk(RECORDS)

    async def scenario(app: Api) -> Reply:
        go_on, begun = asyncio.Event(), asyncio.Event()

        async def held(scope: Any, receive: Any, send: Any) -> None:
            async def later() -> Any:
                begun.set()
                await go_on.wait()
                return await receive()

            await app(scope, later, send)

        upload = asyncio.create_task(ask(held, f"{ADDRESS}0", method="POST", body=body))
        await begun.wait()
        busy = await ask(app, f"{ADDRESS}1", method="POST", body=body)
        assert (busy.status, busy.headers["retry-after"]) == (503, "1")
        other = await ask(app, f"{ADDRESS}2", method="POST", body=body, user="ann")
        go_on.set()
        assert (await upload).status == 201
        return other

    assert rig.run(scenario).status == 201


def test_one_user_has_not_all_memory_of_chunks() -> None:
    memory = BodyMemory(100)

    async def scenario() -> list[str]:
        order: list[str] = []

        async def hold(user: str, size: int) -> None:
            await memory.take(user, size)
            order.append(f"{user} {size}")

        assert await memory.take("ann", 75) == 75
        waiting = asyncio.create_task(hold("ann", 5))
        await asyncio.sleep(0)
        await hold("ben", 25)
        memory.give_back("ann", 75)
        await waiting
        memory.give_back("ann", 5)
        memory.give_back("ben", 25)
        assert await memory.take("ann", 500) == 100  # alone it may have all of it
        return order

    assert asyncio.run(scenario()) == ["ben 25", "ann 5"]


def test_what_the_vhost_deletes_makes_room(rig: HttpRig) -> None:
    rig.staging_bytes_max = 11_000
    body = PageMaker(1).chunk([(b"x" * 6000, b"")])

    async def scenario(app: Api) -> Reply:
        async def one(attempt: str) -> Reply:
            return await ask(app, ADDRESS[:-1] + attempt, method="POST", body=body)

        assert (await one("0")).status == 201
        assert (await one("1")).status == 507
        for file in files(rig):
            file.unlink()
        assert (await one("2")).status == 507
        rig.clock.advance(staging_endpoints.FULL_RESCAN_S)
        return await one("3")

    assert rig.run(scenario).status == 201


def test_a_disk_that_is_nearly_full_is_left_to_the_broker(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.fs, "free_bytes", lambda _path: staging_endpoints.FREE_BYTES_MIN)
    reply = post(rig, PageMaker(1).chunk(RECORDS))
    assert (reply.status, reply.json()["error"]) == (507, "disk_full")
    assert not files(rig)


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EIO, 500)]
)
@pytest.mark.parametrize("nth", range(1, 8))
def test_a_disk_that_fails(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, number: int, status: int, nth: int
) -> None:
    calls = 0

    def failing(real: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(number, "no")
            return real(*args)

        return call

    monkeypatch.setattr(OsFile, "pwrite", failing(OsFile.pwrite))
    monkeypatch.setattr(OsFile, "sync", failing(OsFile.sync))
    reply = post(rig, PageMaker(1).chunk(RECORDS[:10]))
    assert reply.status == status, reply.body
    assert "no" not in reply.json()["reason"].split()
    assert not files(rig)
    if nth > 2:
        calls = 100
        assert post(rig, PageMaker(1).chunk(RECORDS)).status == 201


def test_uploads_at_a_time(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_endpoints, "UPLOADS_MAX", 2)
    body = PageMaker(1).chunk(RECORDS)

    async def scenario(app: Api) -> Reply:
        go_on = asyncio.Event()
        begun: asyncio.Queue[None] = asyncio.Queue()

        async def held(scope: Any, receive: Any, send: Any) -> None:
            async def later() -> Any:
                begun.put_nowait(None)
                await go_on.wait()
                return await receive()

            await app(scope, later, send)

        uploads = [
            asyncio.create_task(ask(held, f"{ADDRESS}{n}", method="POST", body=body))
            for n in range(2)
        ]
        for _ in uploads:
            await begun.get()
        busy = await ask(app, f"{ADDRESS}2", method="POST", body=body)
        assert (busy.status, busy.headers["retry-after"]) == (503, "1")
        go_on.set()
        assert [reply.status for reply in await asyncio.gather(*uploads)] == [201, 201]
        return await ask(app, ADDRESS, method="POST", body=body)

    assert rig.run(scenario).status == 201


def test_chunks_wait_for_memory(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_endpoints, "MEMORY_BYTES", 9000)
    most = 0
    real = BodyMemory.take

    async def take(memory: BodyMemory, user: str, size: int) -> int:
        nonlocal most
        held = await real(memory, user, size)
        most = max(most, memory.held.total)
        return held

    monkeypatch.setattr(BodyMemory, "take", take)
    body = b"".join(PageMaker(n).chunk(RECORDS) for n in range(10))

    async def scenario(app: Api) -> Reply:
        replies = await asyncio.gather(
            *(
                ask(app, f"{ADDRESS}{n}", method="POST", body=[body[:5000], body[5000:]])
                for n in range(10)
            )
        )
        assert {reply.status for reply in replies} == {201}
        return replies[0]

    rig.run(scenario)
    assert 4000 < most <= 9000


def test_a_client_that_stops_is_cut_off(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_endpoints, "CHUNK_S", 0.05)
    monkeypatch.setattr(staging_endpoints, "PACE", 1e12)
    body = PageMaker(1).chunk(RECORDS) + PageMaker(2).chunk(RECORDS)

    async def scenario(app: Api) -> Reply:
        sent = [{"type": "http.request", "body": body[:-1], "more_body": True}]

        async def silent(scope: Any, _receive: Any, send: Any) -> None:
            async def receive() -> Any:
                return sent.pop() if sent else await asyncio.Event().wait()

            await app(scope, receive, send)

        return await ask(silent, ADDRESS, method="POST")

    reply = rig.run(scenario)
    assert (reply.status, reply.json()["error"]) == (408, "timeout")
    assert reply.headers["connection"] == "close"
    assert not files(rig)


def test_an_upload_that_is_cancelled_leaves_nothing(rig: HttpRig) -> None:
    body = PageMaker(1).chunk(RECORDS) + PageMaker(2).chunk(RECORDS)

    async def scenario(app: Api) -> Reply:
        waits = asyncio.Event()
        sent = [{"type": "http.request", "body": body[:-1], "more_body": True}]

        async def silent(scope: Any, _receive: Any, send: Any) -> None:
            async def receive() -> Any:
                if sent:
                    return sent.pop()
                waits.set()
                return await asyncio.Event().wait()

            await app(scope, receive, send)

        task = asyncio.create_task(ask(silent, ADDRESS, method="POST"))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return Reply(0, {}, [], True)

    rig.run(scenario)
    assert not files(rig)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("/api/staging/%2F/q/x/0/0-0123abcd", "batch: given 'x'"),
        ("/api/staging/%2F/q/-1/0/0-0123abcd", "batch"),
        ("/api/staging/%2F/q/%D9%A1/0/0-0123abcd", "batch"),
        ("/api/staging/%2F/q/0/4294967296/0-0123abcd", "partition"),
        ("/api/staging/%2F/q/0/0/a.b", "attempt"),
        ("/api/staging/%2F/q/0/0/..%2F..%2Fx", "attempt"),
        ("/api/staging/%2F/%FF/0/0/0-0123abcd", "UTF-8"),
        ("/api/staging/%2F/a%00/0/0/0-0123abcd", "none of them 0"),
        ("/api/staging/%2F/" + "q" * 256 + "/0/0/0-0123abcd", "256 bytes"),
        (ADDRESS + "?other=1", "unknown parameter"),
        (ADDRESS + "?target={", "JSON"),
        (ADDRESS + "?target={}", "target: expected"),
    ],
)
def test_bad_addresses(rig: HttpRig, address: str, told: str) -> None:
    reply = post(rig, PageMaker(1).chunk(RECORDS), address)
    assert reply.status == 400
    assert told in reply.json()["reason"]
    assert not list(rig.directory.rglob("*.page"))


# --- who may ---


def test_who_may_stage(rig: HttpRig) -> None:
    rig.users.take(
        users_facts(guest=(".*", ".*", ".*"), reader=("", "", ".*"), writer=("", "^out$", ""))
    )
    rig.node.answers |= {"abort_batch": {"files": 0}, "release_query": {}}
    body = PageMaker(1).chunk(RECORDS)

    def status(user: str | None, query: str = "", method: str = "POST", at: str = ADDRESS) -> int:
        return rig.ask(at + query, method=method, body=body, user=user).status

    assert status(None) == 401
    assert status("reader") == 403
    assert status("writer", "?target=other") == 403
    assert status("writer", '?target={"exchanges":["out",""]}') == 403
    assert status("writer", '?target={"queue":"out","dead_letter_to":"other"}') == 403
    assert status("writer", at=ADDRESS.replace("%2F", "other", 1)) == 403
    assert status("writer", at=ADDRESS.replace("%2F", "none", 1)) == 404
    assert not files(rig)
    batch = "/api/staging/%2F/q/7"
    assert status("reader", method="DELETE", at=batch) == 403
    assert status("reader", method="DELETE", at="/api/staging/%2F/q") == 403
    assert not rig.node.asked
    assert status("writer", "?target=out") == 201
    assert status("writer", at=ADDRESS[:-1] + "e") == 201
    assert status("writer", method="DELETE", at=batch) == 200
    user = identity(rig, "writer")
    claimed = {"query": "query/1", "as_user": user}
    assert rig.node.asked == [
        ("claim_query", "/", {"target": {"queue": "out"}, **claimed}),
        ("claim_query", "/", {"target": {}, **claimed}),
        ("abort_batch", "/", {"query": "q", "batch": 7, "as_user": user}),
    ]
    rig.node.answers["claim_query"] = ControlError(403, "it is ann's")
    before = files(rig)
    assert status("writer", at=ADDRESS[:-1] + "f") == 403
    assert files(rig) == before


def test_a_query_is_claimed_before_anything_is_staged(rig: HttpRig) -> None:
    """The answer has the partitions of the target, so that clients can group their rows."""
    rig.users.take(users_facts(reader=("", "", ".*"), writer=("", "^out$", "")))
    rig.node.answers["claim_query"] = {"owner": "writer", "partitions": 4}
    at = "/api/staging/%2F/q"
    assert rig.ask(at, method="POST", user="reader").status == 403
    assert rig.ask(at + "?target=other", method="POST", user="writer").status == 403
    assert rig.ask(at + "?to=out", method="POST", user="writer").status == 400
    assert not rig.node.asked
    reply = rig.ask(at + "?target=out", method="POST", user="writer")
    assert (reply.status, reply.json()) == (200, {"owner": "writer", "partitions": 4})
    claimed = {"query": "q", "target": {"queue": "out"}, "as_user": identity(rig, "writer")}
    assert rig.node.asked == [("claim_query", "/", claimed)]
    assert not files(rig)


def test_a_target_is_checked_before_anything_is_staged(rig: HttpRig) -> None:
    """When a sink starts: its login, its right, and that the target exists."""
    rig.users.take(users_facts(reader=("", "", ".*"), writer=("", "^out$", "")))
    rig.node.answers["check_target"] = {"target": {"queue": "out"}}
    at = "/api/staging/%2F"
    assert rig.ask(at, method="POST", user="reader").status == 403
    assert rig.ask(at + "?target=other", method="POST", user="writer").status == 403
    assert rig.ask(at + "?to=out", method="POST", user="writer").status == 400
    assert (rig.ask(at, method="POST", user="writer").status, rig.node.asked) == (200, [])
    assert rig.ask(at + "?target=out", method="POST", user="writer").status == 200
    user = identity(rig, "writer")
    assert rig.node.asked == [("check_target", "/", {"target": {"queue": "out"}, "as_user": user})]
    rig.node.answers["check_target"] = ControlError(404, "NOT_FOUND - no queue 'out'")
    assert rig.ask(at + "?target=out", method="POST", user="writer").status == 404
    assert not files(rig)


# --- what the vhost does ---


def token(query: str = "q", batch: int = 7, **other: Any) -> dict[str, Any]:
    page = {
        "name": "7.0.a.0.page",
        "page_id": "00000000000000ff",
        "rows": 3,
        "bytes": 200,
        "checksum": "00000000000000aa",
    }
    return {"query": query, "batch": batch, "partition": 0, "attempt": "a", "rows": 3,
            "bytes": 200, "pages": [page]} | other  # fmt: skip


def identity(rig: HttpRig, user: str) -> dict[str, Any]:
    found = rig.users.identity(user, "/")
    assert found is not None
    return found.facts()


def commit(rig: HttpRig, body: object, user: str = "guest") -> Reply:
    text = json.dumps(body).encode()
    return rig.ask("/api/staging/%2F/q/7", method="PUT", body=text, user=user)


def test_a_commit_is_asked_of_the_vhost(rig: HttpRig) -> None:
    rig.node.answers["commit_batch"] = {"status": "committed", "batch": 7}
    body = {"target": {"queue": "out"}, "tokens": [token(), token(pages=[]), token(partition=1)]}
    reply = commit(rig, body)
    assert (reply.status, reply.json()) == (200, {"status": "committed", "batch": 7})
    page = pack_page(StagedPage("7.0.a.0.page", 255, 3, 200), 170)
    assert rig.node.asked == [
        ("commit_batch", "/", {"query": "q", "batch": 7, "target": {"queue": "out"},
                               "pages": page * 2, "mandatory_keys": b"", "previous": None,
                               "keep_first": False, "begins_late": False,
                               "as_user": identity(rig, "guest")})
    ]  # fmt: skip
    many = {"exchanges": ["a", "b"], "dead_letter_to": None}
    body = {"target": many, "tokens": [], "mandatory_keys": [["a", "k"]]}
    assert commit(rig, body).status == 200
    assert rig.node.asked[1][2]["mandatory_keys"] == pack_key("a", "k")
    assert (
        commit(rig, {"tokens": [], "previous": 6, "keep_first": True, "begins_late": True}).status
        == 200
    )
    asked = rig.node.asked[2][2]
    assert (asked["target"], asked["previous"], asked["keep_first"]) == (None, 6, True)
    assert asked["begins_late"] is True


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "JSON object"),
        ({}, 'expected {"target"'),
        ({"target": {"queue": "a"}, "tokens": [], "x": 1}, "unknown: 'x'"),
        ({"target": {"queue": "a"}, "tokens": {}}, "expected"),
        ({"target": {"queue": "a"}, "tokens": [5]}, "token 0: expected the answer of POST"),
        ({"target": {"queue": "a"}, "tokens": [token(), token("z")]}, "token 1 is of query 'z'"),
        ({"target": {"queue": "a"}, "tokens": [token(batch=8)]}, "batch 8, expected 'q' and 7"),
        ({"target": {"queue": "a"}, "tokens": [token(pages=[{"name": 5}])]}, "expected pages with"),
        ({"target": {"queue": "a"}, "tokens": [], "mandatory_keys": [["a"]]}, "mandatory_keys"),
        ({"target": "a", "tokens": []}, "target: expected"),
        ({"target": {"queue": ""}, "tokens": []}, "target: expected"),
        ({"target": {"exchanges": []}, "tokens": []}, "target: expected"),
        ({"target": {"queue": "a", "exchanges": ["b"]}, "tokens": []}, "target: expected"),
        ({"target": {"exchanges": [5]}, "tokens": []}, "target: expected"),
        ({"target": {"queue": "a", "dead_letter_to": 5}, "tokens": []}, "target: expected"),
        ({"target": {"queue": "a", "more": 5}, "tokens": []}, "target: expected"),
        ({"tokens": []}, "target: expected"),
        ({"tokens": [], "previous": 7}, "previous: given 7, expected -1 to 6"),
        ({"tokens": [], "previous": "6"}, "previous: given '6'"),
        ({"tokens": [], "previous": 6, "keep_first": 1}, "keep_first: given 1"),
        ({"tokens": [], "previous": 6, "begins_late": 1}, "begins_late: given 1"),
    ],
)
def test_bad_commits(rig: HttpRig, body: object, told: str) -> None:
    reply = commit(rig, body)
    assert reply.status == 400
    assert told in reply.json()["reason"]
    assert not rig.node.asked


def test_who_may_commit_list_and_release(rig: HttpRig) -> None:
    rig.users.take(users_facts(guest=(".*", ".*", ".*"), writer=("", "^out$", "")))
    rows = [{"query": "mine", "owner": "ann", "batch": 1, "target": {"queue": "out"}}]
    rig.node.answers |= {
        "commit_batch": {"status": "committed", "batch": 7}, "list_batches": rows,
        "release_query": {},
    }  # fmt: skip
    for target in (
        {"queue": "in"},
        {"exchanges": ["out", ""]},
        {"queue": "out", "dead_letter_to": "x"},
    ):
        assert commit(rig, {"target": target, "tokens": []}, "writer").status == 403
    assert not rig.node.asked
    assert commit(rig, {"target": {"queue": "out"}, "tokens": []}, "writer").status == 200
    assert rig.ask("/api/staging/%2F", user="writer").json() == rows
    as_user = rig.node.asked[-1][2]["as_user"]
    assert isinstance(as_user, dict)
    assert (as_user["name"], as_user["write"]) == ("writer", "^out$")

    def release(query: str, user: str) -> int:
        return rig.ask(f"/api/staging/%2F/{query}", method="DELETE", user=user).status

    assert release("mine", "writer") == 200
    assert release("theirs?force=true", "guest") == 200
    assert release("theirs?force=1", "guest") == 400
    asked = [args for op, _, args in rig.node.asked if op == "release_query"]
    assert asked == [
        {"query": "mine", "force": False, "as_user": identity(rig, "writer")},
        {"query": "theirs", "force": True, "as_user": identity(rig, "guest")},
    ]
    rig.node.answers["release_query"] = ControlError(403, "it is ann's")
    assert release("theirs", "writer") == 403


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [(404, 404, "not_found"), (403, 403, "forbidden"), (406, 400, "bad_request"),
     (312, 409, "unroutable"), (409, 409, "batch_conflict"), (506, 503, "unavailable"),
     (541, 503, "unavailable")],
)  # fmt: skip
def test_what_the_vhost_refuses(rig: HttpRig, code: int, status: int, error: str) -> None:
    fault: PenstockError = ControlError(code, "why")
    rig.node.answers["commit_batch"] = fault
    reply = commit(rig, {"target": {"queue": "out"}, "tokens": []})
    assert (reply.status, reply.json()) == (status, {"error": error, "reason": "why"})


def test_other_methods_and_addresses(rig: HttpRig) -> None:
    assert rig.ask(ADDRESS).status == 405
    assert rig.ask(ADDRESS, method="PUT", body=b"{}").status == 405
    assert rig.ask("/api/staging").status == 404
    assert rig.ask("/api/staging/%2F/q/7/3").status == 404
    with closing(rig.fs.open(str(rig.directory / "x"), create=True)):
        assert not files(rig)
