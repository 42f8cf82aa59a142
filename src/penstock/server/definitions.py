"""Definitions: users, vhosts, permissions, limits, policies, queues, exchanges and bindings as one
document of JSON, in RabbitMQ's form.

    document(...)            what a broker has, for `export_definitions`
    Definitions(...)         a document that was read and checked, for `import_definitions`
    missing(...)             what of it a vhost has not yet, or has with other properties

A document is checked as a whole before anything is applied: each entry by itself, what it refers
to (a binding's queue, a permission's user), and the limits. `DefinitionsError` lists all that is
wrong, up to PROBLEMS_MAX. What RabbitMQ's documents have and Penstock has not is wrong, too, unless
the caller leaves it out; `left_out` lists it. Unknown members are ignored, as RabbitMQ does.

A whole document has users and vhosts, and its entries name their vhost. A document of one vhost has
neither; it is for the vhost that the caller names. Of a whole document only that vhost's entries
are taken then, and no users.

What RabbitMQ would refuse stands in a member `penstock` of a user or vhost, which it ignores: the
scrypt hash of a password, and the limits that only Penstock has. Such a user's `password_hash` is
empty, so in RabbitMQ the user cannot log in until the password is set.

These functions use nothing but their arguments: a worker's thread runs them, because a document of
10,000 queues takes some 0.2 s.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.access.limits import (
    MAX_BINDINGS,
    MAX_CHANNELS,
    MAX_CONNECTIONS,
    MAX_EXCHANGES,
    MAX_QUEUES,
    OF_USERS,
    OF_VHOSTS,
    UNDEFINED,
    VHOST_OPTIONS,
    checked_limits,
)
from penstock.access.permissions import check_pattern, expanded
from penstock.access.users import (
    NO_PASSWORD,
    Tables,
    check_name,
    check_parameter,
    checked_tags,
    checked_vhost,
    is_of_rabbitmq,
    rabbitmq_hash,
)
from penstock.broker import refusals
from penstock.broker.arguments import (
    check_arguments,
    check_equivalent,
    check_same_argument,
    check_stream_arguments,
    check_type,
    type_of,
    wrong_type,
)
from penstock.broker.policies import ALTERNATE, OPERATOR_POLICY, POLICIES_MAX, POLICY, Policy
from penstock.broker.topology import DELAYED_TYPE, EXCHANGE, QUEUE, SYSTEM, system_exchanges
from penstock.errors import AMQPError, OptionError, PenstockError
from penstock.native import VERSION
from penstock.operation_json import JsonParts, check_names, from_json
from penstock.operation_table import (
    STORED_COMPONENTS,
    Argument,
    Arguments,
    field_table,
    flag,
    short_text,
    table,
    text,
)
from penstock.queues.stream_options import STREAM
from penstock.routing.exchange_types import (
    DIRECT,
    FANOUT,
    TOPIC,
    Binding,
    make_exchange_type,
)

PROBLEMS_MAX: Final = 100
RABBITMQ_VERSION: Final = "3.13.0"  # whose form it is; readers decide by it
PENSTOCK: Final = "penstock"
CLUSTER_ID: Final = "internal_cluster_id"
LIMITS_COMPONENT: Final = "vhost-limits"
# Limits that RabbitMQ has.
OF_RABBITMQ: Final = frozenset({MAX_CONNECTIONS, MAX_CHANNELS, MAX_QUEUES})

Json = dict[str, Any]
VhostTopology = dict[str, list[Json]]  # SECTIONS, as the operation list_topology returns them
SECTIONS: Final = (
    "policies", "operator_policies", "parameters", "exchanges", "queues", "bindings",
)  # fmt: skip

_NAME: Final = text("name", "its name")
_VHOST: Final = text("vhost", "the vhost")
_USER_NAME: Final = text("user", "")
_PERMISSION: Final = (
    _USER_NAME, _VHOST, text("configure", ""), text("write", ""), text("read", ""),
)  # fmt: skip
_TOPIC_PERMISSION: Final = (
    _USER_NAME, _VHOST, short_text("exchange", ""), text("write", ""), text("read", ""),
)  # fmt: skip
_ARGUMENTS: Final = field_table("arguments", "as of AMQP")
_AUTO_DELETE: Final = flag("auto_delete", "")
_DURABLE: Final = flag("durable", "", default=True)
_USER: Final = (
    _NAME, text("password_hash", ""),
    text("hashing_algorithm", "", default="rabbit_password_hashing_sha256"),
    table("limits", ""), table(PENSTOCK, ""),
)  # fmt: skip
_EXCHANGE: Final = (
    short_text("name", ""), short_text("type", ""), _DURABLE, _AUTO_DELETE, flag("internal", ""),
    _ARGUMENTS,
)  # fmt: skip
_QUEUE: Final = (short_text("name", ""), _DURABLE, _AUTO_DELETE, _ARGUMENTS)
_BINDING: Final = (
    short_text("source", ""), short_text("destination", ""), text("destination_type", ""),
    short_text("routing_key", "", default=""), _ARGUMENTS,
)  # fmt: skip
POLICY_SECTIONS: Final = {POLICY: "policies", OPERATOR_POLICY: "operator_policies"}
_OF_POLICY: Final = ("pattern", "apply-to", "definition", "priority")
_PARAMETER: Final = (text("component", ""), text("name", ""), table("value", ""))


class DefinitionsError(PenstockError):
    """Definitions that cannot be imported; nothing of them was. problems: all that is wrong, one
    line each, at most PROBLEMS_MAX."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - PROBLEMS_MAX
        self.problems = problems[:PROBLEMS_MAX] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("\n".join(self.problems))


class Definitions:
    """A checked document. text: of the file. vhost: "" for a whole document, see above.
    is_lenient: leave out what Penstock has not. Raises DefinitionsError.

    tables: users, vhosts, permissions and limits. topology: of each vhost that the document has
    something for, in the form of the operation `list_topology`. left_out: what was left out;
    not_run: what is stored, but does nothing here; one line each.
    """

    def __init__(self, given: str, vhost: str, *, is_lenient: bool = False) -> None:
        self.tables = Tables()
        self.topology: dict[str, VhostTopology] = {}
        self.left_out: list[str] = []
        self.not_run: list[str] = []
        self._problems: list[str] = []
        self._document = _parsed(given)
        self._vhost = vhost
        self._is_whole = "users" in self._document or "vhosts" in self._document
        self._is_lenient = is_lenient
        if vhost:
            self.topology[vhost] = _empty_topology()
        else:
            self._take_vhosts()
            self._take_users()
            self._take_permissions()
            self._take_global_parameters()
        self._take_parameters()
        for place, row in self._rows("policies"):
            self._take_policy(place, self._vhost_of(place, row), POLICY, row.get("name"), row)
        for section, rows, check in (
            ("exchanges", _EXCHANGE, _check_exchange),
            ("queues", _QUEUE, _check_queue),
            ("bindings", _BINDING, _check_binding),
        ):
            self._take_topology(section, rows, check)
        self.finish()

    def finish(self, problems: list[str] | None = None) -> None:
        """Raise DefinitionsError if anything is wrong. problems: found by others."""
        self._problems += problems or []
        if self._problems:
            raise DefinitionsError(self._problems)

    def _rows(self, section: str) -> Iterator[tuple[str, Json]]:
        """Yield the entries of a section, with what errors call each."""
        rows = self._document.get(section, [])
        if not isinstance(rows, list):
            self._problems.append(f"{section}: given {_short(rows)}, expected a list")
            return
        for n, row in enumerate(rows):
            if isinstance(row, dict):
                name = row.get("name", row.get("user", row.get("source", "")))
                yield f"{section}[{n}] {_short(name)}", row
            else:
                self._problems.append(f"{section}[{n}]: given {_short(row)}, expected an object")

    def _checked(self, place: str, row: Json, rows: tuple[Argument, ...]) -> dict[str, Any] | None:
        """Return the members of an entry that `rows` names; None if one is wrong."""
        names = [one.name for one in rows]
        try:
            known = Arguments(place, rows, {name: row[name] for name in names if name in row})
        except AMQPError as error:
            self._problems.append(_said(error).replace("argument ", ""))
            return None
        return {name: known.value(name) for name in names}

    def _try(self, place: str, check: Callable[..., Any], *args: object) -> Any:
        """Return what `check(*args)` returns; None if it raises, which is a problem then."""
        try:
            return check(*args)
        except AMQPError as error:
            self._problems.append(f"{place}: {_said(error)}")
        except OptionError as error:
            said = f"{error.name}: given {_short(error.given)}, expected {error.expected}"
            self._problems.append(f"{place}: {said}")
        except (ValueError, TypeError, OverflowError) as error:
            self._problems.append(f"{place}: {error}")
        return None

    # ---- users and vhosts ------------------------------------------------------------------------

    def _take_vhosts(self) -> None:
        for place, row in self._rows("vhosts"):
            found = self._checked(place, row, (_NAME, table("metadata", ""), table(PENSTOCK, "")))
            if found is not None:
                name = found["name"]
                self._try(place, check_name, "vhost", name)
                said = {**row, **found["metadata"]}
                options = {
                    one.name: said[one.name]
                    for one in VHOST_OPTIONS
                    if said.get(one.name) not in (None, "", UNDEFINED, [])
                }
                self.tables.vhosts[name] = self._try(place, checked_vhost, options) or {}
                self._take_limits(place, "vhost", name, found[PENSTOCK].get("limits", {}))

    def _take_users(self) -> None:
        for place, row in self._rows("users"):
            if "password" in row:
                self._problems.append(f"{place}: a password in clear text; expected password_hash")
            found = self._checked(place, row, _USER)
            if found is None:
                continue
            name, own = found["name"], found[PENSTOCK]
            self._try(place, check_name, "user", name)
            hashed = own.get("password_hash") or self._try(
                place,
                rabbitmq_hash,
                found["password_hash"],
                found["hashing_algorithm"],
            )
            tags = self._try(place, _checked_tags, row.get("tags", []))
            if hashed is not None and tags is not None:
                self.tables.users[name] = (str(hashed), tags)
            self._take_limits(place, "user", name, found["limits"])
            self._take_limits(place, "user", name, own.get("limits", {}))

    def _take_limits(self, place: str, kind: str, name: str, given: Json) -> None:
        names = OF_USERS if kind == "user" else OF_VHOSTS
        found = self._try(place, checked_limits, given, names)
        if found:
            self.tables.limits[kind].setdefault(name, {}).update(found)

    def _take_permissions(self) -> None:
        for place, row in self._rows("permissions"):
            found = self._checked(place, row, _PERMISSION)
            if found is None:
                continue
            patterns = (found["configure"], found["write"], found["read"])
            for verb, pattern in zip(("configure", "write", "read"), patterns, strict=True):
                self._try(place, check_pattern, verb, pattern)
            self.tables.permissions[(found["user"], found["vhost"])] = patterns
        for place, row in self._rows("topic_permissions"):
            found = self._checked(place, row, _TOPIC_PERMISSION)
            if found is None:
                continue
            user, vhost, two = found["user"], found["vhost"], (found["write"], found["read"])
            for verb, pattern in zip(("write", "read"), two, strict=True):
                self._try(place, check_pattern, verb, expanded(pattern, user, vhost))
            self.tables.topics[(user, vhost, found["exchange"])] = two

    def _take_parameters(self) -> None:
        for place, row in self._rows("parameters"):
            vhost = self._vhost_of(place, row)
            found = self._checked(place, row, _PARAMETER)
            if found is None or vhost is None:
                continue
            if found["component"] == LIMITS_COMPONENT:
                self._take_limits(place, "vhost", vhost, found["value"])
            elif found["component"] == OPERATOR_POLICY:
                self._take_policy(place, vhost, OPERATOR_POLICY, found["name"], found["value"])
            elif found["component"] in STORED_COMPONENTS:
                self.not_run.append(f"{place}: a {found['component']} is stored, and does nothing")
                self.topology.setdefault(vhost, _empty_topology())["parameters"].append(found)
            else:
                self._unsupported(f"{place}: no parameters of the component {found['component']}")

    def _take_global_parameters(self) -> None:
        for place, row in self._rows("global_parameters"):
            found = self._checked(place, row, (_NAME,))
            if found is None:
                continue
            if found["name"] == CLUSTER_ID:
                self.left_out.append(f"{place}: it is of the other broker alone")
            else:
                self._try(place, check_parameter, found["name"], row.get("value"))
                self.tables.parameters[found["name"]] = row.get("value")

    def _take_policy(
        self, place: str, vhost: str | None, component: str, name: object, value: Json
    ) -> None:
        if vhost is None:
            return
        known = {member: value[member] for member in _OF_POLICY if member in value}
        found = self._try(place, Policy.of, component, str(name), known)
        if found is not None:
            section = POLICY_SECTIONS[component]
            row = {"name": found.name, **found.value()}
            self.topology.setdefault(vhost, _empty_topology())[section].append(row)

    def _unsupported(self, what: str) -> None:
        if self._is_lenient:
            self.left_out.append(what)
        else:
            self._problems.append(f"{what}; leave_out leaves it out")

    # ---- what vhosts have ------------------------------------------------------------------------

    def _vhost_of(self, place: str, row: Json) -> str | None:
        """Return the vhost of an entry, None if the entry is not meant."""
        if self._vhost:
            is_meant = not self._is_whole or row.get("vhost", self._vhost) == self._vhost
            return self._vhost if is_meant else None
        vhost = row.get("vhost")
        if isinstance(vhost, str):
            return vhost
        self._problems.append(
            f"{place}: 'vhost' is missing; --vhost imports a document of one vhost"
        )
        return None

    def _take_topology(
        self, section: str, rows: tuple[Argument, ...], check: Callable[[str, Json], None]
    ) -> None:
        for place, row in self._rows(section):
            vhost = self._vhost_of(place, row)
            found = None if vhost is None else self._checked(place, row, rows)
            if found is None or vhost is None or (section == "bindings" and not found["source"]):
                continue  # bindings of the default exchange are there by themselves
            self._try(place, check, vhost, found)
            self.topology.setdefault(vhost, _empty_topology())[section].append(found)


def _parsed(given: str) -> Json:
    """Return the object that the text is. Raises DefinitionsError."""
    try:
        document = json.loads(given)
        check_names(document)
        found = from_json(document, is_exact=True)
    except (ValueError, RecursionError) as error:
        raise DefinitionsError([f"the definitions are not JSON: {error}"]) from error
    if not isinstance(found, dict):
        raise DefinitionsError([f"the definitions: given {_short(found)}, expected an object"])
    return found


def _empty_topology() -> VhostTopology:
    return {section: [] for section in SECTIONS}


def _checked_tags(given: object) -> tuple[str, ...]:
    """Return tags of a list, or of a text with commas, as RabbitMQ wrote them until 3.8."""
    if isinstance(given, str):
        given = [tag.strip() for tag in given.split(",") if tag.strip()]
    if not isinstance(given, list) or not all(isinstance(tag, str) for tag in given):
        raise ValueError(f"tags: given {_short(given)}, expected a list of texts")
    return checked_tags(given)


def _check_exchange(vhost: str, one: Json) -> None:
    """Raise an error unless the exchange can be declared."""
    name, arguments = one["name"], one["arguments"]
    if name not in system_exchanges(vhost):
        _check_reserved("exchange", name)
    make_exchange_type(one["type"], arguments)
    if ALTERNATE in arguments and not isinstance(arguments[ALTERNATE], str):
        what = refusals.called("exchange", name, vhost)
        raise wrong_type(ALTERNATE, what, arguments[ALTERNATE])


def _check_queue(vhost: str, one: Json) -> None:
    """Raise an error unless the queue or stream can be declared."""
    name, arguments = one["name"], one["arguments"]
    _check_reserved("queue", name)
    what = refusals.called("queue", name, vhost)
    if type_of(arguments) == STREAM:
        check_stream_arguments(what, arguments)
    else:
        check_arguments(what, arguments)
    check_type(
        what, arguments, durable=one["durable"], exclusive=False, auto_delete=one["auto_delete"]
    )


def _check_reserved(kind: str, name: str) -> None:
    if not name:
        raise ValueError(f"a {kind} without a name")
    if name.startswith("amq."):
        raise refusals.reserved(kind, name)


def _check_binding(_vhost: str, one: Json) -> None:
    if one["destination_type"] not in ("queue", "exchange"):
        given = _short(one["destination_type"])
        raise ValueError(f"destination_type: given {given}, expected queue or exchange")


def of_new_vhost() -> VhostTopology:
    """Return what a vhost has from its beginning."""
    exchanges: list[Json] = [
        {
            "name": name, "type": kind, "durable": True, "auto_delete": False,
            "internal": is_internal, "arguments": {},
        }
        for name, (kind, is_internal) in SYSTEM.items()
    ]  # fmt: skip
    return {**_empty_topology(), "exchanges": exchanges}


# ---- what a vhost has already --------------------------------------------------------------------


def missing(
    vhost: str, wanted: VhostTopology, there: VhostTopology, limits: Mapping[str, int]
) -> tuple[VhostTopology, list[str], list[str]]:
    """Return (what has to be declared, what is there with other properties, what is wrong). there:
    what the vhost has. limits: the vhost's, by name."""
    declared, differs, wrong = _empty_topology(), list[str](), list[str]()
    known: dict[str, dict[str, Json]] = {}
    for section, check in (("exchanges", _check_same_exchange), ("queues", _check_same_queue)):
        kind = section.removesuffix("s")
        names = known[kind] = {one["name"]: one for one in there[section]}
        for one in wanted[section]:
            current = names.get(one["name"])
            if current is None:
                names[one["name"]] = one
                declared[section].append(one)
                continue
            try:
                check(refusals.called(kind, one["name"], vhost), one, current)
            except AMQPError as error:
                differs.append(_said(error))
    for section in POLICY_SECTIONS.values():
        policies = {one["name"]: one for one in there[section]}
        declared[section] = [one for one in wanted[section] if policies.get(one["name"]) != one]
        count = len(policies.keys() | {one["name"] for one in wanted[section]})
        if count > POLICIES_MAX:
            wrong.append(f"vhost '{vhost}' would have {count} {section}, at most {POLICIES_MAX}")
    declared["parameters"] = [one for one in wanted["parameters"] if one not in there["parameters"]]
    declared["bindings"], lost = _missing_bindings(vhost, wanted, there, known)
    wrong += lost
    for name, section in (
        (MAX_QUEUES, "queues"), (MAX_EXCHANGES, "exchanges"), (MAX_BINDINGS, "bindings"),
    ):  # fmt: skip
        count = len(there[section]) + len(declared[section])
        if declared[section] and 0 <= limits[name] < count:
            wrong.append(
                f"vhost '{vhost}' would have {count} {section}, its {name} is {limits[name]}"
            )
    return declared, differs, wrong


def _missing_bindings(
    vhost: str, wanted: VhostTopology, there: VhostTopology, known: Mapping[str, Mapping[str, Json]]
) -> tuple[list[Json], list[str]]:
    """Return (the bindings that are not there yet, what is wrong). known: all exchanges and queues
    that there will be, by kind and name."""
    found, wrong = list[Json](), list[str]()
    bound = {_binding_of(one).identity for one in there["bindings"]}
    for one in wanted["bindings"]:
        source = known["exchange"].get(one["source"])
        lost = [
            refusals.called(kind, name, vhost)
            for kind, name in (
                ("exchange", one["source"]), (one["destination_type"], one["destination"]),
            )
            if name not in known[kind]
        ]  # fmt: skip
        what = f"binding of {_short(one['source'])} to {_short(one['destination'])}"
        if lost or source is None:
            wrong += [f"{what}: there is no {each}, here or in the definitions" for each in lost]
            continue
        try:
            if source["type"] not in (DIRECT, FANOUT, TOPIC):
                make_exchange_type(source["type"], source["arguments"]).bind(_binding_of(one))
        except AMQPError as error:
            wrong.append(f"{what}: {_said(error)}")
            continue
        identity = _binding_of(one).identity
        if identity not in bound:
            bound.add(identity)
            found.append(one)
    return found, wrong


def declaration(section: str, row: Json) -> tuple[str, Json]:
    """Return the operation that declares an entry, and its arguments."""
    args = dict(row)
    if section in POLICY_SECTIONS.values():
        args["apply_to"] = args.pop("apply-to")
        return ("set_policy" if section == "policies" else "set_operator_policy"), args
    if section == "parameters":
        return "set_parameter", args
    if section == "bindings":
        destination, kind = args.pop("destination"), args.pop("destination_type")
        if kind == "exchange":
            return "bind_exchange", {**args, "destination": destination}
        source = args.pop("source")
        return "bind_queue", {**args, "exchange": source, "queue": destination}
    kind = section.removesuffix("s")
    args[kind] = args.pop("name")
    return f"declare_{kind}", args


def _binding_of(one: Json) -> Binding:
    kind = QUEUE if one["destination_type"] == "queue" else EXCHANGE
    return Binding(one["source"], kind, one["destination"], one["routing_key"], one["arguments"])


def _check_same_exchange(what: str, one: Json, current: Json) -> None:
    """Raise ChannelError 406, with what differs, unless both are declared the same."""
    for name in ("type", "durable", "auto_delete", "internal"):
        refusals.check_same(name, what, one[name], current[name])
    for name in (ALTERNATE, DELAYED_TYPE):
        check_same_argument(name, what, one["arguments"], current["arguments"])


def _check_same_queue(what: str, one: Json, current: Json) -> None:
    if current.get("exclusive"):
        raise refusals.locked(what)
    for name in ("durable", "auto_delete"):
        refusals.check_same(name, what, one[name], current[name])
    check_equivalent(what, one["arguments"], current["arguments"])


# ---- what a broker has ---------------------------------------------------------------------------


def document(tables: Tables, topology: Mapping[str, VhostTopology], vhost: str) -> JsonParts:
    """Return the document of a broker, or of one vhost if it is named. topology: of each vhost."""
    parts = JsonParts(is_exact=True)
    parts.begin(b"{")
    for name in ("rabbit_version", "rabbitmq_version"):
        parts.add(RABBITMQ_VERSION, name)
    parts.add("Penstock", "product_name")
    parts.add(VERSION, "product_version")
    parameters = [
        {"vhost": name, "component": LIMITS_COMPONENT, "name": "limits", "value": value}
        for name, own in tables.limits["vhost"].items()
        if (value := _of_rabbitmq(own)) and vhost in ("", name)
    ]
    policies: list[Json] = []
    for name, found in topology.items():
        policies += [{**row, "vhost": name} for row in found["policies"]]
        parameters += [
            {
                "vhost": name, "component": OPERATOR_POLICY, "name": row["name"],
                "value": {member: row[member] for member in _OF_POLICY},
            }
            for row in found["operator_policies"]
        ]  # fmt: skip
        parameters += [{"vhost": name, **row} for row in found["parameters"]]
    sections: dict[str, list[Json]] = {"parameters": parameters, "policies": policies}
    if not vhost:
        sections = {
            "users": [
                user_row(name, hashed, tags, tables.limits["user"].get(name, {}))
                for name, (hashed, tags) in tables.users.items()
            ],
            "vhosts": [
                {
                    "name": name,
                    "metadata": options,
                    **_own_limits(tables.limits["vhost"].get(name, {})),
                }
                for name, options in tables.vhosts.items()
            ],
            "permissions": [
                {"user": user, "vhost": of, "configure": c, "write": w, "read": r}
                for (user, of), (c, w, r) in tables.permissions.items()
            ],
            "topic_permissions": [
                {"user": user, "vhost": of, "exchange": exchange, "write": w, "read": r}
                for (user, of, exchange), (w, r) in tables.topics.items()
            ],
            "global_parameters": [
                {"name": name, "value": value} for name, value in tables.parameters.items()
            ],
            **sections,
        }
    for section, rows in sections.items():
        parts.add(rows, section)
    for section in ("queues", "exchanges", "bindings"):
        parts.begin(b"[", section)
        for name, found in topology.items():
            for row in _durable(found, section):
                parts.add(row if vhost else {**row, "vhost": name})
        parts.end(b"]")
    parts.end(b"}")
    return parts


def audited(new: Tables) -> Iterator[Json]:
    """Yield what the audit says of rows that an import has put, but for who did it: an entry of the
    operation that would have made each. The vhosts say the same of what is declared in them."""
    for name, options in new.vhosts.items():
        yield {"event": "add_vhost", "args": {"name": name, **options}}
    for name, (_, tags) in new.users.items():
        yield {"event": "put_user", "args": {"name": name, "tags": list(tags)}}
    for (user, vhost), three in new.permissions.items():
        patterns = dict(zip(("configure", "write", "read"), three, strict=True))
        yield {"event": "set_permissions", "vhost": vhost, "args": {"user": user, **patterns}}
    for (user, vhost, exchange), two in new.topics.items():
        patterns = {"exchange": exchange, **dict(zip(("write", "read"), two, strict=True))}
        yield {"event": "set_topic_permissions", "vhost": vhost, "args": {"user": user, **patterns}}
    for name, limits in new.limits["user"].items():
        yield {"event": "set_user_limits", "args": {"user": name, "limits": limits}}
    for name, limits in new.limits["vhost"].items():
        yield {"event": "set_vhost_limits", "vhost": name, "args": {"limits": limits}}
    for name, value in new.parameters.items():
        yield {"event": "set_global_parameter", "args": {"name": name, "value": value}}


def user_row(name: str, hashed: str, tags: Iterable[str], limits: Mapping[str, int]) -> Json:
    """Return a user as definitions have one."""
    found: Json = {
        "name": name, "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": list(tags), "limits": _of_rabbitmq(limits), **_own_limits(limits),
    }  # fmt: skip
    if is_of_rabbitmq(hashed):
        found["hashing_algorithm"], _, found["password_hash"] = hashed.partition("$")
    elif hashed != NO_PASSWORD:
        found.setdefault(PENSTOCK, {})["password_hash"] = hashed
    return found


def _of_rabbitmq(limits: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in limits.items() if name in OF_RABBITMQ}


def _own_limits(limits: Mapping[str, int]) -> Json:
    own = {name: value for name, value in limits.items() if name not in OF_RABBITMQ}
    return {PENSTOCK: {"limits": own}} if own else {}


def _durable(found: VhostTopology, section: str) -> Iterator[Json]:
    """Yield the entries of a section that a restart keeps, without those that every vhost has."""
    names = {
        kind: {one["name"] for one in found[f"{kind}s"] if one["durable"]}
        for kind in ("exchange", "queue")
    }
    for row in found[section]:
        if section != "bindings":
            if row["durable"] and not row["name"].startswith("amq.") and row["name"]:
                yield {name: value for name, value in row.items() if name != "exclusive"}
        elif row["source"] in names["exchange"] and (
            row["destination"] in names[row["destination_type"]]
        ):
            yield row


def _said(error: AMQPError) -> str:
    """Return the error's text without the name of its code."""
    return error.text.partition(" - ")[2] or error.text


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
