"""Bodies of JSON: what they may cost, and what is not JSON."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.http import bodies
from penstock.http.api import Api
from penstock.http.bodies import BodyMemory, JsonBodies, JsonMembers, members_of
from penstock.http.requests import HttpError
from penstock.http.staging_endpoints import COMMIT_BYTES_MAX, commit_args
from penstock.storage.pages.batches import StagedPage, pack_page
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

pytestmark = pytest.mark.real

MIB = 1 << 20
COMMIT = "/api/staging/%2F/q/7"
PAGE = {
    "name": "7.0.a.0.page", "page_id": "00000000000000ff", "rows": 3, "bytes": 200,
    "checksum": "00000000000000aa",
}  # fmt: skip
TOKEN = {"query": "q", "batch": 7, "partition": 0, "attempt": "a", "pages": [PAGE]}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.node.answers["commit_batch"] = {"status": "committed", "batch": 7}
    yield rig
    rig.close()


# ---- what a body costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"tokens": [' + b"[]," * (MIB // 3) + b"[]]}",
        b'{"tokens": [' + b"{}," * (MIB // 3) + b"{}]}",
        b'{"tokens": [[' + b"[]," * (MIB // 3) + b"[]]]}",
        b'{"tokens": [], "mandatory_keys": [' + b'["a",""],' * 100_001 + b"1]}",
        b'{"tokens": [], "target": [' + b"[]," * (MIB // 3) + b"[]]}",
        b'{"tokens": [], ' + b",".join(b'"%d": {}' % n for n in range(MIB // 11)) + b"}",
        b'{"tokens": [], "x": [' + b"[]," * (MIB // 3) + b"[]]}",
        b"[" + b"[]," * (MIB // 3) + b"[]]",
    ],
)
def test_a_body_that_would_build_much_is_refused_before_it_is_built(text: bytes) -> None:
    assert MIB * 3 // 4 < len(text) <= COMMIT_BYTES_MAX
    tracemalloc.start()
    try:
        with pytest.raises(HttpError) as refused:
            commit_args(text, "q", 7)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB  # as a whole 22 MiB and more
    finally:
        tracemalloc.stop()
    assert refused.value.status in (400, 413)


def test_a_commit_of_the_largest_kind_becomes_few_bytes() -> None:
    tokens = [{**TOKEN, "partition": n} for n in range(5000)]
    body = {"target": {"queue": "out"}, "tokens": tokens, "mandatory_keys": None}
    text = json.dumps(body).encode()
    tracemalloc.start()
    try:
        args = commit_args(text, "q", 7)
        assert tracemalloc.get_traced_memory()[1] < len(text) * 2
    finally:
        tracemalloc.stop()
    assert len(args["pages"]) == 5000 * len(pack_page(StagedPage("7.0.a.0.page", 255, 3, 200), 170))
    assert all(not isinstance(value, list) for value in args.values())


def test_no_step_of_a_commit_decodes_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser holds all other threads while it decodes one piece."""
    sizes: list[int] = []
    real = bodies._DECODER.raw_decode

    class Counted:
        def raw_decode(self, text: str, at: int = 0) -> Any:
            sizes.append(len(text) - at)
            return real(text, at)

    monkeypatch.setattr(bodies, "_DECODER", Counted())
    tokens = [{**TOKEN, "partition": n} for n in range(1000)]
    commit_args(json.dumps({"tokens": tokens}).encode(), "q", 7)
    assert len(sizes) >= 1000
    assert max(sizes) <= 4096
    sizes.clear()
    with pytest.raises(HttpError, match="has more than 262144 bytes"):
        commit_args(b'{"tokens": [[' + b"[]," * MIB + b"[]]]}", "q", 7)
    assert sum(sizes) < 400_000


def test_bodies_in_memory_are_limited_and_no_user_has_all(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.users.take(users_facts(guest=EVERYTHING, ann=EVERYTHING))
    monkeypatch.setattr(bodies, "BODY_BYTES_MAX", 0)  # the rig's is made below
    most = 0

    async def scenario(app: Api) -> Reply:
        nonlocal most
        rig.bodies.memory = BodyMemory(4 * 8000)  # type: ignore[misc]
        go_on = asyncio.Event()

        async def held(scope: Any, receive: Any, send: Any) -> None:
            async def later() -> Any:
                await go_on.wait()
                return await receive()

            await app(scope, later, send)

        body = json.dumps({"tokens": [], "previous": 6}).encode().ljust(8000)
        sized = {"content-length": str(len(body))}
        mine = [
            asyncio.create_task(ask(held, COMMIT, method="PUT", body=body, headers=sized))
            for _ in range(10)
        ]
        for _ in range(50):
            await asyncio.sleep(0.001)
            most = max(most, rig.bodies.memory.held.total)
        assert most == 3 * 8000
        theirs = await ask(app, COMMIT, method="PUT", body=body, headers=sized, user="ann")
        assert theirs.status == 200
        go_on.set()
        assert {reply.status for reply in await asyncio.gather(*mine)} == {200}
        assert rig.bodies.memory.held.total == 0
        return theirs

    rig.run(scenario)


def test_a_body_that_gets_no_room_is_503(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.01)

    async def scenario(app: Api) -> Reply:
        await rig.bodies.memory.take("guest", bodies.BODY_BYTES_MAX)
        return await ask(app, COMMIT, method="PUT", body=b"{}", headers={"content-length": "2"})

    reply = rig.run(scenario)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("address", "method", "most"),
    [
        (COMMIT, "PUT", COMMIT_BYTES_MAX),
        ("/api/streams/%2F/events/readers/r", "PUT", 64 << 10),
        ("/api/leases/%2F/q/r", "POST", 4 << 10),
        ("/api/leases/%2F/q/r", "PUT", 4 << 10),
        ("/api/leases/%2F/q/r/owner", "PUT", 4 << 10),
    ],
)
def test_each_kind_of_request_has_its_maximum(
    rig: HttpRig, address: str, method: str, most: int
) -> None:
    """It is refused by its length, and, if it does not say that, when it has sent more."""
    told = f"more than {most} bytes"
    size = {"content-length": str(most + 1)}
    reply = rig.ask(address, method=method, body=[b"{"], headers=size)
    assert (reply.status, reply.json()["reason"]) == (413, told)
    reply = rig.ask(address, method=method, body=[b" " * most, b" "])
    assert (reply.status, reply.json()["reason"]) == (413, told)


def test_one_body_of_a_user_is_parsed_at_a_time() -> None:
    running, most = 0, 0

    async def scenario() -> None:
        nonlocal running, most
        with ThreadPoolExecutor(4) as threads:
            made = JsonBodies(threads)
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def one(user: str) -> None:
                nonlocal running, most
                async with made._turn(user):
                    running += 1
                    most = max(most, running)
                    begun.set()
                    await go_on.wait()
                    running -= 1

            tasks = [asyncio.create_task(one("ann")) for _ in range(3)]
            await begun.wait()
            assert running == 1
            tasks.append(asyncio.create_task(one("ben")))
            while running < 2:
                await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(*tasks)
            assert most == 2
            assert not made._turns
            assert made._asking.total == 0

    asyncio.run(scenario())


# ---- what it says --------------------------------------------------------------------------------

LISTS = {"l": 3, "m": 3}


def members(text: bytes) -> list[tuple[str, object, bool]]:
    return list(JsonMembers(text, LISTS).read())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", []),
        (b' \n{ "a" : 1 , "b":[1, [2]]}\t', [("a", 1, False), ("b", [1, [2]], False)]),
        (b'{"l":[]}', [("l", [], False)]),
        (b'{"l": null, "m": {}}', [("l", None, False), ("m", {}, False)]),
        (b'{"l": [1,[2] , {"a":3}], "a": "\\u00e9\\ud83d\\ude00"}',
         [("l", [], False), ("l", 1, True), ("l", [2], True), ("l", {"a": 3}, True),
          ("a", "é😀", False)]),
    ],
)  # fmt: skip
def test_members_are_those_of_the_whole(text: bytes, expected: object) -> None:
    assert members(text) == expected


@pytest.mark.parametrize("cut", range(4070, 4105))
def test_where_a_window_ends_does_not_matter(cut: int) -> None:
    for end in (b'"\xc3\xa9\xf0\x9f\x98\x80"', b"123456789", b"-1.25e10", b'{"k": [true, null]}'):
        text = b'{"l": ["' + b"x" * cut + b'", ' + end + b', ["' + b"\xc3\xa9" * cut + b'"]]}'
        whole = json.loads(text)["l"]
        assert [value for _, value, is_element in members(text) if is_element] == whole


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "a JSON object"),
        (b"[]", "a JSON object"),
        (b"{", "a name"),
        (b"{1: 2}", "a name in double quotes"),
        (b'{"a"}', "expected ':'"),
        (b'{"a": 1 "b": 2}', "expected ','"),
        (b'{"a": 1,}', "a name"),
        (b'{"a": 1} x', "expected the end"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"l": [1 2]}', "expected ','"),
        (b'{"l": [1,]}', "element 1 of l"),
        (b'{"l": [1', "expected ','"),
        (b'{"l": ["x', "element 0 of l"),
        (b'{"l": [tru]}', "element 0 of l"),
        (b'{"l": [1, 2, 3, 4]}', "l: more than 3 elements"),
        (b'{"a": "\xff"}', "'utf-8' codec"),
        (b'{"a": "\xc3', "'utf-8' codec"),
        (b'{"a": "\\ud800"}', r"a text has \ud800, half of a surrogate pair"),
        (b'{"\\udc00": 1}', r"a text has \udc00, half of a surrogate pair"),
        (b'{"a": [{"b": "\\udfff"}]}', r"a text has \udfff, half of a surrogate pair"),
        (b'{"l": ["\\udfff"]}', r"a text has \udfff, half of a surrogate pair"),
        (b'{"a": ' + b"[" * 5000 + b"}", "recursion"),
        (b'{"a": ' + b"9" * 5000 + b"}", "limit"),
    ],
)
def test_what_is_not_json(text: bytes, told: str) -> None:
    with pytest.raises(HttpError) as refused:
        members(text)
    assert refused.value.status in (400, 413)
    assert told in refused.value.reason


@pytest.mark.parametrize("whole", [True, False])
def test_half_a_surrogate_pair_is_a_400_everywhere(rig: HttpRig, whole: bool) -> None:
    """Also in names, in errors that repeat what was given, and in a parameter that is JSON."""
    half = "\\ud800" if whole else "a\\udc80b"
    asked: list[tuple[str, str, str]] = [
        ("PUT", "/api/streams/%2F/events/readers/r", '{"offsets": {"X": 1}}'),
        ("PUT", "/api/streams/%2F/events/readers/r", '{"X": {"0": 1}}'),
        ("POST", "/api/leases/%2F/q/r", '{"owner": "X"}'),
        ("POST", "/api/leases/%2F/q/r", '{"messages": "X"}'),
        ("POST", "/api/leases/%2F/q/r", '{"X": 1}'),
        ("PUT", "/api/leases/%2F/q/r", '{"committed": 1, "owner": "X"}'),
        ("PUT", "/api/leases/%2F/q/r/owner", '{"owner": "X", "seconds": 5}'),
        ("PUT", COMMIT, '{"tokens": [], "target": {"queue": "X"}}'),
        ("PUT", COMMIT, '{"tokens": [], "target": {"exchanges": ["X"]}}'),
        ("PUT", COMMIT, '{"tokens": [], "target": {"queue": "a", "dead_letter_to": "X"}}'),
        ("PUT", COMMIT, '{"tokens": [], "target": {"X": "a"}}'),
        ("PUT", COMMIT, '{"tokens": [{"query": "X", "batch": 7, "pages": []}]}'),
        ("PUT", COMMIT, '{"tokens": [], "X": 1}'),
        ("PUT", COMMIT, '{"tokens": [], "mandatory_keys": [["X", "a"]]}'),
        ("PUT", COMMIT, '{"tokens": [], "mandatory_keys": [["a", "X"]]}'),
        ("POST", COMMIT + '/0/a?target={"queue":"X"}', ""),
        ("POST", COMMIT + '/0/a?target={"X":1}', ""),
        ("DELETE", COMMIT + '?target={"exchanges":["X"]}', ""),
    ]
    for method, address, body in asked:
        said = body.replace("X", half).encode()
        reply = rig.ask(address.replace("X", half), method=method, body=said)
        assert reply.status == 400, (method, address, body)
        assert "half of a surrogate pair" in reply.json()["reason"], (body, reply.json())
    assert not rig.node.asked


def test_texts_that_are_whole_pass(rig: HttpRig) -> None:
    rig.node.answers["own_lease"] = lambda _vhost, **args: args["owner"]
    body = b'{"owner": "\\u00e9 \\ud83d\\ude00", "seconds": 5}'
    ask: Callable[..., Reply] = rig.ask
    assert ask("/api/leases/%2F/q/r/owner", method="PUT", body=body).json() == "é 😀"


# ---- a text may be as long as the body -----------------------------------------------------------


def test_a_long_text_among_short_members() -> None:
    text = 'é\\n"' * 400_000
    body = {"a": 1, "payload": text, "b": {"c": [1]}}
    for is_ascii in (True, False):
        assert members_of(json.dumps(body, ensure_ascii=is_ascii).encode()) == body
    assert members_of(b" ") == {}


@pytest.mark.parametrize("data", [b'{"a": "' + b"x" * 400_000, b'{"a": ' + b"[" * 400_000, b"[]"])
def test_a_long_member_that_is_no_text(data: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        members_of(data)
    assert refused.value.status == 400
