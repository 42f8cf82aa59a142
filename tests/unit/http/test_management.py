"""RabbitMQ's HTTP API: who may ask what, forms of errors, members, sorting, pages."""

import asyncio
import base64
import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.http.api import Api
from penstock.http.endpoint import ANY, NEW, OPENED, Endpoint, ListQuery, described_names
from penstock.http.endpoint_table import ENDPOINTS
from penstock.http.node_pages import summed
from penstock.http.requests import HttpError
from penstock.operation_json import JsonText
from penstock.operation_table import ADMINISTRATORS, MANAGERS, OPERATIONS, POLICYMAKERS, WATCHERS
from penstock.server.control import ControlError
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.http_rig import EVERYTHING, TAGS, HttpRig, users_facts

WELL = {
    "is_ready": True, "is_healthy": True, "takes_clients": True, "problems": [], "host": "::",
    "listeners": {"amqp": 5672, "http": 15672}, "disk_free_bytes": 2, "disk_free_limit_bytes": 1,
    "vhosts": [{"name": "/", "state": "running", "blocked_reason": None, "unserved": None}],
}  # fmt: skip
USERS = ("untagged", "manager", "policy", "watcher", "boss")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.users.take(users_facts(**dict.fromkeys((*USERS, "guest", "elsewhere"), EVERYTHING)))
    rig.node.answers["status"] = WELL
    rig.node.answers["list_global_parameters"] = []
    rig.node.answers["list_vhosts"] = []
    rig.node.answers["vhost_totals"] = {"object_totals": {"queues": 2}, "recv_oct": 7}
    yield rig
    rig.close()


# ---- who may -------------------------------------------------------------------------------------


def address_of(row: Endpoint, vhost: str = "%2F") -> str:
    path = row.path
    for name in described_names(path):
        path = path.replace(f"{{{name}}}", vhost if name == "vhost" else "x")
    return f"/api/{path}"


def may(row: Endpoint, user: str) -> bool:
    if row.path == "user-limits/{user}" and row.method == "GET":
        return user == "boss"  # others see their own
    return row.is_open or bool({*TAGS.get(user, ["management"])} & {*row.tags})


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
def test_each_row_is_for_users_with_its_tags(rig: HttpRig, row: Endpoint) -> None:
    for user in USERS:
        reply = rig.ask(address_of(row), method=row.method, user=user, body=b"{")
        refused = reply.status == 401 and reply.json()["error"] == "not_authorised"
        assert refused != may(row, user), (user, reply.status, reply.body)
        if refused:
            assert "www-authenticate" not in reply.headers
            assert not [op for op, _, _ in rig.node.asked if op != "status"]
        rig.node.asked.clear()
    reply = rig.ask(address_of(row), method=row.method, user=None, body=b"{")
    if row.is_open:
        assert reply.status != 401
    else:
        assert (reply.status, reply.body) == (401, b"")
        assert reply.headers["www-authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize(
    "row", [row for row in ENDPOINTS if "{vhost}" in row.path],
    ids=lambda row: f"{row.method} {row.path}",
)  # fmt: skip
def test_each_row_about_a_vhost_is_for_users_of_the_vhost(rig: HttpRig, row: Endpoint) -> None:
    user = next(user for user in ("manager", "policy", "boss") if may(row, user))
    if row.vhost in (ANY, NEW):
        return
    reply = rig.ask(address_of(row, "other"), method=row.method, user=user, body=b"{")
    if user == "boss":
        assert (reply.status == 401) == (row.vhost == OPENED)
        return
    assert (reply.status, reply.json()["error"]) == (401, "not_authorised")
    assert reply.json()["reason"] == "User not authorised to access virtual host"
    reply = rig.ask(address_of(row, "none"), method=row.method, user=user, body=b"{")
    assert (reply.status, reply.json()["error"]) == (404, "Object Not Found")


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
def test_each_row_makes_sense(row: Endpoint) -> None:
    assert row.tags in (MANAGERS, WATCHERS, POLICYMAKERS, ADMINISTRATORS) or row.is_open
    assert len([one for one in (row.does, row.rows, row.describes) if one]) == 1
    if isinstance(row.does, str) and row.does:
        operation = OPERATIONS[row.does]
        names = (row.of.get(name, name) for name in described_names(row.path))
        given = {*names, *(one.name for one in row.body or ())}
        for one in operation.arguments:
            assert one.name in given or not one.is_required, one.name
    assert row.help.endswith(".")
    assert (row.status == 204) <= (row.method != "GET")


def test_an_unknown_tag_and_a_wrong_password(rig: HttpRig) -> None:
    reply = rig.ask("/api/whoami", user="untagged")
    assert reply.json() == {"error": "not_authorised", "reason": "Not management user"}
    reply = rig.ask("/api/whoami", user="boss", password="wrong")
    assert reply.json() == {"error": "not_authorized", "reason": "Login failed"}
    assert reply.status == 401


# ---- addresses and methods -----------------------------------------------------------------------


def test_methods(rig: HttpRig) -> None:
    reply = rig.ask("/api/overview", method="POST", user=None)
    assert (reply.status, reply.body) == (405, b"")
    assert reply.headers["allow"] == "GET, HEAD, OPTIONS"
    reply = rig.ask("/api/cluster-name", method="OPTIONS", user=None)
    assert (reply.status, reply.headers["allow"]) == (200, "GET, HEAD, OPTIONS, PUT")
    got = rig.ask("/api/whoami")
    reply = rig.ask("/api/whoami", method="HEAD")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-length"] == str(len(got.body))
    assert got.headers["cache-control"] == "no-cache"
    assert got.headers["vary"] == "accept, accept-encoding, origin"


def test_addresses(rig: HttpRig) -> None:
    assert rig.ask("/api/whoami/").json()["name"] == "guest"
    for address in ("/api/x", "/api/whoami/x", "/api/health", "/api/queues/%2F/q/x"):
        reply = rig.ask(address)
        assert (reply.status, reply.json()["error"]) == (404, "Object Not Found"), address


def test_a_body_needs_no_type_and_must_be_an_object(rig: HttpRig) -> None:
    rig.node.answers["set_global_parameter"] = {}
    plain = {"content-type": "application/x-www-form-urlencoded"}

    def put(body: bytes, headers: dict[str, str] = plain) -> Reply:
        return rig.ask("/api/cluster-name", method="PUT", user="boss", headers=headers, body=body)

    reply = put(b'{"name": "lab", "more": 1}')
    assert (reply.status, reply.body) == (204, b"")
    op, vhost, args = rig.node.asked[-1]
    assert (op, vhost, args["value"]) == ("set_global_parameter", None, "lab")
    assert args["as_user"] == {"name": "boss", "tags": ["administrator"], "from": "127.0.0.1:1234"}
    assert put(b"").json() == {"error": "bad_request", "reason": "[{key_missing,name}]"}
    assert put(b"[]").json() == {"error": "bad_request", "reason": "not_json"}
    assert put(b"{").json()["reason"].startswith("not_json")
    assert put(b'{"name": 7}').status == 400
    assert put(b'{"name": "x"}', {**plain, "origin": "http://evil.example"}).status == 403
    assert put(b'{"name": "' + b"x" * 70_000 + b'"}').status == 413
    assert put(b'{"a":' * 10_000 + b"1").status == 400


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (403, 401, "not_authorised"), (404, 404, "Object Not Found"), (406, 400, "bad_request"),
        (405, 400, "bad_request"), (541, 503, "unavailable"),
    ],
)  # fmt: skip
def test_what_an_operation_refuses(rig: HttpRig, code: int, status: int, error: str) -> None:
    rig.node.answers["describe_row"] = ControlError(code, "SOME_NAME - why not")
    reply = rig.ask("/api/queues/%2F/q")
    assert (reply.status, reply.json()) == (status, {"error": error, "reason": "why not"})


def test_long_answers_are_compressed_if_asked_for(rig: HttpRig) -> None:
    rows = [{"name": f"queue {n}", "vhost": "/"} for n in range(5000)]
    rig.node.answers["list_rows"] = rows
    asked = {"accept-encoding": "deflate, gzip;q=0.5"}
    for count, is_zipped in ((1, False), (100, True), (5000, True)):
        rig.node.answers["list_rows"] = rows[:count]
        reply = rig.ask("/api/queues/%2F", headers=asked)
        assert (reply.headers.get("content-encoding") == "gzip") == is_zipped
        data = gzip.decompress(reply.body) if is_zipped else reply.body
        assert json.loads(data) == rows[:count]
    assert "content-encoding" not in rig.ask("/api/queues/%2F").headers
    asked = {"accept-encoding": "gzip;q=0, identity"}
    assert "content-encoding" not in rig.ask("/api/queues/%2F", headers=asked).headers


def test_long_answers_have_turns_and_are_sent_in_pieces(rig: HttpRig) -> None:
    rows = [{"name": "x" * 1000, "n": n} for n in range(3000)]
    under_way: list[int] = []
    most: list[int] = []

    async def list_rows() -> list[dict[str, object]]:
        under_way.append(1)
        most.append(len(under_way))
        for _ in range(5):
            await asyncio.sleep(0)
        under_way.pop()
        return rows

    rig.node.waits["list_rows"] = list_rows

    async def scenario(app: Api) -> Reply:
        replies = await asyncio.gather(*[ask(app, "/api/queues/%2F") for _ in range(8)])
        for reply in replies:
            assert reply.json() == rows
            assert len(reply.pieces) > 5
            assert int(reply.headers["content-length"]) == len(reply.body)
        left = await ask(app, "/api/queues/%2F", leaves_after=1)
        assert left.status == 200
        return await ask(app, "/api/queues/%2F", method="HEAD")

    reply = rig.run(scenario)
    assert (reply.status, reply.body) == (200, b"")
    assert max(most) == 2  # of one user


# ---- members, sorting, pages ---------------------------------------------------------------------


ROWS = [
    {"name": "b", "n": 3, "stats": {"rate": 1.5, "more": 1}, "vhost": "/"},
    {"name": "a", "n": None, "vhost": "/"},
    {"name": "c", "n": 1, "stats": {"rate": 0}, "vhost": "/"},
]


def cut(rows: list[dict[str, Any]], **query: str) -> Any:
    return ListQuery.of(query).cut(rows)


def names(rows: list[dict[str, Any]]) -> str:
    return "".join(row["name"] for row in rows)


def test_columns() -> None:
    assert cut(ROWS[:1], columns="name,stats.rate,nope,n.x") == [
        {"name": "b", "stats": {"rate": 1.5}}
    ]
    assert cut([{"a": [{"b": 1, "c": 2}, 3]}], columns="a.b") == [{"a": [{"b": 1}]}]
    assert cut(ROWS, columns="") == ROWS


def test_sort() -> None:
    assert names(cut(ROWS)) == "bac"
    assert names(cut(ROWS, sort="n")) == "acb"
    assert names(cut(ROWS, sort="n", sort_reverse="true")) == "bca"
    assert names(cut(ROWS, sort="stats.rate")) == "acb"
    assert names(cut(ROWS, sort="unknown")) == "bac"
    assert names(cut(ROWS, sort="")) == "bac"


def test_pages() -> None:
    rows = [{"name": f"q{n}"} for n in range(7)]
    assert cut(rows, page="2", page_size="3") == {
        "filtered_count": 7, "item_count": 3, "items": rows[3:6], "page": 2, "page_count": 3,
        "page_size": 3, "total_count": 7,
    }  # fmt: skip
    found = cut(rows, page="1", name="Q[2-4]", use_regex="true", pagination="false")
    assert (found["items"], found["filtered_count"]) == (rows[2:5], 3)
    assert cut(rows, page="1", name="q[2-4]")["items"] == []
    assert cut([], page="1")["page_count"] == 1


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"page": "0"}, "invalid_pagination_parameters"),
        ({"page": "x"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters"),
        ({"page": "3", "page_size": "1"}, "page_out_of_range"),
        ({"page": "1", "name": "(", "use_regex": "true"}, "bad_request"),
    ],
)
def test_pages_that_there_are_not(query: dict[str, str], error: str) -> None:
    with pytest.raises(HttpError) as caught:
        ListQuery.of(query).cut([{"name": "a"}])
    assert (caught.value.status, caught.value.body()["error"]) == (400, error)


def test_sums() -> None:
    one = {"publish": 1, "publish_details": {"rate": 0.5}, "name": "a", "is": True}
    assert summed([one, {"publish": 2, "publish_details": {"rate": 1.0}, "ack": 1}]) == {
        "publish": 3, "publish_details": {"rate": 1.5}, "name": "a", "is": True, "ack": 1,
    }  # fmt: skip
    assert summed([]) == {}


@pytest.mark.parametrize("kind", ["streams", "leases", "batches"])
def test_a_long_list_of_one_operation_is_cut_too(rig: HttpRig, kind: str) -> None:
    def long(_vhost: str, **_: object) -> JsonText:
        return JsonText(json.dumps(ROWS).encode())

    rig.node.answers[f"list_{kind}"] = long
    path = f"/api/penstock/{kind}/%2F"
    assert rig.ask(path).json() == ROWS
    assert rig.ask(f"{path}?sort=n&columns=name").json() == [{"name": one} for one in "acb"]
    page = rig.ask(f"{path}?page=2&page_size=2").json()
    assert (page["items"], page["total_count"]) == (ROWS[2:], 3)


# ---- several vhosts ------------------------------------------------------------------------------


class Vhosts:
    """Vhosts with rows, which answer list_rows."""

    def __init__(self, rig: HttpRig, rows: dict[str, list[dict[str, Any]]]) -> None:
        facts = users_facts(guest=EVERYTHING)
        facts["vhosts"] = [[name, "ready"] for name in rows]
        facts["permissions"] = [["guest", name, *EVERYTHING] for name in rows]
        rig.users.take(facts)
        rig.node.answers["list_rows"] = self.list_rows
        self.rows = rows
        self.down: set[str] = set()

    def list_rows(
        self, vhost: str, *, sort: str, reverse: bool, page: int | None, page_size: int,
        columns: list[str], **_: object,
    ) -> Any:  # fmt: skip
        if vhost in self.down:
            return ControlError(541, "INTERNAL_ERROR - it is down")
        rows = ListQuery(tuple(columns), sort, reverse).cut(self.rows[vhost])
        assert isinstance(rows, list)
        if page is None:
            return rows
        if page > max(-(-len(rows) // page_size), 1):
            text = "PRECONDITION_FAILED - list_rows: argument 'page': given 2, expected at most 1"
            return ControlError(406, text)
        return {
            "items": rows[(page - 1) * page_size : page * page_size],
            "filtered_count": len(rows), "total_count": len(rows),
        }  # fmt: skip


@pytest.fixture
def vhosts(rig: HttpRig) -> Vhosts:
    def rows(vhost: str, *numbers: int) -> list[dict[str, Any]]:
        return [{"name": f"{vhost}{n}", "n": n, "vhost": vhost} for n in numbers]

    return Vhosts(rig, {"a": rows("a", 5, 1, 9), "b": [], "c": rows("c", *range(20, 0, -2))})


def test_a_list_of_all_vhosts(rig: HttpRig, vhosts: Vhosts) -> None:
    found = rig.ask("/api/queues").json()
    assert found == vhosts.rows["a"] + vhosts.rows["c"]
    found = rig.ask("/api/queues?sort=n&columns=vhost").json()
    assert "".join(row["vhost"] for row in found) == "accaccacccccc"
    ordered = [row["n"] for row in rig.ask("/api/queues?sort=n").json()]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 13, 50])
@pytest.mark.parametrize("how", ["", "&sort=n", "&sort=n&sort_reverse=true"])
def test_pages_of_all_vhosts_follow_one_another(
    rig: HttpRig, vhosts: Vhosts, size: int, how: str
) -> None:
    whole = rig.ask(f"/api/queues?x=1{how}").json()
    found: list[Any] = []
    for page in range(1, -(-13 // size) + 1):
        reply = rig.ask(f"/api/queues?page={page}&page_size={size}{how}&columns=name").json()
        assert (reply["filtered_count"], reply["total_count"], reply["page"]) == (13, 13, page)
        assert reply["item_count"] == len(reply["items"])
        found += reply["items"]
    assert found == [{"name": row["name"]} for row in whole]
    reply = rig.ask(f"/api/queues?page={-(-13 // size) + 1}&page_size={size}{how}")
    assert (reply.status, reply.json()["error"]) == (400, "page_out_of_range")


def test_a_page_of_the_only_vhost_is_asked_for_once_and_passed_on(rig: HttpRig) -> None:
    rows = [{"name": f"q{n}", "n": -n, "vhost": "/"} for n in range(5)]
    alone = Vhosts(rig, {"/": rows})
    for how in ("", "&sort=n", "&sort=n&columns=name"):
        rig.node.asked.clear()
        page = rig.ask(f"/api/queues?page=1&page_size=2{how}").json()
        assert page == rig.ask(f"/api/queues/%2F?page=1&page_size=2{how}").json()
        assert [op for op, _, _ in rig.node.asked].count("list_rows") == 2
        assert page["total_count"] == 5
    assert rig.ask("/api/queues").json() == rows
    reply = rig.ask("/api/queues?page=9")
    assert (reply.status, reply.json()["error"]) == (400, "page_out_of_range")
    alone.down = {"/"}
    for address in ("/api/queues", "/api/queues?sort=n"):
        reply = rig.ask(address)
        assert (reply.json(), reply.headers["x-penstock-down"]) == ([], "%2F")
    assert rig.ask("/api/queues?page=1").json()["penstock"] == {"down": ["/"]}
    rig.node.answers["list_vhosts"] = [{"name": "/", "state": "stopped"}]
    rig.node.answers["status"] = {**WELL, "vhosts": rig.node.answers["list_vhosts"]}
    rig.node.asked.clear()
    assert rig.ask("/api/queues?page=1").json()["penstock"] == {"down": ["/"]}
    assert "list_rows" not in [op for op, _, _ in rig.node.asked]


def test_a_vhost_that_is_down_leaves_the_others(rig: HttpRig, vhosts: Vhosts) -> None:
    vhosts.down = {"a"}
    reply = rig.ask("/api/queues")
    assert reply.json() == vhosts.rows["c"]
    assert reply.headers["x-penstock-down"] == "a"
    found = rig.ask("/api/queues?page=1").json()
    assert (found["items"], found["penstock"]) == (vhosts.rows["c"], {"down": ["a"]})
    reply = rig.ask("/api/queues/a")
    assert (reply.status, reply.json()["reason"]) == (503, "it is down")


# ---- any operation -------------------------------------------------------------------------------


def called(rig: HttpRig, op: str, body: bytes = b"", user: str = "boss") -> Reply:
    return rig.ask(f"/api/penstock/operations/{op}", method="POST", body=body, user=user)


def test_any_operation_is_called_for_the_user(rig: HttpRig) -> None:
    rig.node.answers["peek"] = {"messages": [{"body": b"\xff"}], "after": 1}
    reply = called(rig, "peek", b'{"queue": "q", "after": null}', "manager")
    assert reply.json() == {"messages": [{"body": {"b64": "/w=="}}], "after": 1}
    op, vhost, args = rig.node.asked[-1]
    assert (op, vhost, args["queue"], args["after"]) == ("peek", "/", "q", None)
    assert args["as_user"]["name"] == "manager"
    rig.node.answers["list_users"] = []
    assert called(rig, "list_users?vhost=other").json() == []
    assert rig.node.asked[-1][1] is None
    rig.node.answers["list_permissions"] = []
    for query, expected in (("", None), ("?vhost=other", "other")):
        assert called(rig, f"list_permissions{query}").json() == []
        assert rig.node.asked[-1][1] == expected


@pytest.mark.parametrize(
    ("op", "body", "status", "reason"),
    [
        ("peek", b'{"as_user": {"name": "boss"}}', 400, "peek: unknown argument 'as_user'"),
        ("peeks", b"", 404, "no operation 'peeks', did you mean 'peek'?"),
        ("peek?vhost=none", b"", 404, "no vhost 'none'"),
        ("peek", b"[1]", 400, "expected a JSON object"),
        ("peek", b'{"queue": "\\ud800"}', 400, "half of a surrogate pair"),
        ("peek?vhost=other", b"", 401, "User not authorised to access virtual host"),
        ("peek", b"x" * (5 << 20), 413, ""),
    ],
)
def test_an_operation_that_is_refused(
    rig: HttpRig, op: str, body: bytes, status: int, reason: str
) -> None:
    reply = called(rig, op, body, "manager")
    assert reply.status == status
    assert reason in reply.json()["reason"]
    assert not [one for one in rig.node.asked if one[0] == "peek"]


def test_a_refusal_of_an_operation_has_amqps_code(rig: HttpRig) -> None:
    rig.node.answers["peek"] = ControlError(404, "NOT_FOUND - no queue 'q'")
    reply = called(rig, "peek", b'{"queue": "q"}')
    assert reply.status == 404
    assert (reply.json()["code"], reply.json()["reason"]) == (404, "NOT_FOUND - no queue 'q'")


# ---- the node ------------------------------------------------------------------------------------


def test_health_checks(rig: HttpRig) -> None:
    checks = "/api/health/checks"
    assert rig.ask(f"{checks}/port-listener/5672").json() == {"status": "ok", "port": 5672}
    reply = rig.ask(f"{checks}/port-listener/1")
    assert (reply.status, reply.json()) == (
        503,
        {
            "status": "failed", "reason": "No active listener", "missing": 1,
            "ports": [5672, 15672],
        },
    )  # fmt: skip
    assert rig.ask(f"{checks}/port-listener/x").status == 400
    assert rig.ask(f"{checks}/protocol-listener/amqp091").status == 200
    assert rig.ask(f"{checks}/protocol-listener/mqtt").json()["missing"] == "mqtt"
    assert rig.ask(f"{checks}/virtual-hosts").json() == {"status": "ok"}
    row = {"name": "/", "state": "down", "blocked_reason": "memory", "unserved": None}
    rig.node.answers["status"] = {**WELL, "vhosts": [row], "is_ready": False, "problems": ["p"]}
    reply = rig.ask(f"{checks}/alarms", user="watcher")
    assert reply.status == 503
    assert reply.json()["alarms"][0]["resource"] == "memory"
    assert "vhost" not in rig.ask(f"{checks}/alarms").json()["alarms"][0]
    assert rig.ask(f"{checks}/virtual-hosts").status == 503
    assert rig.ask(f"{checks}/is-in-service").status == 503


def test_overview_has_what_telegraf_needs(rig: HttpRig) -> None:
    found = rig.ask("/api/overview").json()
    assert found["product_name"] == "Penstock"
    assert found["node"].startswith("penstock@")
    assert {"message_stats", "object_totals", "queue_totals", "listeners"} <= set(found)


# ---- pages about the API -------------------------------------------------------------------------


def test_api_redirects_to_the_page_that_lists_it(rig: HttpRig) -> None:
    for address in ("/api", "/api/"):
        reply = rig.ask(address, user=None)
        assert (reply.status, reply.headers["location"]) == (301, "/api/index.html")
    reply = rig.ask("/api/index.html", user=None)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    for row in ENDPOINTS:
        assert f"/api/{row.path}".encode() in reply.body


def test_openapi_has_each_row_once(rig: HttpRig) -> None:
    document = rig.ask("/api/openapi.json", user=None).json()
    rows = {
        (path.removeprefix("/api/"), method.upper())
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert rows == {(row.path, row.method) for row in ENDPOINTS}
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    put = document["paths"]["/api/cluster-name"]["put"]
    schema = put["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["name"]
    assert schema["properties"]["name"]["type"] == "string"
    assert document["paths"]["/api/auth"]["get"]["security"] == []


def test_a_password_in_an_address_is_not_logged(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found = rig.ask("/api/auth/hash_password/s3cret", user="boss").json()
    assert len(base64.b64decode(found["ok"])) == 36
    assert "/api/auth/hash_password/: 200" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_client_that_leaves_before_its_body_has_come_is_no_error(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.ask("/api/vhosts/v", method="PUT", user="boss", body=[b"{", None])
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
