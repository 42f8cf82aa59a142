"""The table of operations: everything that can be asked of a broker by name.

    OPERATIONS    name -> Operation, a row: of a vhost or of the node, arguments, who may call it,
                  the answer's fields, help
    Arguments     the values of one call, checked against a row's arguments

All that calls operations walks this table: the commands of `penstock` (a row with `is_command` is
one), the control socket, the AMQP method penstock.call, and the HTTP process. docs/reference/
operations.md is made from it. A new operation is a row here and a function: in FUNCTIONS of a
module of broker.operations if a vhost answers it, a method of server.node_operations if the node
does. This module imports little, because every start of the command loads it.

Values of a call come as a dict, as JSON has them. All are checked before the operation begins: each
is there or has a default, has its type and is in range, and none is unknown, so a misspelt name is
an error and not a default. Every error is a ChannelError 406 that names the operation and the
argument, what was given and what was expected.

**Who may call.** `needs` are permissions on what the arguments name: (verb, kind, argument), "" for
the default exchange; a user without one gets a 403. An operation whose permissions depend on more
than names checks them itself, and `needs_text` says which they are. `tags`: the caller needs one of
these, RabbitMQ's. MANAGERS may see what is in a vhost that they may open, where rows belong to
users their own; WATCHERS all of it. `audience` is ALL, OPERATORS (over the control socket alone:
what stops the broker or writes files; no tag is enough, because a user with an administrator's
password need not have an account on this machine), MANAGEMENT (over the control socket, and over
HTTP for users with one of the tags: users, permissions, vhosts, definitions, messages that are
taken without a consumer), or CLIENTS (over an AMQP channel alone).
"""

import difflib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock import options
from penstock.access.limits import OF_USERS, OF_VHOSTS, VHOST_OPTIONS
from penstock.errors import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, ChannelError, shortened
from penstock.operation_json import is_name
from penstock.options import Check, Kind, Option, WrongValueError

REQUIRED: Final = "\0required"
NAME_BYTES_MAX: Final = 255
READER_BYTES_MAX: Final = 255
QUERY_BYTES_MAX: Final = 255
U63_MAX: Final = (1 << 63) - 1
DELAY_MS_MAX: Final = 1 << 53
WAIT_MS_MAX: Final = 60_000
OWNER_S_MAX: Final = 3600
PARTITIONS_MAX: Final = 256
GET_MAX: Final = 1000  # messages
NAMES_MAX: Final = 1000
BROWSE_MAX: Final = 1000
MOVE_MAX: Final = 1_000_000
TAIL_LINES: Final = 1000  # of the log
LEVELS: Final = ("debug", "info", "warning", "error")  # of a line of the log
PAGE_SIZE: Final = 100
DEFAULT_VHOST: Final = "/"

WATCHERS: Final = ("monitoring", "administrator")
MANAGERS: Final = ("management", "policymaker", *WATCHERS)
POLICYMAKERS: Final = ("policymaker", "administrator")
ADMINISTRATORS: Final = ("administrator",)
ALL: Final = "all"
OPERATORS: Final = "operators"
MANAGEMENT: Final = "operators and HTTP"
CLIENTS: Final = "clients"

OPERATOR: Final = ("operator", "control socket")  # who calls if nobody is named, and from where

ALARM: Final = "alarm"  # a kind in the answer of `status`: publishers wait

VHOST: Final = "a vhost"  # its process answers
NODE: Final = "the node"
NODE_VHOST: Final = "the node, about a vhost"
NODE_VHOSTS: Final = "the node, about one vhost or all"


# Words of kinds for which the command line has forms of its own.
TEXTS: Final = "list of texts"
TABLE: Final = "object"
ANY: Final = "any value of JSON"
FIELD_TABLE: Final = "object as a field table of AMQP"


@dataclass(frozen=True, slots=True)
class Argument(Option):
    """One argument of an operation. value: what is meant if it is not given; REQUIRED if it must
    be. is_option: it is an option of the command. is_noted: the audit log has it: it is neither
    secret nor long."""

    value: object = REQUIRED
    is_option: bool = False
    is_noted: bool = True

    @property
    def is_required(self) -> bool:
        """Return whether it must be given."""
        return self.value is REQUIRED


def _argument(name: str, kind: Kind, meaning: str, value: object = REQUIRED) -> Argument:
    default = None if value is REQUIRED else json.dumps(value)
    return Argument(name, kind, meaning, default=default, value=value)


def text(name: str, meaning: str = "", *, default: str = REQUIRED) -> Argument:
    """A text, which can be encoded as UTF-8 (with surrogateescape)."""
    return _argument(name, Kind("text", _text), meaning, default)


def short_text(name: str, meaning: str = "", *, default: str = REQUIRED) -> Argument:
    """A text of at most 255 bytes, which AMQP can carry as a short string: a name."""
    return _argument(name, Kind("name", _name), meaning, default)


def short_text_or_null(name: str, meaning: str = "") -> Argument:
    """As `short_text`, or null, which is the default."""
    return _argument(name, Kind("name or null", _or_null(_name)), meaning, None)


def text_or_null(name: str, meaning: str = "") -> Argument:
    """As `text`, or null, which is the default."""
    return _argument(name, Kind("text or null", _or_null(_text)), meaning, None)


def texts(name: str, meaning: str = "", *, default: list[str] | None = None) -> Argument:
    """A list of texts. It must be given if `default` is None."""

    def check(value: object) -> object:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise WrongValueError("a list of texts")
        return value

    return _argument(name, Kind(TEXTS, check), meaning, REQUIRED if default is None else default)


def matching_text(
    name: str, expected: str, is_right: Callable[[str], bool], meaning: str = "", *,
    default: str = REQUIRED,
) -> Argument:  # fmt: skip
    """A text for which `is_right` returns True. expected: what that is, for errors."""

    def check(value: object) -> object:
        found = _text(value)
        if not is_right(found):
            raise WrongValueError(expected)
        return found

    return _argument(name, Kind("text", check), meaning, default)


def whole(
    name: str, low: int, high: int, meaning: str = "", *, default: int | None = None
) -> Argument:
    """A whole number from low to high. It must be given if `default` is None."""
    given = REQUIRED if default is None else default
    return _argument(name, options.whole(low, high), meaning, given)


def whole_or_null(
    name: str, low: int = -U63_MAX - 1, high: int = U63_MAX, meaning: str = ""
) -> Argument:
    """A whole number from low to high, or null, which is the default."""
    is_any = low < 0 and high == U63_MAX
    expected = f"a whole number{'' if is_any else f' from {low} to {high}'}, or null"
    kind = options.whole(low, high, expected)
    return _argument(name, Kind("whole number or null", _or_null(kind.check)), meaning, None)


def number(name: str, low: float, meaning: str, *, default: float) -> Argument:
    """A number, at least `low`."""
    return _argument(name, options.number_from(low), meaning, default)


def flag(name: str, meaning: str = "", *, default: bool = False) -> Argument:
    """True or false."""
    return _argument(name, options.flag(), meaning, default)


def table(name: str, meaning: str = "") -> Argument:
    """An object; empty if it is missing or null."""
    return _argument(name, Kind(TABLE, _table), meaning, None)


def field_table(name: str, meaning: str = "") -> Argument:
    """An object that AMQP can carry as a field table; the values are as AMQP would bring them."""
    return _argument(name, Kind(FIELD_TABLE, _field_table), meaning, None)


def chosen(name: str, meaning: str, *choices: str, default: str = REQUIRED) -> Argument:
    """One of these texts."""
    return _argument(name, options.choice(*choices), meaning, default)


def any_value(name: str, meaning: str = "") -> Argument:
    """Whatever JSON has."""
    return _argument(name, Kind(ANY, lambda value: value), meaning)


def _option(row: Option) -> Argument:
    """The option of this row, or null if it is not given."""
    kind = Kind(f"{row.kind.words}, or null", _or_null(row.kind.check))
    return replace(_argument(row.name, kind, row.meaning, None), is_option=True)


def bodies(name: str, meaning: str = "") -> Argument:
    """A list of bytes; a text stands for its UTF-8."""
    return _argument(name, Kind("list of texts or bytes", _bodies), meaning)


def objects(name: str, meaning: str = "") -> Argument:
    """A list of objects, or the same packed into bytes."""

    def check(value: object) -> object:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise WrongValueError("a list of objects")
        return value

    return _argument(name, Kind("list of objects", check), meaning)


def pairs(name: str, meaning: str = "") -> Argument:
    """A list of pairs of texts, or the same packed into bytes; empty if it is missing or null."""

    def check(value: object) -> object:
        return value if isinstance(value, bytes) else _pairs(value)

    return _argument(name, Kind("list of pairs of texts", check), meaning, None)


def numbers(name: str, meaning: str = "", *, default: list[int] | None = None) -> Argument:
    """A list of whole numbers. It must be given if `default` is None."""

    def check(value: object) -> object:
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise WrongValueError("a list of whole numbers")
        return value

    value = REQUIRED if default is None else default
    return _argument(name, Kind("list of whole numbers", check), meaning, value)


# ---- one call ------------------------------------------------------------------------------------


class Arguments:
    """The checked values of one call of the operation `op`. ChannelError 406 if one is wrong.
    caller: user and place, for the audit log.

    Each getter returns the value of the argument of that name. An AssertionError means that the
    operation's table gives the argument another type.
    """

    def __init__(
        self, op: str, expected: Sequence[Argument], given: Mapping[str, object],
        caller: tuple[str, str] = OPERATOR,
    ) -> None:  # fmt: skip
        self.op: str = op
        self.caller: tuple[str, str] = caller
        self._values: dict[str, object] = {}
        self._unnoted = {argument.name for argument in expected if not argument.is_noted}
        names = [argument.name for argument in expected]
        for name in given:
            if name not in names:
                text = f"{op}: unknown argument {name!r}{_hint(name, names)}"
                raise ChannelError(PRECONDITION_FAILED, text)
        for argument in expected:
            value = given.get(argument.name, argument.value)
            if value is REQUIRED:
                raise self.wrong(argument.name, "is missing")
            try:
                self._values[argument.name] = argument.kind.check(value)
            except WrongValueError as error:
                part = error.given[0] if error.given else value
                text = f"given {shortened(part)}, expected {error.expected}"
                raise self.wrong(argument.name, text) from error

    def wrong(self, name: str, text: str) -> ChannelError:
        """Return the error 406 for this argument. text: what was given and what was expected."""
        separator = " " if text.startswith("is ") else ": "
        return ChannelError(PRECONDITION_FAILED, f"{self.op}: argument {name!r}{separator}{text}")

    def value(self, name: str) -> object:
        """Return a value of any type."""
        return self._values[name]

    def shown(self) -> dict[str, object]:
        """Return the values for the audit log: those that are set, without secrets."""
        return {
            name: value
            for name, value in self._values.items()
            if name not in self._unnoted and value not in (None, "", [], {})
        }

    def text(self, name: str) -> str:
        """Return a text or a name."""
        value = self._values[name]
        assert isinstance(value, str)
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a name, or None for null."""
        value = self._values[name]
        assert value is None or isinstance(value, str)
        return value

    def whole(self, name: str) -> int:
        """Return a whole number."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def whole_or_none(self, name: str) -> int | None:
        """Return a whole number, or None for null."""
        value = self._values[name]
        assert value is None or isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """Return a bool."""
        value = self._values[name]
        assert isinstance(value, bool)
        return value

    def table(self, name: str) -> dict[str, object]:
        """Return an object as a dict."""
        value = self._values[name]
        assert isinstance(value, dict)
        return value

    def bodies(self, name: str) -> list[bytes]:
        """Return a list of bytes."""
        return self._list(name)

    def objects(self, name: str) -> list[dict[str, object]]:
        """Return a list of dicts; [] if it is packed."""
        return [] if isinstance(self._values[name], bytes) else self._list(name)

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Return a list of pairs of texts; [] if it is packed."""
        return [] if isinstance(self._values[name], bytes) else self._list(name)

    def packed(self, name: str) -> bytes:
        """Return a list that is packed into bytes; b"" if it is not."""
        value = self._values[name]
        return value if isinstance(value, bytes) else b""

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers."""
        return self._list(name)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        return self._list(name)

    def number(self, name: str) -> float:
        """Return a number."""
        value = self._values[name]
        assert isinstance(value, int | float)
        return value

    def _list(self, name: str) -> list:  # type: ignore[type-arg]
        value = self._values[name]
        assert isinstance(value, list)
        return value


# ---- checks --------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValueError("a text")
    if not is_name(value):
        raise WrongValueError("a text without lone surrogates")
    return value


def _name(value: object) -> str:
    found = _text(value)
    if len(found.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise WrongValueError(f"a text of at most {NAME_BYTES_MAX} bytes")
    return found


def _or_null(check: Check) -> Check:
    def checked(value: object) -> Any:
        return None if value is None else check(value)

    return checked


def _table(value: object) -> object:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WrongValueError("an object")
    return value


def _field_table(value: object) -> object:
    found = _table(value)
    assert isinstance(found, dict)
    from penstock.codec.fields import ARGUMENTS_BYTES_MAX, decode_table, encode_table

    try:
        data = encode_table(found)
        if len(data) - 4 <= ARGUMENTS_BYTES_MAX:
            return decode_table(data)[0]
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise WrongValueError(f"what AMQP can carry ({error})"[:300]) from error
    raise WrongValueError(f"a table of at most {ARGUMENTS_BYTES_MAX} bytes, encoded as AMQP does")


def _bodies(value: object) -> object:
    if not isinstance(value, list):
        raise WrongValueError("a list of texts or bytes")
    found: list[bytes] = []
    for body in value:
        if isinstance(body, str):
            found.append(body.encode("utf-8", "surrogateescape"))
        elif isinstance(body, bytes):
            found.append(body)
        else:
            raise WrongValueError("a list of texts or bytes", (body,))
    return found


def _pairs(value: object) -> object:
    found: list[tuple[str, str]] = []
    for one in value if isinstance(value, list) else ():
        match one:
            case [str(first), str(second)]:
                found.append((first, second))
    if value is not None and (not isinstance(value, list) or len(found) != len(value)):
        raise WrongValueError("a list of pairs of texts")
    return found


def _is_byte_name(most: int) -> Callable[[str], bool]:
    """Return a check of a name of 1 to so many bytes of UTF-8, without surrogates."""

    def is_right(given: str) -> bool:
        try:
            return 0 < len(given.encode()) <= most
        except UnicodeEncodeError:
            return False

    return is_right


# ---- the rows ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table, see the head of this module.

    help: one line. more: what else there is to say. of: who answers. answer: the members of the
    answer, or of each row of a list; () if it has none. shown: of a list: the columns that the
    command shows if none is asked for. is_command: the command of this name is made from the row.
    said: what the command prints, with arguments and members of the answer in braces. is_audited:
    it changes who may do what, or what there is: the audit log has each call that was accepted.
    """

    name: str
    help: str
    arguments: tuple[Argument, ...] = ()
    needs: tuple[tuple[str, str, str], ...] = ()
    needs_text: str = ""
    tags: tuple[str, ...] = ()
    audience: str = ALL
    of: str = VHOST
    answer: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    more: str = ""
    is_command: bool = False
    said: str = ""
    is_audited: bool = False

    @property
    def is_over_http(self) -> bool:
        """Return whether HTTP may call it."""
        return self.audience in (ALL, MANAGEMENT)

    @property
    def permission(self) -> str:
        """Return in words who may call the operation, "anybody" if there is no condition."""
        found = [f"{verb} on the {kind} `{name}`" for verb, kind, name in self.needs]
        if self.needs_text:
            found.append(self.needs_text)
        if self.tags:
            found.append("the tag " + " or ".join(self.tags))
        if self.audience != ALL:
            found.append(f"for {self.audience} only")
        return "; ".join(found) or "anybody"


def _of_node(name: str, line: str, *arguments: Argument, **more: Any) -> Operation:
    """Return a row of the node for operators, and for administrators over HTTP."""
    of: dict[str, Any] = {"of": NODE, "audience": MANAGEMENT, "tags": ADMINISTRATORS, **more}
    return Operation(name, line, arguments, **of)


def _list(
    name: str, line: str, shown: tuple[str, ...], others: tuple[str, ...] = (), **more: Any
) -> Operation:
    """Return the row of a list, which is a command. others: its columns besides those shown."""
    return Operation(name, line, shown=shown, answer=shown + others, is_command=True, **more)


_NAME: Final = text("name", "the vhost's")
_OF_VHOST: Final = tuple(_option(row) for row in VHOST_OPTIONS)
_USER_NAME: Final = text("name", "the user's")
_USER: Final = text("user", "the user")
_TOPIC_COLUMNS: Final = ("user", "vhost", "exchange", "write", "read")
_ONE_USER: Final = replace(short_text_or_null("user", "only of this user"), is_option=True)
_PASSWORD: Final = replace(text("password", "the password"), is_noted=False)
_LIMITS: Final = table("limits", 'an object such as {"max-connections": 10}; -1 is no limit')
_WITHOUT_DEFAULTS: Final = flag("without_defaults", "only limits that were set")
_LIMIT: Final = text("limit", "one limit, or all", default="all")

_POLICY: Final = short_text("name", "the policy's")
_POLICY_ARGUMENTS: Final = (
    _POLICY, text("pattern", "a regular expression of names"),
    table("definition", 'an object such as {"max-length": 1000}'),
    replace(
        whole("priority", -(1 << 31), 1 << 31, "of several, the highest counts", default=0),
        is_option=True,
    ),
    replace(
        chosen(
            "apply_to", "what the policy is for", "queues", "classic_queues", "quorum_queues",
            "streams", "exchanges", "all", default="all",
        ), is_option=True,
    ),
)  # fmt: skip
_VALUE: Final = any_value("value", "any JSON")
# Of parameters that are stored only, for programs that read them.
STORED_COMPONENTS: Final = ("shovel", "federation-upstream", "federation-upstream-set")
_COMPONENT: Final = chosen("component", "whose it is", *STORED_COMPONENTS)
_POLICY_COUNTS: Final = ("queues", "exchanges", "is_new")
_POLICY_COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
_APPLIED: Final = ("policy", "operator_policy", "effective_policy_definition")

_QUEUE: Final = short_text("queue", "the queue")
_EXCHANGE: Final = short_text("exchange", "the exchange")
_ARGUMENTS: Final = field_table("arguments", "arguments as of AMQP")
_DURABLE: Final = flag("durable", "kept after a restart", default=True)
_AUTO_DELETE: Final = flag("auto_delete", "deleted after its last use")
_IF_UNUSED: Final = flag("if_unused", "only if it is not in use")
_KEY: Final = short_text("routing_key", "a key, a pattern, or nothing", default="")
_TO_QUEUE: Final = (_QUEUE, _EXCHANGE, _KEY, _ARGUMENTS)
_TO_EXCHANGE: Final = (
    short_text("destination", "the exchange that gets messages"),
    short_text("source", "the exchange that they come from"), _KEY, _ARGUMENTS,
)  # fmt: skip
_READ_QUEUE: Final = (("read", "queue", "queue"),)
_CONFIGURE_QUEUE: Final = (("configure", "queue", "queue"),)
_KIND: Final = short_text("kind", "queues")
_ROW_OF: Final = table("of", "of which things: of a queue, a connection and so on, by its name")
_COLUMNS: Final = texts("columns", "names with dots; all if there are none", default=[])
_CHOSEN: Final = (  # which rows of a list, in which order; all as they come
    text("name", "only rows with a match of this regular expression of RE2 in the first column, in "
         "any case", default=""),
    text("sort", "a column, by its name with dots", default=""),
    flag("reverse", "the highest first"),
    whole_or_null("limit", 1, meaning="the first rows; null: all"),
    _COLUMNS,
)  # fmt: skip
_RATES: Final = flag("rates", "not only what things were declared as", default=True)
_TOTALS: Final = flag("totals", "without rates: the lengths of queues nevertheless")
_SAMPLES: Final = table("samples", 'such as {"lengths_age": 60, "lengths_incr": 5}, in seconds')
_BIND_QUEUE: Final = (("write", "queue", "queue"), ("read", "exchange", "exchange"))
_BIND_EXCHANGE: Final = (("write", "exchange", "destination"), ("read", "exchange", "source"))

AUDIT_STREAM: Final = "amq.penstock.audit"
EVENTS: Final = "amq.rabbitmq.event"  # the exchange of events, see broker.events
HOME: Final = "/"  # the vhost that has it
SESSION: Final = "session"
AS_USER: Final = "as_user"  # of a call of the HTTP process: name, tags, permissions, `from`
_SESSION: Final = text(SESSION, "the session, by a name that the caller chooses")
_COUNT: Final = whole("count", 1, GET_MAX, "how many messages at most", default=1)
_ENCODING: Final = chosen("encoding", "auto: text if it is UTF-8", "auto", "base64", default="auto")
MATCH: Final = (  # which messages are meant
    text("key", "a part of the routing key", default=""),
    table("headers", "headers and their values as text; null: any value"),
    text("body", "a part of the body", default=""),
    whole("older", 0, U63_MAX, "seconds since they came, at least; 0: any", default=0),
)
_AS_SEEN: Final = (  # what an operator saw, who decided
    whole_or_null("if_messages_at_most", 0, meaning="only if no more are there"),
    whole_or_null("if_generation", 0, meaning="only if it is the same as in list_queues"),
)
TAGS: Final = numbers("tags", "only these, by the tags that browse_messages shows", default=[])
_TRUNCATE: Final = whole_or_null("truncate", 0, meaning="bytes of each body that are shown")
_READER: Final = matching_text(
    "reader", f"1 to {READER_BYTES_MAX} bytes", _is_byte_name(READER_BYTES_MAX), "the reader"
)
_OWNER: Final = short_text_or_null("owner", "the token of the program that owns the reader")
_OWNER_TOKEN: Final = matching_text(
    "owner", "1 to 255 bytes", lambda given: 0 < len(given) <= 255,
    "the token of the program that owns the reader",
)  # fmt: skip
_QUERY: Final = matching_text(
    "query", f"1 to {QUERY_BYTES_MAX} bytes of UTF-8",
    lambda given: _is_byte_name(QUERY_BYTES_MAX)(given) and "\0" not in given,
    "the query that writes exactly once",
)  # fmt: skip
_BATCH: Final = whole("batch", 0, U63_MAX, "the number of the batch")
_TARGET: Final = table("target", "as of commit_batch")
_STREAM: Final = ("name", "partitions", "readers", "arguments")
_LEASE: Final = ("name", "reader", "first", "head", "bytes", "is_old")
_LEASE_MORE: Final = ("ready", "ready_bytes", "since_ms", "path", "stream_id", "last_time_us")
_STATUS: Final = (
    "name", "durability", "queues", "queues_open", "exchanges", "streams", "stream_records",
    "stream_bytes", "readers", "messages_leased", "batches_rolling", "messages_persistent",
    "message_bytes_persistent", "lsn", "lsn_settled", "syncs", "checkpoints", "memory_bytes",
    "counted_bytes", "other_bytes", "topology_bytes", "client_bytes", "transaction_bytes",
    "unfinished_bytes", "output_bytes", "unacked_bytes", "rss_bytes", "rss_limit_bytes",
    "is_memory_alarmed", "is_disk_full", "blocked_reason", "blocked_since_ms",
)  # fmt: skip

_BOX_NAME: Final = short_text("name", "the queue")
_TAG: Final = whole("tag", 1, U63_MAX, "the delivery's")
_AFTER: Final = whole_or_null("after", 0, meaning="the tag before the first")
_READ_NAME: Final = (("read", "queue", "name"),)
_ANY_PERMISSION: Final = "any permission on the queue `name`"

_ROWS: Final = (
    # the node
    Operation(
        "status", "Show the broker's state, memory and disk use.", of=NODE, tags=WATCHERS,
        answer=(
            "product", "version", "build", "now_ms", "uptime_s", "data", "host", "port",
            "listeners", "durability", "memory_bytes", "counted_bytes", "log_directory",
            "spill_directory", "disk_free_bytes", "disk_free_limit_bytes", "is_ready",
            "is_healthy", "takes_clients", "problems", "kinds", "about", "advice", "connections",
            "half_open", "accepted", "vhosts", "http", "tls",
        ),
        more="`is_healthy` is false while a vhost is down or publishers are blocked; `problems` "
        "says why, `advice` what to do about each, `kinds` what each is: alarm (publishers wait), "
        "vhost or node, and `about` which vhost each is about, null for none.",
    ),
    Operation(
        "node_metrics", "Return the numbers of the node for /metrics.", of=NODE, tags=WATCHERS,
        answer=("values", "vhosts", "node"), more="Their names and meanings: see metrics.md.",
    ),
    Operation(
        "describe_node", "Describe the node and its processes, with what they use.", of=NODE,
        tags=WATCHERS,
        answer=(
            "os_pid", "uptime_ms", "processors", "fd_total", "proc_total", "config_files", "db_dir",
            "log_directory", "spill_directory", "processes", "logins",
        ),
        more="processes: process (supervisor, vhost, http or tls), vhost, pid, state, since, why, "
        "restarts, cpu_s, rss_bytes and open_files of each; null if it does not run.",
    ),
    _list(
        "log_tail", "Show the last lines of the log, the oldest first.",
        ("time", "level", "process", "vhost", "text"), ("number",), of=NODE, audience=MANAGEMENT,
        tags=WATCHERS,
        arguments=(
            replace(whole("number", 1, TAIL_LINES, "how many", default=50), is_option=True),
            replace(
                chosen("level", "of this level or above", *LEVELS, default="debug"), is_option=True
            ),
            whole_or_null("after", 0, meaning="only those after the line of this number"),
        ),
        more=f"Of all processes of the broker, since its start, at most {TAIL_LINES:,}. number: of "
        "the line. process: as of describe_node.",
    ),
    _of_node(
        "await_startup", "Wait until the broker is ready.",
        number("timeout_s", 0, "seconds to wait", default=60.0), audience=OPERATORS, tags=(),
        more="It is ready when all its vhosts serve.",
    ),
    _of_node(
        "show_config", "Show the broker's options, and where each value is from.",
        answer=("option", "value", "origin", "default", "is_live"), more="A list.",
    ),
    _of_node(
        "set_config", "Change an option of a running broker, until its next start.",
        text("key", "the option, with its table"), text("value", "as a text"), answer=("value",),
        audience=OPERATORS, tags=(),
        more="One that is live: see the page about the configuration.", is_audited=True,
    ),
    _of_node("stop", "Stop the broker in order.", audience=OPERATORS, tags=(), is_audited=True),
    _of_node(
        "add_vhost", "Add a vhost.", _NAME, *_OF_VHOST, is_command=True,
        more="It has its own queues, exchanges and permissions, process and directory.",
        is_audited=True,
    ),
    _of_node(
        "update_vhost_metadata", "Change what is said about a vhost.", _NAME, *_OF_VHOST,
        is_command=True, more="What is not given stays.", is_audited=True,
    ),
    _of_node(
        "delete_vhost", "Delete a vhost and everything in it.", _NAME, is_command=True,
        more="Its queues, messages and permissions are deleted.", is_audited=True,
    ),
    _of_node(
        "restart_vhost", "Start a vhost that is down, or restart one.", _NAME, is_command=True,
        more="Clears its failures, and the requests that are refused because they ended its "
        "process. Returns when it serves. Exit code 69: it is down again; the message says why.",
        is_audited=True,
    ),
    _of_node(
        "stop_vhost", "Stop one vhost until start_vhost.", _NAME, is_command=True,
        more="Closes its connections, makes a checkpoint and ends its process; other vhosts "
        "continue. It stays stopped when the broker restarts. Returns when its process has ended. "
        "Exit code 64: it is stopped already.", is_audited=True,
    ),
    _of_node(
        "start_vhost", "Start a vhost that is stopped or down.", _NAME, is_command=True,
        more="Also starts one that nobody has opened yet. Clears its failures, and the requests "
        "that are refused because they ended its process. Returns when it serves. Exit code 64: "
        "it runs already; 69: it cannot start, and the message says why.", is_audited=True,
    ),
    _list(
        "list_vhosts", "List vhosts and their state.", ("name", "state", "since", "why"),
        (
            "pid", "error", "retry_in_s", "blocked_reason", "refused", "restarts", "memory_bytes",
            "counted_bytes", "connections", "depth_bytes", "rss_bytes", "returned_bytes",
            "takes_clients", "unserved", "description", "tags", "default_queue_type", "tracing",
            "cluster_state",
        ), of=NODE, audience=MANAGEMENT, tags=WATCHERS,
    ),
    _list(
        "list_connections", "List the connections of all vhosts.",
        ("user", "peer_host", "peer_port", "state"),
        (
            "name", "vhost", "channels", "host", "port", "client_properties", "connected_at",
            "frame_max", "channel_max", "timeout", "recv_oct", "recv_cnt", "send_oct", "send_cnt",
            "send_pend", "protocol", "auth_mechanism", "ssl", "ssl_protocol", "ssl_cipher",
            "ssl_hash", "ssl_key_exchange", "peer_cert_subject", "peer_cert_issuer",
            "peer_cert_validity", "pid",
        ), of=NODE, audience=MANAGEMENT, tags=WATCHERS,
    ),
    _list(
        "list_global_parameters", "List the parameters of the whole broker.", ("name", "value"),
        of=NODE, audience=MANAGEMENT, tags=POLICYMAKERS,
    ),
    _of_node(
        "set_global_parameter", "Store a parameter of the whole broker.",
        short_text("name", "the parameter's"), _VALUE, tags=POLICYMAKERS, answer=("is_new",),
        is_command=True, is_audited=True,
        more="VALUE is JSON. Penstock makes no use of it; clients' tools do.",
    ),
    _of_node(
        "clear_global_parameter", "Delete a parameter of the whole broker.",
        short_text("name", "the parameter's"), tags=POLICYMAKERS, is_command=True, is_audited=True,
    ),
    # users, permissions and limits
    _list(
        "list_users", "List users and their tags.", ("name", "tags"), of=NODE,
        audience=MANAGEMENT, tags=ADMINISTRATORS,
        arguments=(
            flag("without_permissions", "only users who may use no vhost"),
            flag("with_hashes", "hashes of passwords and limits too, as definitions have them"),
        ),
    ),
    _of_node(
        "add_user", "Add a user.", _USER_NAME, _PASSWORD,
        texts("tags", "such as administrator", default=[]),
        more="The user has no permissions yet: see set_permissions.", is_audited=True,
    ),
    _of_node(
        "init", "Make a first administrator and delete guest.", _USER_NAME, _PASSWORD,
        flag("force", "set the password of one that exists, too"),
        audience=OPERATORS, tags=(), answer=("password_set", "guest_deleted"),
        more="All of it or nothing; a second time nothing changes.", is_audited=True,
    ),
    _of_node(
        "put_user", "Add a user, or replace the password and the tags of one.", _USER_NAME,
        replace(text_or_null("password", "the password"), is_noted=False),
        replace(
            text_or_null("password_hash", "instead, as RabbitMQ has it; empty: no password is "
            "right"), is_noted=False,
        ),
        text(
            "hashing_algorithm", "of the hash, RabbitMQ's name",
            default="rabbit_password_hashing_sha256",
        ),
        texts("tags", "such as administrator"), _LIMITS, answer=("is_new",),
        more="All of it or nothing. Without password and hash no password is right.",
        is_audited=True,
    ),
    _of_node(
        "delete_users", "Delete users: all of them, or none.", texts("names", "their names"),
        more="Their connections are closed.", is_audited=True,
    ),
    _of_node(
        "delete_user", "Delete a user.", _USER_NAME, is_command=True,
        more="The user's connections are closed.", is_audited=True,
    ),
    _of_node(
        "change_password", "Change a user's password.", _USER_NAME, _PASSWORD,
        more="Open connections stay open.", is_audited=True,
    ),
    _of_node(
        "authenticate_user", "Check a user's password.", _USER_NAME, _PASSWORD,
        more="As at a login from this machine, by auth_backends. 403: it is refused.",
    ),
    _of_node(
        "set_user_tags", "Set a user's tags.", _USER_NAME, texts("tags", "the tags"),
        is_command=True, more="They replace all earlier tags.", is_audited=True,
    ),
    _list(
        "list_permissions", "List users' permissions.",
        ("user", "vhost", "configure", "write", "read"), of=NODE_VHOSTS,
        audience=MANAGEMENT, tags=ADMINISTRATORS, arguments=(_ONE_USER,),
    ),
    _of_node(
        "check_permission", "Say whether a user may do something in a vhost, and why.", _USER,
        matching_text(
            "verb", "configure, write or read",
            lambda given: given in ("configure", "write", "read"), "what the user wants to do",
        ),
        text("name", "the queue or exchange; empty: the default exchange", default=""),
        text_or_null("routing_key", "at a topic exchange; null: it is not looked at"),
        matching_text(
            "resource", "queue, exchange or empty",
            lambda given: given in ("queue", "exchange", ""),
            "what the server of auth_http is asked about; empty: a queue, with a routing key or "
            "without a name an exchange", default="",
        ),
        replace(
            text_or_null("password", "of the user, or its token; null: it is a user kept here"),
            is_noted=False,
        ),
        of=NODE_VHOST, answer=("is_allowed", "why"),
        more="As for a login from this machine: a server of auth_http is asked, and a token of "
        "oauth2, given as `password`, is read.",
    ),
    _list(
        "list_user_permissions", "List a user's permissions, in all vhosts.",
        ("vhost", "configure", "write", "read"), ("user",), of=NODE, audience=MANAGEMENT,
        tags=ADMINISTRATORS, arguments=(_USER,),
    ),
    _of_node(
        "set_permissions", "Set what a user may configure, write and read in a vhost.", _USER,
        text("configure", "a regular expression of names"), text("write", "the same"),
        text("read", "the same"), of=NODE_VHOST, answer=("is_new",), is_command=True,
        more="CONFIGURE, WRITE and READ are regular expressions of names. They apply at once, to "
        "open connections too.", is_audited=True,
    ),
    _of_node(
        "clear_permissions", "Remove a user's permissions on a vhost.", _USER, of=NODE_VHOST,
        answer=("was_there",), is_command=True,
        more="The user can no longer open connections to it.", is_audited=True,
    ),
    _list(
        "list_topic_permissions", "List users' permissions on routing keys of topic exchanges.",
        _TOPIC_COLUMNS, of=NODE_VHOSTS, audience=MANAGEMENT, tags=ADMINISTRATORS,
        arguments=(_ONE_USER,),
    ),
    _list(
        "list_user_topic_permissions", "List a user's topic permissions, in all vhosts.",
        _TOPIC_COLUMNS, of=NODE, audience=MANAGEMENT, tags=ADMINISTRATORS, arguments=(_USER,),
    ),
    _of_node(
        "set_topic_permissions",
        "Set with which routing keys a user may publish to a topic exchange and bind from it.",
        _USER, short_text("exchange", "the topic exchange"),
        text("write", "a regular expression of routing keys, for publishing"),
        text("read", "the same for binding"), of=NODE_VHOST, answer=("is_new",), is_command=True,
        more="They add to set_permissions, which must allow the exchange too. {username} and "
        "{vhost} in WRITE and READ stand for these names. They apply at once, to open connections "
        "too; bindings that are there stay.", is_audited=True,
    ),
    _of_node(
        "clear_topic_permissions", "Allow a user every routing key of topic exchanges again.",
        _USER, text("exchange", "one exchange, or all", default=""), of=NODE_VHOST,
        answer=("was_there",), is_command=True,
        more="Without EXCHANGE those of all the vhost's exchanges are removed.",
        is_audited=True,
    ),
    _list(
        "list_user_limits", "List the limits of users; -1 is none.", ("user", *OF_USERS),
        of=NODE, audience=MANAGEMENT, tags=ADMINISTRATORS, arguments=(_ONE_USER, _WITHOUT_DEFAULTS),
    ),
    _of_node(
        "set_user_limits", "Set limits of a user.", _USER, _LIMITS, is_command=True,
        more='LIMITS is JSON: \'{"max-connections": 10, "max-channels": 100}\'. -1 means no '
        "limit. Other limits keep their values.", is_audited=True,
    ),
    _of_node(
        "clear_user_limits", "Restore the server's default limits of a user.", _USER, _LIMIT,
        is_command=True, more="LIMIT is one limit; without it all limits are restored.",
        is_audited=True,
    ),
    _list(
        "list_vhost_limits", "List the limits of vhosts; -1 is none.", ("vhost", *OF_VHOSTS),
        of=NODE_VHOSTS, audience=MANAGEMENT, tags=ADMINISTRATORS, arguments=(_WITHOUT_DEFAULTS,),
    ),
    _of_node(
        "set_vhost_limits", "Set limits of a vhost.", _LIMITS, of=NODE_VHOST, is_command=True,
        more='LIMITS is JSON: \'{"max-connections": 100, "max-queues": 1000}\'. -1 means no '
        "limit. Other limits keep their values.", is_audited=True,
    ),
    _of_node(
        "clear_vhost_limits", "Restore the server's default limits of a vhost.", _LIMIT,
        of=NODE_VHOST, is_command=True,
        more="LIMIT is one limit; without it all limits are restored.", is_audited=True,
    ),
    # definitions
    _of_node(
        "export_definitions",
        "Export users, permissions, policies, queues, exchanges and bindings as RabbitMQ's JSON.",
        of=NODE_VHOSTS, more="Of one vhost, if it is named: then without users and permissions.",
    ),
    _of_node(
        "import_definitions", "Import RabbitMQ's or Penstock's definitions: all, or nothing.",
        replace(text("definitions", "the document of JSON, as a text"), is_noted=False),
        flag("leave_out", "leave out what Penstock has not, and list it"),
        flag("dry_run", "check and count, and change nothing"),
        of=NODE_VHOSTS,
        answer=(
            "users", "vhosts", "permissions", "policies", "operator_policies", "parameters",
            "exchanges", "queues", "bindings", "differs", "left_out", "not_run",
        ),
        more="What is there and equal is skipped, and nothing is deleted. differs: exchanges and "
        "queues that are there with other properties, which are left as they are. not_run: shovels "
        "and federation, which are stored only.", is_audited=True,
    ),
    # queues, exchanges and bindings
    Operation(
        "declare_queue", "Declare a queue.", (_QUEUE, _DURABLE, _AUTO_DELETE, _ARGUMENTS),
        needs_text="configure on the queue; read on it and write on its dead letter exchange, if "
        "it names one", answer=("queue", "messages", "consumers", "is_new"),
        more='A stream too. "" lets the server name it.', is_audited=True,
    ),
    Operation(
        "delete_queue", "Delete a queue and its messages.",
        (
            _QUEUE, _IF_UNUSED, flag("if_empty", "only if it has no messages"),
            flag("force", "even if readers have leased messages of it"), *_AS_SEEN,
        ),
        _CONFIGURE_QUEUE, answer=("messages",), is_command=True,
        said="queue {queue!r} deleted, with {messages} messages",
        more="A stream too.", is_audited=True,
    ),
    Operation(
        "purge_queue", "Delete all ready messages of a queue.", (_QUEUE, *_AS_SEEN),
        (("read", "queue", "queue"),), answer=("messages",), is_command=True,
        said="{messages} messages purged from queue {queue!r}",
        more="Messages that are delivered and not acknowledged stay.", is_audited=True,
    ),
    Operation(
        "pause_queue", "Deliver nothing of a queue to its consumers.", (_QUEUE,), _CONFIGURE_QUEUE,
        answer=("was_paused",), is_command=True,
        more="Until resume_queue; of a durable queue also after a restart. Messages come and wait, "
        "basic.get finds none and a reader leases none; what is delivered may be acknowledged.",
        is_audited=True,
    ),
    Operation(
        "resume_queue", "Deliver again what pause_queue keeps back.", (_QUEUE,), _CONFIGURE_QUEUE,
        answer=("was_paused",), is_command=True, is_audited=True,
    ),
    Operation(
        "describe_queue", "Describe a queue or stream.", (_QUEUE,), _READ_QUEUE,
        answer=(
            "name", "type", "durable", "ready", "unacknowledged", "bytes", "leases", *_APPLIED,
        ),
        more="bytes: of what is ready.",
    ),
    Operation(
        "declare_exchange", "Declare an exchange.",
        (
            _EXCHANGE,
            short_text("type", "direct, fanout, topic, headers ...", default="direct"), _DURABLE,
            _AUTO_DELETE, flag("internal", "only exchanges can publish to it"), _ARGUMENTS,
        ),
        needs_text="configure on the exchange; read on it and write on its alternate exchange, if "
        "it names one", answer=("exchange", "is_new"), is_audited=True,
    ),
    Operation(
        "delete_exchange", "Delete an exchange.", (_EXCHANGE, _IF_UNUSED),
        (("configure", "exchange", "exchange"),), is_command=True,
        more="Its bindings are deleted too.", is_audited=True,
    ),
    Operation(
        "bind_queue", "Bind a queue to an exchange.", _TO_QUEUE, _BIND_QUEUE,
        answer=("properties_key",), is_command=True,
        more="ROUTING_KEY is what the exchange's type compares: a key, a pattern, or nothing.",
        is_audited=True,
    ),
    Operation(
        "unbind_queue", "Remove a binding.", _TO_QUEUE, _BIND_QUEUE, is_command=True,
        more="The arguments are those of bind_queue.", is_audited=True,
    ),
    Operation(
        "bind_exchange", "Bind an exchange to another one.", _TO_EXCHANGE, _BIND_EXCHANGE,
        answer=("properties_key",), is_audited=True,
    ),
    Operation(
        "unbind_exchange", "Remove a binding between exchanges.", _TO_EXCHANGE, _BIND_EXCHANGE,
        is_audited=True,
    ),
    Operation(
        "delete_binding", "Remove a binding that is named as by RabbitMQ's HTTP API.",
        (
            short_text("source", "the exchange that messages come from"),
            short_text("destination", "what gets them"),
            chosen("destination_type", "which of them it is", "queue", "exchange"),
            text("properties_key", "of the binding, as bind_queue answers it"),
        ), needs_text="as of unbind_queue and unbind_exchange", is_audited=True,
    ),
    # messages
    Operation(
        "publish", "Publish messages, and wait until they are confirmed.",
        (
            short_text("exchange", "the exchange", default=""),
            short_text("routing_key", "the routing key", default=""),
            table("properties", "properties of AMQP, by their names"),
            bodies("bodies", "one for each message"),
        ),
        needs_text="write on the exchange", answer=("published",),
        more="All go by one route; that there is none is an error.",
    ),
    Operation(
        "route", "Say which queues a message would go to; nothing is published.",
        (
            short_text("exchange", "the exchange", default=""),
            short_text("routing_key", "the routing key", default=""),
            table("properties", "properties of AMQP, by their names"),
        ),
        needs_text="write on the exchange", answer=("queues",),
        more="By the code that routes published messages. Its own permissions count, too.",
    ),
    Operation(
        "peek", "Print the next messages of a queue without taking them.",
        (_QUEUE, _COUNT, whole_or_null("after", meaning="the tag before the first")), _READ_QUEUE,
        answer=("messages", "after"),
        more="As many as fit into an answer. after: the last one's tag.",
    ),
    Operation(
        "move_messages", "Move ready messages to another queue, or each to where it died.",
        (
            _QUEUE, short_text_or_null("to", "the queue; null: the one in which each died last"),
            whole("count", 1, MOVE_MAX, "how many at most", default=MOVE_MAX),
            flag("dry_run", "count them only"), *MATCH, TAGS,
        ),
        audience=MANAGEMENT, tags=ADMINISTRATORS, answer=("moved", "by_queue", "stays", "why"),
        is_audited=True,
        more="Each by one record of the log, so that a crash neither loses nor doubles it; in "
        "order. They lose their own expiry. What does not match keeps its place; behind 10,000 "
        "such messages nothing is looked at. stays: how many could not move; why: the last's "
        "reason, such as a full queue.",
    ),
    Operation(
        "delete_messages", "Delete the next ready messages, or those that are meant.",
        (
            _QUEUE, whole("count", 1, MOVE_MAX, "how many at most", default=MOVE_MAX),
            flag("dry_run", "count them only"), *MATCH, TAGS,
        ), _READ_QUEUE, answer=("deleted", "stays", "why"), is_audited=True,
        more="What does not match keeps its place; behind 10,000 such messages nothing is looked "
        "at: why says so, and stays how many. No dead letters are made.",
    ),
    Operation(
        "get", "Print the next messages, and acknowledge them.",
        (
            _QUEUE, _COUNT, _SESSION,
            whole("wait_ms", 0, WAIT_MS_MAX, "for the first message", default=0),
        ),
        audience=OPERATORS, answer=("messages",),
        more="The operation takes them for the session; `settle` acknowledges them.",
    ),
    Operation(
        "browse_messages", "Show messages of a queue with such a key, header or body.",
        (
            _QUEUE, _COUNT, whole_or_null("after", meaning="the tag before the first"),
            whole("from", 0, U63_MAX, "begin behind so many", default=0),
            whole("last", 0, U63_MAX, "begin with the last so many", default=0),
            whole(
                "since", 0, U63_MAX, "begin with what came then, seconds since 1970", default=0
            ),
            whole("skip", 0, U63_MAX, "so many of those that are found", default=0),
            *MATCH, _ENCODING, _TRUNCATE,
        ), _READ_QUEUE, answer=("messages", "first", "after", "scanned", "is_end"),
        more="Looks at 20,000 messages at most, changes nothing, and takes none. after: the last "
        "one's tag, from which the next call goes on. is_end: there is no more. Each message has "
        "tag, time (when it came), attempts (that failed) and state (alpha, beta, gamma, delta). "
        "from, last and since read nothing of what is before; since is for queues without "
        "priorities. first: how many are before, of the first call.",
    ),
    Operation(
        "get_messages", "Get messages and settle them at once, as RabbitMQ's HTTP API does.",
        (
            _QUEUE, whole("count", 1, U63_MAX, "how many messages at most", default=1),
            chosen(
                "ackmode", "what becomes of them", "ack_requeue_true", "ack_requeue_false",
                "reject_requeue_true", "reject_requeue_false", default="ack_requeue_true",
            ),
            _ENCODING, _TRUNCATE,
        ), _READ_QUEUE,
        answer=(
            "payload_bytes", "redelivered", "exchange", "routing_key", "message_count",
            "properties", "payload", "payload_encoding",
        ),
        more=f"At most {GET_MAX}, and some 8 MiB, in one answer. requeue_true: they return to "
        "their places, as redelivered. reject_requeue_false: as dead letters, if the queue has "
        "a dead letter exchange.",
    ),
    Operation(
        "settle", "Acknowledge messages that a session holds, or put them back.",
        (_QUEUE, _SESSION, numbers("tags", "of the messages"), flag("requeue", "put them back")),
        audience=OPERATORS, answer=("settled",),
    ),
    Operation(
        "session_closed", "Put back what a session holds.", (_SESSION,), audience=OPERATORS,
        answer=("released",), more="An unknown session holds nothing.",
    ),
    Operation(
        "publish_events", f"Publish events of the broker to the exchange {EVENTS}.",
        (texts("lines", "JSON with event, headers and time_ms, one event each"),),
        audience=OPERATORS, more="The broker does that while somebody has bound it.",
    ),
    # streams
    Operation(
        "append_audit", f"Append entries of the audit to the stream {AUDIT_STREAM}.",
        (
            texts("lines", "JSON, one entry each"),
            whole("bytes_max", 1, U63_MAX, "how many bytes a new stream keeps"),
        ), audience=OPERATORS, more="The broker does that: see audit_vhost.",
    ),
    Operation(
        "list_streams", "Describe the streams that the caller may read, by name.",
        answer=_STREAM,
    ),
    Operation(
        "describe_stream", "Describe a stream: its partitions, readers and arguments.",
        (_QUEUE, flag("without_readers", "leave out the readers, of which there may be many")),
        _READ_QUEUE, answer=_STREAM,
    ),
    Operation(
        "find_stream_offset", "Find the first offset whose record is not older than a time.",
        (
            _QUEUE, whole("partition", 0, PARTITIONS_MAX - 1, "the partition", default=0),
            whole("time_us", 0, U63_MAX, "microseconds since 1970"),
        ), _READ_QUEUE, more="Returns that offset, or the head if there is none.",
    ),
    Operation(
        "set_stream_reader", "Set the position of a named reader.",
        (
            _QUEUE, _READER, table("offsets", "by partition"),
            table("kept_from", "offsets from which records are kept, by partition"),
            flag("wait", "answer when the position is on disk"),
        ), _READ_QUEUE,
    ),
    Operation(
        "delete_stream_reader", "Delete a named reader; one that does not exist is no error.",
        (_QUEUE, text("reader", "the reader")), _READ_QUEUE, is_audited=True,
    ),
    Operation(
        "retain_stream", "Delete the pages of a stream that no limit keeps.", (_QUEUE,),
        _CONFIGURE_QUEUE, answer=("pages",),
        more="Of those that are in a checkpoint.", is_audited=True,
    ),
    # leases
    Operation(
        "lease_queue", "Lease up to so many messages and bytes more, and describe the lease.",
        (
            _QUEUE, _READER, whole_or_null("messages", 1, meaning="null: no limit"),
            whole_or_null("bytes", 1, meaning="null: no limit"), _OWNER,
        ), _READ_QUEUE, answer=_LEASE + _LEASE_MORE,
        more="Messages that become ready after the call began are not leased.",
    ),
    Operation(
        "describe_lease", "Describe a reader's lease.", (_QUEUE, _READER), _READ_QUEUE,
        answer=_LEASE + _LEASE_MORE,
    ),
    Operation(
        "commit_lease", "Acknowledge all leased messages below an offset.",
        (_QUEUE, _READER, whole("offset", 0, U63_MAX, "the first that is not committed"), _OWNER),
        _READ_QUEUE, answer=("first",),
    ),
    Operation(
        "release_lease", "Return a reader's leased messages to their queue.",
        (_QUEUE, _READER, _OWNER), _READ_QUEUE, answer=("messages",), is_command=True,
        said="{messages} messages of queue {queue!r} released, reader {reader!r} has none",
        more="They return to their old places, and READER is forgotten.",
    ),
    Operation(
        "own_lease", "Own a reader for so many seconds, or renew that.",
        (
            _QUEUE, _READER, _OWNER_TOKEN, whole("seconds", 1, OWNER_S_MAX, "from now"),
            flag("is_held", "this program owned it before the vhost started"),
        ), _READ_QUEUE, answer=("is_owner", "renewals", "expires_s"),
    ),
    Operation(
        "disown_lease", "Give up a reader.", (_QUEUE, _READER, _OWNER_TOKEN), _READ_QUEUE,
        answer=("disowned",),
    ),
    # what is written exactly once
    Operation(
        "claim_query", "Make the caller the owner of a query that nobody has staged for.",
        (_QUERY, table("target", "as of commit_batch; empty if it is not known yet")),
        needs_text="write on the target; the query's owner", answer=("owner", "partitions"),
        more="Durably. partitions: of a stream; 1 for other targets.",
    ),
    Operation(
        "check_target", "Check a target before anything is staged for it.", (_TARGET,),
        needs_text="write on the target and on dead_letter_to", answer=("target",),
        more="A 403, 404 or 406 as a commit would have.",
    ),
    Operation(
        "commit_batch", "Commit the staged pages of a batch.",
        (
            _QUERY, _BATCH,
            objects("pages", "name, page_id, rows, bytes and checksum of each, or packed"),
            table("target", '{"queue"} or {"exchanges"}, and "dead_letter_to"'),
            pairs("mandatory_keys", "exchanges and routing keys that must lead to a queue"),
            whole_or_null("previous", meaning="the batch before; -1: there is none"),
            flag("keep_first", "accept a batch of this number that was decided"),
            flag("begins_late", "accept any number for a query without a batch"),
        ),
        needs_text="write on the target and on dead_letter_to; the query's owner",
        answer=("status", "batch"),
    ),
    Operation(
        "abort_batch", "Delete the staged pages of a batch.", (_QUERY, _BATCH),
        needs_text="the query's owner", answer=("aborted",),
        more="aborted: false if it was decided.",
    ),
    Operation(
        "release_query", "Forget a query that writes exactly once.",
        (_QUERY, flag("force", "even if its last batch is not completely in its target")),
        needs_text="the query's owner", answer=("batch",),
        more="The broker forgets the query's last batch, so the query could commit it once more.",
        is_audited=True,
    ),
    # the firehose
    Operation(
        "trace_on", "Copy each message that comes and goes to amq.rabbitmq.trace.",
        tags=ADMINISTRATORS, is_command=True,
        more="Until trace_off or a restart: see the page about the firehose.", is_audited=True,
    ),
    Operation(
        "trace_off", "End what trace_on began.", tags=ADMINISTRATORS, is_command=True,
        is_audited=True,
    ),
    # policies
    Operation(
        "set_policy", "Set a policy of queues and exchanges.", _POLICY_ARGUMENTS,
        tags=POLICYMAKERS, answer=_POLICY_COUNTS, is_command=True,
        said="policy {name!r} set: it applies to {queues} queues and {exchanges} exchanges",
        more="DEFINITION is JSON: '{\"max-length\": 1000}'. It applies to what there is, too. A "
        "policy of that name is replaced.", is_audited=True,
    ),
    Operation(
        "clear_policy", "Delete a policy.", (_POLICY,), tags=POLICYMAKERS, is_command=True,
        more="Queues and exchanges that had it get the next one, or none.", is_audited=True,
    ),
    _list("list_policies", "List policies.", _POLICY_COLUMNS, tags=POLICYMAKERS),
    Operation(
        "set_operator_policy", "Set a policy with limits that policies cannot exceed.",
        _POLICY_ARGUMENTS, tags=ADMINISTRATORS, answer=_POLICY_COUNTS, is_command=True,
        said="operator policy {name!r} set: it applies to {queues} queues and {exchanges} "
        "exchanges",
        more="DEFINITION is JSON with limits: '{\"max-length\": 1000}'. The least of argument, "
        "policy and operator policy counts.", is_audited=True,
    ),
    Operation(
        "clear_operator_policy", "Delete an operator policy.", (_POLICY,), tags=ADMINISTRATORS,
        is_command=True, is_audited=True,
    ),
    _list(
        "list_operator_policies", "List operator policies.", _POLICY_COLUMNS, tags=POLICYMAKERS
    ),
    _list(
        "list_parameters", "List the parameters of a vhost.", ("component", "name", "value"),
        tags=POLICYMAKERS,
    ),
    Operation(
        "set_parameter", "Store a parameter of a vhost.",
        (_COMPONENT, short_text("name", "the parameter's"), _VALUE), tags=POLICYMAKERS,
        answer=("is_new",), is_command=True,
        more="VALUE is JSON. Stored only: there are no shovels and no federation here. For "
        "policies and limits there are commands of their own.", is_audited=True,
    ),
    Operation(
        "clear_parameter", "Delete a parameter of a vhost.",
        (_COMPONENT, short_text("name", "the parameter's")), tags=POLICYMAKERS, is_command=True,
        is_audited=True,
    ),
    # long work
    Operation(
        "checkpoint", "Make a checkpoint of a vhost now.", audience=MANAGEMENT,
        tags=ADMINISTRATORS, answer=("job",),
    ),
    Operation(
        "backup", "Copy a vhost in use into a new data directory.",
        (
            matching_text(
                "path", "an absolute path",
                lambda given: given.startswith("/") and "\0" not in given,
                "a directory that does not exist or is empty",
            ),
        ), audience=OPERATORS, answer=("job",),
    ),
    Operation(
        "job", "Wait for a job that checkpoint or backup began.",
        (
            whole("job", 1, 1 << 62, "its number"),
            whole("wait_ms", 0, WAIT_MS_MAX, "at most", default=0),
        ), audience=MANAGEMENT, tags=ADMINISTRATORS, answer=("is_done", "result"),
        more="A job's error is the answer.",
    ),
    Operation(
        "loop", "Return the longest time of the vhost's loop, and reset it.", audience=OPERATORS,
        answer=("longest_s",), more="Null unless PENSTOCK_MEASURE_LOOP=1.",
    ),
    # lists of a vhost
    Operation(
        "vhost_status", "Return counts, sizes, the log and the alarms of a vhost.", tags=WATCHERS,
        answer=_STATUS,
    ),
    Operation(
        "why", "Say why publishers wait, a queue does not drain, or a connection stands.",
        (
            short_text_or_null("queue", "of this queue"),
            text_or_null("connection", 'of this connection, "host:port -> host:port"'),
        ), tags=WATCHERS, answer=("about", "text", "do", "since"),
        more="Without both: of the vhost. A list; empty if nothing is wrong that the broker sees. "
        "text: the first cause; do: what ends it.",
    ),
    Operation(
        "vhost_totals", "Return the counters of a vhost since it was opened, with their rates.",
        (_SAMPLES,), tags=MANAGERS,
        answer=(
            "message_stats", "churn_rates", "object_totals", "queue_totals", "recv_oct",
            "recv_oct_details", "send_oct", "send_oct_details", "dead_lettered",
            "dead_letters_dropped", "tracing",
        ),
    ),
    Operation(
        "list_rows", "List things of one kind as RabbitMQ's HTTP API does: all, or a page.",
        (
            _KIND, _ROW_OF, _COLUMNS, text("sort", "a column, by its name with dots", default=""),
            flag("reverse", "the highest first"),
            whole_or_null("page", 1, meaning="from 1; null: all, as a list"),
            whole_or_null("page_size", 1, meaning=f"rows; null: {PAGE_SIZE}"),
            text("name", "only names with this in them", default=""),
            flag("use_regex", "`name` is a regular expression of RE2"), _ONE_USER, _RATES, _TOTALS,
            _SAMPLES,
        ), tags=MANAGERS,
        more="A page: filtered_count, item_count, items, page, page_count, page_size and "
        "total_count. Without the tag monitoring or administrator: of what belongs to users, the "
        "caller's own. samples: of 100 rows at most.",
    ),
    Operation(
        "describe_row", "Describe one thing as RabbitMQ's HTTP API does.",
        (
            _KIND, text("name", "the thing's"), _ROW_OF, _COLUMNS, _RATES, _TOTALS, _SAMPLES,
        ), tags=MANAGERS,
    ),
    Operation(
        "names", "Return the first names of things of one kind, sorted.",
        (
            _KIND, text("prefix", "what they begin with", default=""),
            whole("limit", 1, NAMES_MAX, "of them", default=200),
        ), tags=MANAGERS,
    ),
    Operation(
        "metrics", "Return the numbers of a vhost for /metrics.", tags=WATCHERS,
        answer=("values", "totals"), more="Their names and meanings: see metrics.md.",
    ),
    Operation(
        "object_metrics", "Return the numbers of each queue, exchange or reader for /metrics.",
        (
            texts("families", "of metrics.md; an unknown one is left out"),
            text("since", "the stamp of an earlier answer, of the same families", default=""),
        ), tags=WATCHERS,
        more="By family, rows of labels and numbers, some in each list: if is_part, of the queues "
        "that have changed since, without those that are gone. An age is the time since when, in "
        "seconds since 1970, 0 of nothing.",
    ),
    _list(
        "list_queues", "List the queues of a vhost.", ("name", "messages"),
        (
            "consumers", "messages_ready", "messages_unacknowledged", "leased", "message_bytes",
            "memory", "memory_alphas", "memory_rows", "memory_elsewhere", "memory_target",
            "memory_max", "memory_min", "memory_share", "memory_duration", "paged_by",
            "messages_ram", "messages_paged_out", "ack_in_per_s", "ack_out_per_s", "durable",
            "exclusive", "auto_delete", "arguments", "state", "type", "alphas", "betas", "gammas",
            "delta", "delayed", "message_bytes_ready", "message_bytes_unacknowledged", "mode",
            "message_stats", "idle_since", "disk_reads", "disk_writes", "in_per_s", "out_per_s",
            "refused", "rejected", "expired", "maxlen", "delivery_limit", "dead_letters_dropped",
            "dead_letter_cycles", "alerts_raised", "why", "generation", "is_flowed", "q1", "q2",
            "q3", "q4", "set_aside", "partitions", "readers", "vhost", *_APPLIED,
            "consumer_capacity", "consumer_utilisation", "exclusive_consumer_tag",
            "head_message_timestamp", "messages_persistent", "messages_ready_ram",
            "messages_unacknowledged_ram", "message_bytes_persistent", "message_bytes_ram",
            "leader", "members", "online", "owner_pid", "exclusive_consumer_pid", "pid",
            "slave_pids", "synchronised_slave_pids",
        ), tags=MANAGERS, arguments=_CHOSEN,
    ),
    Operation(
        "list_topology",
        "Return policies, parameters, exchanges, queues and bindings of a vhost, without counts.",
        audience=OPERATORS,
        answer=(
            "policies", "operator_policies", "parameters", "exchanges", "queues", "bindings",
        ),
        more="As definitions have them; without the bindings of the default exchange.",
    ),
    _list(
        "list_exchanges", "List the exchanges of a vhost.", ("name", "type"),
        ("durable", "auto_delete", "internal", "arguments", "vhost", *_APPLIED), tags=MANAGERS,
        arguments=_CHOSEN,
    ),
    _list(
        "list_bindings", "List the bindings of a vhost.",
        (
            "source_name", "source_kind", "destination_name", "destination_kind", "routing_key",
            "arguments",
        ), ("vhost",), tags=MANAGERS, arguments=_CHOSEN,
    ),
    _list(
        "list_consumers", "List the consumers of a vhost.",
        (
            "queue_name", "channel", "consumer_tag", "ack_required", "prefetch_count", "active",
            "arguments",
        ),
        (
            "connection", "user", "exclusive", "priority", "unacked", "delivered", "vhost",
            "activity_status", "channel_pid",
        ), tags=MANAGERS, arguments=_CHOSEN,
    ),
    _list(
        "list_channels", "List the channels of a vhost's connections.",
        ("name", "user", "consumer_count", "messages_unacknowledged"),
        (
            "connection", "number", "vhost", "prefetch_count", "global_prefetch_count", "confirm",
            "transactional", "messages_unconfirmed", "messages_uncommitted", "acks_uncommitted",
            "state", "why", "since", "pid",
        ), tags=MANAGERS, arguments=_CHOSEN,
        more="Without the tag monitoring or administrator: the user's own.",
    ),
    Operation(
        "close_connections", "Close connections of a vhost.",
        (
            text("name", 'only the one of this name, "host:port -> host:port"', default=""),
            text("user", "only those of this user", default=""),
            text("reason", "what the clients get", default="closed by an operator"),
            whole("channel", 0, 65535, "of the one of this name, only this channel", default=0),
        ), tags=MANAGERS, answer=("closed",), is_audited=True,
        more="Each client gets 320 CONNECTION_FORCED with the reason, of a channel 406. What is "
        "unacknowledged there goes back to its queues. Without the tag monitoring "
        "or administrator: the caller's own.",
    ),
    _list(
        "list_alerts", "List the alerts of a vhost.", ("time", "queue", "kind", "is_on", "text"),
        ("first_time", "count", "value", "threshold", "vhost"), tags=WATCHERS,
    ),
    _list(
        "list_leases", "List the messages that readers have leased of queues.",
        _LEASE, _LEASE_MORE,
    ),
    _list(
        "list_batches", "List the last batch of each query that writes exactly once.",
        ("query", "batch", "target", "rows", "is_done", "waits_for"),
        ("owner", "pages", "page", "frame", "bytes", "time_us"),
        more="Of the queries that the caller may use; of all with the tag monitoring or "
        "administrator.",
    ),
    # the library's box on a broker
    Operation(
        "box.queue", "Return whether there is the queue, and its arguments.", (_BOX_NAME,),
        needs_text=_ANY_PERMISSION, audience=CLIENTS,
        answer=("exists", "arguments", "whole_bytes"),
        more="whole_bytes: the memory of which percentages are meant.",
    ),
    Operation(
        "box.declare", "Declare a durable queue, as AMQP's queue.declare does.",
        (_BOX_NAME, table("arguments", "as of AMQP")),
        needs_text="configure on the queue `name`", audience=CLIENTS, is_audited=True,
    ),
    Operation(
        "box.queues",
        "List the first names, sorted, of the queues on which the user has any permission.",
        (
            text("after", "a name before the first", default=""),
            whole("n", 1, NAMES_MAX, "how many"),
        ), audience=CLIENTS,
    ),
    Operation(
        "box.queue_info", "Return counts of a queue.", (_BOX_NAME,), needs_text=_ANY_PERMISSION,
        audience=CLIENTS, answer=("ready", "unacked", "delayed", "info"),
    ),
    Operation(
        "box.room", "Return null if the queue has room for messages.",
        (
            _BOX_NAME, whole("bytes", 0, U63_MAX, "of all of them"),
            whole("count", 0, U63_MAX, "how many"),
        ),
        (("write", "exchange", ""),), audience=CLIENTS,
        answer=("limit", "given", "allowed", "overflow"),
    ),
    Operation(
        "box.browse", "Return ready messages of a queue.",
        (_BOX_NAME, _AFTER, whole("n", 1, BROWSE_MAX, "how many")), _READ_NAME, audience=CLIENTS,
    ),
    Operation(
        "box.read", "Return a part of a message that is too large for box.browse.",
        (
            _BOX_NAME, _AFTER, whole("tag", 0, U63_MAX, "the message's"),
            whole("at", 0, U63_MAX, "the first byte"), whole("n", 1, U63_MAX, "how many bytes"),
        ), _READ_NAME, audience=CLIENTS,
    ),
    Operation(
        "box.purge", "Delete ready messages; return how many.",
        (_BOX_NAME, flag("with_delayed", "delayed ones too")), _READ_NAME, audience=CLIENTS,
        is_audited=True,
    ),
    Operation(
        "box.delete", "Delete a queue or stream.", (_BOX_NAME,), (("configure", "queue", "name"),),
        audience=CLIENTS, is_audited=True,
    ),
    Operation(
        "box.nack", "Requeue an unacked delivery of this channel.",
        (_TAG, whole_or_null("delay_ms", 0, DELAY_MS_MAX, "after so long")), audience=CLIENTS,
    ),
    Operation(
        "box.release", "Put an unacked delivery of this channel back at once.", (_TAG,),
        audience=CLIENTS, more="No attempt is counted.",
    ),
    Operation(
        "box.adopt", "Move unacked deliveries of another channel of the connection to this one.",
        (whole("channel", 1, 65535, "the other"), numbers("tags", "of the deliveries")),
        audience=CLIENTS, more="Returns the tags that they have now.",
    ),
    Operation("box.info", "Return counters of the vhost.", audience=CLIENTS),
    Operation("box.sync", "Wait until everything so far is on disk.", audience=CLIENTS),
    Operation(
        "box.append_to", "Send all publishes of the channel to a stream.",
        (short_text_or_null("name", "the stream; null: where they are published to"),),
        needs_text="write on the queue `name`", audience=CLIENTS,
    ),
    Operation(
        "box.appended", "Return where the last publishes to the stream are, and forget all.",
        (whole("n", 0, U63_MAX, "of how many"),), audience=CLIENTS,
        more="As runs: [partition, first offset, count] of each.",
    ),
    Operation(
        "box.streams", "List the first names, sorted, of the streams that the caller may read.",
        (
            text("after", "a name before the first", default=""),
            whole("n", 1, NAMES_MAX, "how many"),
        ), audience=CLIENTS,
    ),
    Operation(
        "box.stream_info", "Return the partitions and readers of a stream.",
        (short_text("name", "the stream"), text("reader", "whose offsets are meant", default="")),
        _READ_NAME, audience=CLIENTS, answer=("partitions", "readers", "offsets"),
        more="A partition is [first, head, last_time_us, bytes]; readers are the first names that "
        "fit into an answer; offsets are by partition, {} if the reader is not known.",
    ),
)  # fmt: skip

OPERATIONS: Final[Mapping[str, Operation]] = {row.name: row for row in _ROWS}

AUDITED: Final = frozenset(row.name for row in _ROWS if row.is_audited)

# What a session holds is put back when the connection ends whose calls have named it.
SESSION_OPERATIONS: Final = frozenset(row.name for row in _ROWS if _SESSION in row.arguments)


def find(op: str, known: Collection[str]) -> Operation:
    """Return the row of an operation of `known`. ChannelError 404, with the nearest name."""
    if op in known:
        return OPERATIONS[op]
    raise ChannelError(NOT_FOUND, f"no operation {op!r}{_hint(op, known)}")


def is_of_node(op: str) -> bool:
    """Return whether the node answers the operation; an unknown one is a vhost's."""
    return op in OPERATIONS and OPERATIONS[op].of != VHOST


def check_over_http(row: Operation, caller: str, tags: Collection[str] | None) -> None:
    """Raise ChannelError 403 if HTTP may not call the operation, or not for the user `caller` with
    these tags. tags: None if HTTP calls it of its own accord."""
    if not row.is_over_http:
        raise ChannelError(ACCESS_REFUSED, f"{row.name} is not available over HTTP")
    if tags is not None:
        check_tags(row, caller, tags)


def check_tags(row: Operation, caller: str, tags: Collection[str]) -> None:
    """Raise ChannelError 403 unless the operation needs no tag, or the caller has one of its."""
    if row.tags and not set(row.tags).intersection(tags):
        needed = " or ".join(row.tags)
        text = f"operation '{row.name}' refused for user '{caller}': it needs the tag {needed}"
        raise ChannelError(ACCESS_REFUSED, text)


def _hint(name: str, known: Collection[str]) -> str:
    """Return a question about the nearest known name, "" if none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""
