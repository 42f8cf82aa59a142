"""Management: answers the addresses of the table of endpoints, as RabbitMQ's HTTP API does.

Finds the row of an address and method, checks who asks, calls what answers, and makes the answer:
members and pages (endpoint.ListQuery), errors in RabbitMQ's form, gzip.

    401   no or a wrong password: with WWW-Authenticate, and without a body if none was sent. A user
          who may not: `not_authorised`, without that header. There is no 403: clients test for 401
    404   {"error": "Object Not Found"}, with our reason
    405   another method, with Allow
    301   /api and /api/, to the page that lists the API

A list of several vhosts is asked of each of them. One that is down leaves its rows out: the others
are there, and the header X-Penstock-Down, and the member `penstock.down` of a page, name it. The
list of vhosts itself has a row for it.

An answer that may be long, a list without a page or definitions, waits for its turn, and is sent in
pieces (sending). So what clients ask for without pages does not fill the memory.
"""

import asyncio
import gzip
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import INTERNAL_ERROR, NOT_FOUND
from penstock.http.api_pages import MAKERS
from penstock.http.bodies import SMALL_BYTES_MAX, JsonBodies, members_of
from penstock.http.endpoint import (
    PAGE_SIZE,
    VHOST,
    Answer,
    ApiRequest,
    Endpoint,
    ListQuery,
    columns_of,
    decoded_name,
    is_down,
    not_authorised,
    number_of,
    out_of_range,
)
from penstock.http.endpoint_table import ENDPOINTS
from penstock.http.live import Live
from penstock.http.metrics_text import GZIP_LEVEL
from penstock.http.node_link import NodeLink
from penstock.http.requests import (
    ACCOUNT,
    PIECE_BYTES,
    BasicAuth,
    HttpError,
    JsonAnswer,
    NotAuthorizedError,
    PiecesAnswer,
)
from penstock.members import Columns
from penstock.operation_json import JsonText, dumps, read
from penstock.operation_table import (
    ADMINISTRATORS,
    FIELD_TABLE,
    MANAGERS,
    NODE,
    OPERATIONS,
    POLICYMAKERS,
    TABLE,
    WATCHERS,
)
from penstock.options import WrongValueError
from penstock.server.control import ControlError
from penstock.server.fair_turns import FairTurns

GZIP_BYTES_MIN: Final = 1400  # a shorter answer fits into one packet
THREAD_BYTES: Final = 64 << 10  # a longer one is compressed in a thread
LONG_MAX: Final = 4  # long answers at a time
USER_LONG_MAX: Final = 2
HEADERS: Final = {"Cache-Control": "no-cache", "Vary": "accept, accept-encoding, origin"}
NO_TAG: Final[Mapping[tuple[str, ...], str]] = {
    MANAGERS: "Not management user",
    POLICYMAKERS: "Not policymaker user",
    WATCHERS: "Not monitor user",
    ADMINISTRATORS: "Not administrator user",
}
TRUE_FALSE: Final = {"true": True, "false": False}


class Found:
    """What is at an address. methods: method -> its row. names: in the address."""

    def __init__(self, methods: dict[str, Endpoint], names: dict[str, str], method: str) -> None:
        self.methods = methods
        self.names = names
        self.endpoint = methods.get("GET" if method == "HEAD" else method)

    @property
    def is_open(self) -> bool:
        """Return whether no password is needed: also to learn which methods there are."""
        return self.endpoint.is_open if self.endpoint is not None else bool(self.methods)


class AddressTree:
    """Finds the rows of an address. A word is preferred to a name: users/bulk-delete."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root: dict[str, Any] = {}
        for one in endpoints:
            at = self._root
            for part in one.path.split("/"):
                at = at.setdefault("{}" if part.startswith("{") else part, {})
            methods = at.setdefault("", {})
            assert one.method not in methods, (one.path, one.method)
            methods[one.method] = one

    def find(self, path: str, method: str) -> Found:
        """Return what is there, with no methods if nothing is. path: below /api/, encoded."""
        parts = path.removesuffix("/").split("/")
        texts = [unquote_to_bytes(part).decode("utf-8", "surrogateescape") for part in parts]
        methods = self._methods(self._root, texts)
        names: dict[str, str] = {}
        if methods:
            words = methods.get(method, next(iter(methods.values()))).path.split("/")
            names = {
                word[1:-1]: decoded_name(word[1:-1], text)
                for word, text in zip(words, texts, strict=True) if word.startswith("{")
            }  # fmt: skip
        return Found(methods, names, method)

    def _methods(self, at: dict[str, Any], texts: list[str]) -> dict[str, Endpoint]:
        if not texts:
            found: dict[str, Endpoint] = at.get("", {})
            return found
        for word in (texts[0], "{}"):
            if word and word in at:
                methods = self._methods(at[word], texts[1:])
                if methods:
                    return methods
        return {}


class Management:
    """Answers requests. bodies: reads bodies."""

    def __init__(self, node: NodeLink, auth: BasicAuth, bodies: JsonBodies, live: Live) -> None:
        self._node = node
        self._auth = auth
        self._bodies = bodies
        self._live = live
        self._tree = AddressTree(ENDPOINTS)
        self._pages: dict[str, bytes] = {}
        self._turns = FairTurns(LONG_MAX, USER_LONG_MAX)

    def find(self, path: str, method: str) -> Found:
        """Return what is at this address. path: below /api/."""
        return self._tree.find(path, method)

    def _about(self, name: str) -> bytes:
        """Return a page about the API, which is made when it is first asked for."""
        if name not in self._pages:
            self._pages[name] = MAKERS[name](ENDPOINTS)
        return self._pages[name]

    async def answer(self, found: Found, request: Request) -> Response:
        """Return the answer. The account of who asks is in the request's scope, unless the row
        needs none. Raises HttpError, ControlError."""
        endpoint = found.endpoint
        if not found.methods:
            raise HttpError(404, "Not Found")
        allowed = ", ".join(sorted({*found.methods, "HEAD", "OPTIONS"}))
        if endpoint is None:
            status = 200 if request.method == "OPTIONS" else 405
            return Response(status_code=status, headers={**HEADERS, "Allow": allowed})
        account = None if endpoint.is_open else request.scope[ACCOUNT]
        asked = ApiRequest(
            endpoint, request, self._node, self._auth, found.names, account, self._about,
            self._live,
        )  # fmt: skip
        if account is not None:
            if account.tags.isdisjoint(endpoint.tags):
                has_any = not account.tags.isdisjoint(MANAGERS)
                raise not_authorised(NO_TAG[endpoint.tags if has_any else MANAGERS])
            asked.check_vhost()
        if endpoint.body is not None:
            await self._read_body(asked, endpoint.body)
        if endpoint.may_be_long and "page" not in asked.query:
            return await self._in_turn(asked)
        return await _encoded(await self._result(asked), asked)

    async def _in_turn(self, asked: ApiRequest) -> Response:
        """Return a long answer, when it has a turn, which ends when the answer is sent."""
        user = asked.account.user
        await self._turns.take(user)
        ended = partial(self._turns.give_back, user)
        try:
            reply = await _encoded(await self._result(asked), asked)
        except BaseException:
            ended()
            raise
        if len(reply.body) <= PIECE_BYTES:
            ended()
            return reply
        what = f"{asked.request.method} {asked.request.url.path}"
        data = bytes(reply.body)
        pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        return PiecesAnswer(pieces, len(data), reply.status_code, reply.headers, what, ended)

    async def _read_body(self, asked: ApiRequest, members: tuple[Any, ...]) -> None:
        """Read the body, and check the members of the row. Raises HttpError."""
        most = asked.endpoint.body_bytes_max
        if asked.endpoint.is_raw:
            async with self._bodies.long(asked.request, most, bytes, is_typed=False) as data:
                asked.data = data
            return
        if most <= SMALL_BYTES_MAX:
            body = await self._bodies.untyped(asked.request, most)
        else:
            async with self._bodies.long(asked.request, most, members_of, is_typed=False) as body:
                pass
        if not isinstance(body, dict):
            raise HttpError(400, "not_json")
        asked.raw_body = body
        asked.body, missing = {}, []
        for member in members:
            value = body.get(member.name)
            if value is None and member.is_required:
                missing.append(f"{{key_missing,{member.name}}}")
                continue
            if value is None:
                value = member.value
            if member.kind.words == "true or false" and isinstance(value, str):
                value = TRUE_FALSE.get(value, value)
            if member.kind.words.startswith("whole number"):
                value = number_of(value)
            if value == [] and member.kind.words in (TABLE, FIELD_TABLE):
                value = {}  # as languages without a type of its own for an empty object write it
            try:
                asked.body[member.name] = member.kind.check(value)
            except WrongValueError as error:
                text = f"{member.name}: given {value!r:.200}, expected {error.expected}"
                raise HttpError(400, text) from error
        if missing:
            raise HttpError(400, f"[{','.join(missing)}]")

    async def _result(self, asked: ApiRequest) -> object:
        """Return what the row answers: an Answer, a Response, a value, or a JsonText."""
        endpoint = asked.endpoint
        if endpoint.rows:
            return await self._rows(asked, ListQuery.of(asked.query))
        if endpoint.describes:
            found = await self._described(asked)
        elif isinstance(endpoint.does, str):
            found = await self._called(asked, endpoint.does)
        else:
            found = await endpoint.does(asked)
        query = ListQuery.of(asked.query) if endpoint.is_list else ListQuery()
        is_whole = endpoint.shape is None and query == ListQuery()
        if isinstance(found, Answer | Response) or (is_whole and isinstance(found, JsonText)):
            return found
        if isinstance(found, JsonText):
            found = read(found.text)
        if endpoint.shape is not None:
            found = endpoint.shape(found)
        if endpoint.is_list and isinstance(found, list):
            return query.cut(found)
        if isinstance(found, dict):
            return Columns(columns_of(asked.query)).cut(found)
        return found

    async def _described(self, asked: ApiRequest) -> object:
        """Return one row: of the vhost in the address, or of the first that has it."""
        of = asked.names_of_row()
        _, name = of.popitem()
        columns = list(columns_of(asked.query))
        vhosts = asked.vhosts()
        if VHOST not in asked.names:
            vhosts = await asked.started(vhosts)
        for n, vhost in enumerate(vhosts, 1):
            try:
                return await asked.call(
                    "describe_row", vhost, kind=asked.endpoint.describes, name=name, of=of,
                    columns=columns, samples=asked.sampled(), **_stats(asked),
                )  # fmt: skip
            except ControlError as error:
                if n == len(vhosts) or not (error.code == NOT_FOUND or is_down(error)):
                    raise
        raise HttpError(404, "Not Found")

    async def _called(self, asked: ApiRequest, op: str) -> object:
        row = OPERATIONS[op]
        of = asked.endpoint.of
        names = {of.get(part, part): text for part, text in asked.names.items()}
        values = {**asked.body, **asked.parameters(row.arguments), **names}
        args = {one.name: values[one.name] for one in row.arguments if one.name in values}
        vhost = asked.names.get(VHOST) if row.of != NODE else None
        if asked.endpoint.method == "GET":
            return await asked.call(op, vhost, **args)
        return await asked.call_once(op, vhost, **args)

    # ---- lists of vhosts -----------------------------------------------------------------------

    async def _rows(self, asked: ApiRequest, query: ListQuery) -> object:
        """Return a list that the vhosts make."""
        vhosts = asked.vhosts()
        is_named = VHOST in asked.names
        if not is_named:
            vhosts = await asked.started(vhosts)
        if is_named or (len(vhosts) == 1 and not asked.down):
            try:
                return await self._of_vhost(
                    asked, vhosts[0], query, query.page, query.page_size, is_alone=True
                )
            except ControlError as error:
                if query.page is not None and "argument 'page'" in error.text:
                    pages = error.text.rpartition("at most ")[2]
                    raise out_of_range(query, int(pages)) from error
                if is_named or not is_down(error):
                    raise
        if query.page is None:
            texts = list((await self._of_all(asked, vhosts, query)).values())
            if not query.sort:
                texts = texts[::-1] if query.is_reverse else texts
                inner = [text.text.strip()[1:-1] for text in texts]
                return JsonText(b"[" + b",".join(one for one in inner if one) + b"]")
            rows = [row for text in texts for row in json.loads(text.text)]
            return query.picked(query.ordered(rows))
        return await self._page(asked, vhosts, query)

    async def _page(self, asked: ApiRequest, vhosts: list[str], query: ListQuery) -> object:
        """Return a page of the rows of several vhosts. Sorted: each gives the first rows, up to the
        end of the page. Not sorted: the vhosts follow one another, and their counts say which of
        them have rows of the page."""
        assert query.page is not None
        end = query.page * query.page_size
        first = end - query.page_size
        if query.sort:
            texts = await self._of_all(asked, vhosts, query, 1, end)
            pages = {vhost: json.loads(text.text) for vhost, text in texts.items()}
            rows = query.ordered([row for page in pages.values() for row in page["items"]])
            found = rows[first:end]
        else:
            size = query.page_size
            texts = await self._of_all(asked, vhosts, query, 1, 1)
            pages = {vhost: json.loads(text.text) for vhost, text in texts.items()}
            found = []
            at = 0
            there = list(pages.items())
            for vhost, page in there[::-1] if query.is_reverse else there:
                count = page["filtered_count"]
                low, high = max(first - at, 0), min(end - at, count)
                for number in range(low // size + 1, -(-high // size) + 1 if low < high else 0):
                    text = await self._of_vhost(asked, vhost, query, number, size)
                    some = json.loads(text.text)["items"]
                    base = (number - 1) * size
                    found += some[max(low - base, 0) : high - base]
                at += count
        counts = {
            name: sum(page[name] for page in pages.values())
            for name in ("filtered_count", "total_count")
        }
        answer = query.page_of(found, counts["filtered_count"], counts["total_count"])
        if asked.down:
            answer["penstock"] = {"down": sorted(asked.down)}
        return answer

    async def _of_all(
        self, asked: ApiRequest, vhosts: list[str], query: ListQuery, page: int | None = None,
        size: int = PAGE_SIZE,
    ) -> dict[str, JsonText]:  # fmt: skip
        """Return the answers of the vhosts that answer."""
        return await asked.of_each(
            vhosts, lambda vhost: self._of_vhost(asked, vhost, query, page, size)
        )

    async def _of_vhost(
        self, asked: ApiRequest, vhost: str, query: ListQuery, page: int | None, size: int, *,
        is_alone: bool = False,
    ) -> JsonText:  # fmt: skip
        """Return the rows of one vhost: all, or the page of this number. is_alone: they are the
        whole answer, and not sorted among others."""
        columns = list(query.columns)
        if columns and query.sort and not is_alone:
            columns += [query.sort, "name"]
        found = await asked.call(
            "list_rows", vhost, kind=asked.endpoint.rows, of=asked.names_of_row(),
            columns=columns, sort=query.sort, reverse=query.is_reverse, page=page, page_size=size,
            name=query.name, use_regex=query.use_regex, samples=asked.sampled(), **_stats(asked),
        )  # fmt: skip
        return found if isinstance(found, JsonText) else JsonText(json.dumps(found).encode())


def _stats(asked: ApiRequest) -> dict[str, bool]:
    """Return what is said about statistics, for list_rows and describe_row."""
    return {
        "rates": not asked.is_set("disable_stats"), "totals": asked.is_set("enable_queue_totals")
    }  # fmt: skip


# ---- answers -------------------------------------------------------------------------------------


async def _encoded(found: object, asked: ApiRequest) -> Response:
    """Return the HTTP answer for a result."""
    if isinstance(found, Response):
        return found
    answer = found if isinstance(found, Answer) else Answer(asked.endpoint.status, found)
    headers = {**HEADERS, **answer.headers}
    if asked.down:
        headers["X-Penstock-Down"] = ", ".join(quote(name, safe="") for name in asked.down)
    if answer.body is None or answer.status == 204:
        return Response(status_code=answer.status, headers=headers)
    if isinstance(answer.body, bytes):
        data = answer.body
    elif isinstance(answer.body, JsonText):
        data = answer.body.text
    else:
        data = dumps(answer.body)
    headers.setdefault("Content-Type", "application/json")
    data = await compressed(data, asked.request, headers)
    reply = Response(data, answer.status, headers)
    if asked.request.method == "HEAD":
        reply.body = b""
    return reply


async def compressed(data: bytes, request: Request, headers: dict[str, str]) -> bytes:
    """Return the body as gzip, with its header, if the client takes that and it pays."""
    if len(data) < GZIP_BYTES_MIN or not takes_gzip(request):
        return data
    headers["Content-Encoding"] = "gzip"
    if len(data) < THREAD_BYTES:
        return gzip.compress(data, GZIP_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, data, GZIP_LEVEL, mtime=0)


def takes_gzip(request: Request) -> bool:
    """Return whether the client takes a body as gzip."""
    for one in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = one.strip().partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def error_answer(error: HttpError, *, has_password: bool) -> Response:
    """Return the answer for an error, in RabbitMQ's form. has_password: the request has an
    Authorization header."""
    headers = {**HEADERS, **error.headers}
    if isinstance(error, NotAuthorizedError):
        if not has_password:
            return Response(status_code=401, headers=headers)
        return JsonAnswer({"error": "not_authorized", "reason": "Login failed"}, 401, headers)
    body = error.body()
    status = error.status
    if status == 403 and "error" not in error.more:
        status, body["error"] = 401, "not_authorised"
    elif status == 404 and "error" not in error.more:
        body["error"] = "Object Not Found"
    return JsonAnswer(body, status, headers)


def refusal(error: ControlError) -> HttpError:
    """Return the HTTP error for a refusal of an operation, with AMQP's text without its word."""
    word, dash, rest = error.text.partition(" - ")
    text = rest if dash and word.isupper() and " " not in word else error.text
    if error.code == NOT_FOUND:
        return HttpError(404, text)
    if error.code == INTERNAL_ERROR:
        return HttpError(503, text)
    if error.code == 403:
        return HttpError(403, text)
    return HttpError(400, text)
