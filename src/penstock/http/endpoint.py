"""Endpoint: a row of the table of the HTTP API; ApiRequest: one request to it; ListQuery: its rows.

An endpoint is data: an address below /api, a method, who may call it, and what answers. That is
one of

    does        an operation of penstock.operation_table: its arguments are the names in the address
                and the members of the body that have the same names; or a function of ApiRequest
    rows        a list of the vhosts: the kind of `list_rows`
    describes   one object of a vhost: the kind of `describe_row`; the last name in the address

`shape` makes RabbitMQ's JSON of a result. A function may return an Answer to choose the status.

Names in an address, such as {queue}, are decoded; "amq.default" is the default exchange, "".
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request

from penstock.access.permissions import DEFAULT_EXCHANGE, NOTHING, Identity, name_filter
from penstock.errors import INTERNAL_ERROR
from penstock.http.live import Live
from penstock.http.node_link import NodeLink
from penstock.http.requests import BasicAuth, HttpError
from penstock.members import Columns, Row, dug, sort_key
from penstock.operation_json import JsonText, read
from penstock.operation_table import AS_USER, MANAGERS, OPERATIONS, WATCHERS, Argument, is_of_node
from penstock.server.backends import Account
from penstock.server.control import ControlError
from penstock.server.watched_process import STOPPED
from penstock.storage.files.user_store import READY

VHOST: Final = "vhost"
PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
SMALL_BODY_BYTES: Final = 64 << 10

# Which vhosts an address may name: one that the user may open; or see, which watchers may do with
# all; or any that there is; or also one that there is not.
OPENED: Final = "the user's permissions on the vhost"
SEEN: Final = "permissions on the vhost, or the tag monitoring or administrator"
ANY: Final = ""
NEW: Final = "new"

COLUMNS: Final = "columns"
LIST_QUERY: Final[Mapping[str, str]] = {
    COLUMNS: "only these members, separated by commas; a dot goes into objects",
    "sort": "sort by this member",
    "sort_reverse": "true: the largest first",
    "page": "answer one page: its number, from 1",
    "page_size": f"rows of a page, at most {PAGE_SIZE_MAX}",
    "name": "with page: only names with this text in them",
    "use_regex": "true: `name` is a regular expression",
}
STATS_QUERY: Final[Mapping[str, str]] = {
    "disable_stats": "true: without statistics",
    "enable_queue_totals": "true: with the counts of messages, also without statistics",
}
_DIGITS: Final = re.compile(r"^[0-9]{1,19}$")
_NUMBER: Final = re.compile(r"^-?[0-9]{1,19}$")
_SAMPLED: Final = re.compile(r"^(?:lengths|msg_rates|data_rates|node_stats)_(?:age|incr)$")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address and method, see the head of this module.

    help: one line. of: names in the address, and what the operation calls them, or `list_rows` as
    choosers of rows, where that is another name. tags: the user needs one of these, or of those of
    the operation; () with is_open: no password either. vhost: OPENED, SEEN, ANY or NEW. body: the
    members that are read, None if a body is not read; others are ignored, as RabbitMQ does.
    is_raw: the body is read, and not parsed. query: parameter -> meaning; those with the name of an
    argument of the operation are given to it. status: of an answer that is not an Answer; 201 and
    204 have no body. media_type: of the answer. is_ours: RabbitMQ has nothing like it.
    """

    path: str
    method: str
    help: str
    does: "str | Function" = ""
    rows: str = ""
    describes: str = ""
    of: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = MANAGERS
    vhost: str = SEEN
    body: tuple[Argument, ...] | None = None
    body_bytes_max: int = SMALL_BODY_BYTES
    is_raw: bool = False
    query: Mapping[str, str] = field(default_factory=dict)
    shape: "Callable[[Any], object] | None" = None
    status: int = 200
    media_type: str = "application/json"
    is_open: bool = False
    is_ours: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.does, str) and self.does:
            object.__setattr__(self, "tags", OPERATIONS[self.does].tags or self.tags)

    @property
    def may_be_long(self) -> bool:
        """Return whether the answer has what many things are, if no page of them is asked for."""
        return bool(self.rows) or self.path.startswith(("definitions", "penstock/operations"))

    @property
    def is_list(self) -> bool:
        """Return whether the answer is a list that can be sorted and paged."""
        return "sort" in self.query


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a status of its own. body: JSON; None: empty."""

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


class ApiRequest:
    """One request. names: in the address. query: parameters, the last of several. body: members of
    the JSON, checked against the row; `raw_body` has all of them. data: the body of a row with
    is_raw. account: who asks. page(name): returns a page about the API, see api_pages. live: what
    the dashboard shows."""

    def __init__(
        self, endpoint: Endpoint, request: Request, node: NodeLink, auth: BasicAuth,
        names: dict[str, str], account: Account | None, page: "Callable[[str], bytes]", live: Live,
    ) -> None:  # fmt: skip
        self.endpoint = endpoint
        self.request = request
        self.node = node
        self.auth = auth
        self.page = page
        self.live = live
        self.names = names
        self.query: dict[str, str] = dict(request.query_params.multi_items())
        self.raw_body: dict[str, Any] = {}
        self.body: dict[str, Any] = {}
        self.data = b""
        self.down: list[str] = []  # vhosts that did not answer
        self._account = account

    @property
    def account(self) -> Account:
        """Return who asks; an endpoint without password has nobody."""
        assert self._account is not None, "the row says that anybody may ask"
        return self._account

    @property
    def vhost(self) -> str:
        """Return the vhost in the address."""
        return self.names[VHOST]

    @property
    def sees_all(self) -> bool:
        """Return whether the user may see what is in every vhost."""
        return not self.account.tags.isdisjoint(WATCHERS)

    def names_of_row(self) -> dict[str, str]:
        """Return the names in the address besides the vhost, as `list_rows` calls them."""
        of = self.endpoint.of
        return {of.get(part, part): text for part, text in self.names.items() if part != VHOST}

    def is_set(self, name: str) -> bool:
        """Return whether a parameter is true."""
        return self.query.get(name, "").lower() == "true"

    def identity(self, vhost: str) -> Identity | None:
        """Return what the user may do in the vhost; None if it may not see it."""
        found = self.account.identity(vhost)
        if found is None and self.sees_all:
            account = self.account
            return Identity(account.user, account.tags, NOTHING, NOTHING, NOTHING)
        return found

    def check_vhost(self) -> None:
        """Raise HttpError 401 or 404 if the user may not use the vhost in the address so."""
        rule, vhost = self.endpoint.vhost, self.names.get(VHOST)
        if vhost is not None and rule != NEW:
            self.check_is(vhost, rule)

    def check_is(self, vhost: str, rule: str) -> None:
        """Raise HttpError 401 or 404 if the user may not use the vhost so. rule: OPENED, SEEN or
        ANY."""
        if vhost not in self.node.users.vhosts():
            raise HttpError(404, f"no vhost '{vhost}'")
        if rule == ANY:
            return
        found = self.identity(vhost) if rule == SEEN else self.account.identity(vhost)
        if found is None:
            raise not_authorised("User not authorised to access virtual host")

    def vhosts(self) -> list[str]:
        """Return the vhosts that the user sees, or the one in the address."""
        if VHOST in self.names:
            return [self.vhost]
        return [
            name for name, state in sorted(self.node.users.vhosts().items())
            if state == READY and (self.sees_all or self.account.identity(name) is not None)
        ]  # fmt: skip

    async def started(self, vhosts: Iterable[str]) -> list[str]:
        """Return those of the vhosts that are not stopped; `down` has the others."""
        asked = list(vhosts)
        rows = (await self.node.status())["vhosts"]
        if not {row["name"] for row in rows if row["state"] != STOPPED}.issuperset(asked):
            rows = await self.node.call("list_vhosts")  # the status may be from before its start
        stopped = {row["name"] for row in rows if row["state"] == STOPPED}
        self.down += [name for name in asked if name in stopped]
        return [name for name in asked if name not in stopped]

    async def of_each(
        self, vhosts: Iterable[str], ask: "Callable[[str], Awaitable[Any]]"
    ) -> dict[str, Any]:
        """Return what `ask` returns for each vhost that answers, in order; `down` has the others. A
        vhost that does not run is not started for it."""
        names = await self.started(vhosts)
        found = await asyncio.gather(*(ask(name) for name in names), return_exceptions=True)
        answered: dict[str, Any] = {}
        for name, one in zip(names, found, strict=True):
            if is_down(one):
                self.down.append(name)
            elif isinstance(one, BaseException):
                raise one
            else:
                answered[name] = one
        return answered

    async def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Return the result of an operation for the user, a JsonText if it is long. vhost: None for
        one of the node that is not about a vhost. Raises ControlError, HttpError."""
        return await self.node.call(op, vhost, **args, **{AS_USER: self._as_user(op, vhost)})

    async def call_once(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """As `call`, for an operation that must not be repeated if its vhost ends meanwhile."""
        return await self.node.call_once(op, vhost, **args, **{AS_USER: self._as_user(op, vhost)})

    async def value(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """As `call`, read if it is long."""
        found = await self.call(op, vhost, **args)
        return read(found.text) if isinstance(found, JsonText) else found

    def _as_user(self, op: str, vhost: str | None) -> dict[str, object]:
        account = self.account
        peer = self.request.client
        place = f"{peer.host}:{peer.port}" if peer is not None else "http"
        if is_of_node(op):
            return {"name": account.user, "tags": sorted(account.tags), "from": place}
        assert vhost is not None
        identity = self.identity(vhost)
        if identity is None:
            raise not_authorised("User not authorised to access virtual host")
        return {**identity.facts(), "from": place}

    def parameters(self, arguments: Iterable[Argument]) -> dict[str, object]:
        """Return the parameters that were given and are arguments of an operation, by the names of
        these: of if_empty it is if-empty. Raises HttpError 400 for a number that is none."""
        query = (name for name in self.query if name in self.endpoint.query.keys() - LIST_QUERY)
        given = {name.replace("-", "_"): name for name in query}
        found: dict[str, object] = {}
        for one in arguments:
            name, words = given.get(one.name, ""), one.kind.words
            if not name:
                continue
            if words == "true or false":
                found[one.name] = self.is_set(name)
            elif not words.startswith("whole number"):
                found[one.name] = self.query[name]
            elif _DIGITS.match(self.query[name]):
                found[one.name] = int(self.query[name])
            else:
                text = f"{name}: given {self.query[name]!r:.200}, expected a whole number"
                raise HttpError(400, text)
        return found

    def sampled(self) -> dict[str, int]:
        """Return the parameters that ask for samples: lengths_age, lengths_incr and so on, in
        seconds. Raises HttpError 400."""
        return {
            name: _whole(name, value) for name, value in self.query.items() if _SAMPLED.match(name)
        }


Function = Callable[[ApiRequest], Awaitable[object]]


def number_of(value: object) -> object:
    """Return a number that came as a text as a number: rabbitmqadmin sends texts."""
    return int(value) if isinstance(value, str) and _NUMBER.match(value) else value


def not_authorised(reason: str) -> HttpError:
    """Return the 401 for a user who is known and may not."""
    return HttpError(401, reason, error="not_authorised")


# ---- which rows of a list ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which rows and members of a list are asked for. page: None for all rows."""

    columns: tuple[str, ...] = ()
    sort: str = ""
    is_reverse: bool = False
    page: int | None = None
    page_size: int = PAGE_SIZE
    name: str = ""
    use_regex: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ListQuery":
        """Return what these parameters ask for. Raises HttpError 400."""
        page = _whole("page", query["page"]) if "page" in query else None
        size = _whole("page_size", query["page_size"]) if query.get("page_size") else PAGE_SIZE
        if page is not None and (page < 1 or not 1 <= size <= PAGE_SIZE_MAX):
            raise HttpError(
                400, f"expected page from 1 on and page_size from 1 to {PAGE_SIZE_MAX}, given page "
                f"{page} and page_size {size}", error="invalid_pagination_parameters",
            )  # fmt: skip
        found = cls(
            columns_of(query),
            query.get("sort", ""), query.get("sort_reverse", "").lower() == "true", page, size,
            query.get("name", "") if page is not None else "",
            query.get("use_regex", "").lower() == "true",
        )  # fmt: skip
        if found.name:
            found._filter()
        return found

    def _filter(self) -> Callable[[str], bool]:
        try:
            return name_filter(self.name, is_regex=self.use_regex)
        except ValueError as error:
            text = f"name: given {self.name!r}, expected a regular expression of RE2 ({error})"
            raise HttpError(400, text[:600]) from error

    def cut(self, rows: Sequence[Row]) -> object:
        """Return the rows as they are asked for; an object about the page if one is. Raises
        HttpError 400 for a page beyond the end."""
        found = list(rows)
        if self.name:
            is_in = self._filter()
            found = [row for row in found if is_in(str(row.get("name", "")))]
        found = self.ordered(found)
        if self.page is None:
            return self.picked(found)
        first = (self.page - 1) * self.page_size
        return self.page_of(found[first : first + self.page_size], len(found), len(rows))

    def ordered(self, rows: list[Row]) -> list[Row]:
        """Return the rows as they are to be sorted; as they are if nothing is said about it."""
        if self.sort:
            rows = sorted(rows, key=lambda row: sort_key(dug(row, self.sort)))
        if self.is_reverse:
            rows = rows[::-1]
        return rows

    def picked(self, rows: Sequence[Row]) -> list[object]:
        """Return only the members of the rows that are asked for."""
        columns = Columns(self.columns)
        return [columns.cut(row) for row in rows]

    def page_of(self, rows: Sequence[Row], filtered: int, total: int) -> dict[str, object]:
        """Return the object about a page of these rows, whose members are picked. filtered, total:
        how many rows there are, with and without the name. Raises HttpError 400."""
        assert self.page is not None
        pages = max(-(-filtered // self.page_size), 1)
        if self.page > pages:
            raise out_of_range(self, pages)
        return {
            "filtered_count": filtered,
            "item_count": len(rows),
            "items": self.picked(rows),
            "page": self.page,
            "page_count": pages,
            "page_size": self.page_size,
            "total_count": total,
        }


def columns_of(query: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that these parameters ask for."""
    return tuple(name for name in query.get(COLUMNS, "").split(",") if name)


def out_of_range(query: ListQuery, pages: int) -> HttpError:
    """Return the error for a page beyond the last one."""
    given = f"page: {query.page} page size: {query.page_size}"
    text = f"Page out of range, {given}, expected at most page {pages}"
    return HttpError(400, text, error="page_out_of_range")


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        error = "invalid_pagination_parameters" if name.startswith("page") else "bad_request"
        raise HttpError(
            400, f"parameter {name!r}: given {text[:40]!r}, expected a whole number", error=error
        )
    return int(text)


def described_names(path: str) -> list[str]:
    """Return the names in an address: ["vhost", "queue"] of "queues/{vhost}/{queue}"."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def decoded_name(part: str, text: str) -> str:
    """Return a name of an address as operations have it."""
    return "" if part == "exchange" and text == DEFAULT_EXCHANGE else text


def is_down(error: object) -> bool:
    """Return whether an error says that a vhost cannot answer."""
    if isinstance(error, ControlError):
        return error.code == INTERNAL_ERROR
    return isinstance(error, HttpError) and error.status == 503
