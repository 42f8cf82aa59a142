"""Events of amq.rabbitmq.event that are made of entries of the audit: see broker.events.

One entry may make several events, as in RabbitMQ: a limit of a vhost is a parameter there, too. An
import of definitions has an entry for each row that it changes; its own one makes none.
"""

from collections.abc import Callable, Mapping
from typing import Final

from penstock.broker.connection_facts import ConnectionFacts, erlang_address
from penstock.server.audit import LOGIN_FAILED

Headers = dict[str, object]
Entry = Mapping[str, object]
Event = tuple[str, Headers]

AUTHENTICATED: Final = "user.authentication.success"
NAME: Final = ("name",)
LIMITS: Final = {"name": "limits"}
PERMISSION: Final = ("user", "vhost")


def authenticated(opened: ConnectionFacts) -> Headers:
    """Return the headers of AUTHENTICATED."""
    return {
        "name": opened.user, "connection_name": opened.name, "connection_type": "network",
        "protocol": "{0,9,1}", "auth_mechanism": opened.auth_mechanism,
        "host": erlang_address(opened.host), "peer_host": erlang_address(opened.peer_host),
        "peer_port": opened.peer_port, "ssl": opened.tls is not None,
    }  # fmt: skip


def events_of(entry: Entry) -> list[Event]:
    """Return the events of an entry: the routing key and the headers of each."""
    if entry["event"] == LOGIN_FAILED:
        headers = {"name": entry["user"], "peer_host": entry["from"], "error": entry["why"],
                   "connection_type": "network"}  # fmt: skip
        return [("user.authentication.failure", headers)]
    make = _MAKERS.get(str(entry["event"]))
    if make is None:
        return []
    user = {"user_who_performed_action": entry["user"]}
    return [(event, {**headers, **user}) for event, headers in make(entry)]


def _values(entry: Entry) -> Headers:
    """Return the operation's arguments, and its vhost. An empty one is left out."""
    given = entry.get("args")
    assert isinstance(given, Mapping)
    return {"vhost": entry.get("vhost", ""), **given}


def _one(event: str, names: tuple[str, ...]) -> Callable[[Entry], list[Event]]:
    """Return a maker of an event with these arguments as its headers."""

    def make(entry: Entry) -> list[Event]:
        values = _values(entry)
        return [(event, {name: values.get(name, "") for name in names})]

    return make


def _new_user(entry: Entry) -> list[Event]:
    values = _values(entry)
    found: list[Event] = [("user.created", {"name": values["name"]})]
    if "tags" in values:
        found.append(("user.tags.set", {"name": values["name"], "tags": values["tags"]}))
    return found


def _deleted_users(entry: Entry) -> list[Event]:
    names = _values(entry).get("names", [])
    assert isinstance(names, list)
    return [("user.deleted", {"name": name}) for name in names]


def _user_limits(event: str) -> Callable[[Entry], list[Event]]:
    def make(entry: Entry) -> list[Event]:
        values = _values(entry)
        limits = values.get("limits")
        given = limits if isinstance(limits, dict) else {}
        return [(event, {**given, "username": values["user"], **LIMITS})]

    return make


def _vhost_limits(what: str) -> Callable[[Entry], list[Event]]:
    def make(entry: Entry) -> list[Event]:
        values = _values(entry)
        limits = values.get("limits")
        given = limits if isinstance(limits, dict) else {}
        parameter = {"component": "vhost-limits", "vhost": values["vhost"], **LIMITS}
        if given:
            parameter["value"] = given
        # RabbitMQ's has no vhost; ours says of which it is.
        own = {**given, **LIMITS, "vhost": values["vhost"]}
        return [(f"parameter.{what}", parameter), (f"vhost.limits.{what}", own)]

    return make


def _policy(event: str, what: str, component: str = "") -> Callable[[Entry], list[Event]]:
    def make(entry: Entry) -> list[Event]:
        values = _values(entry)
        named = {"name": values["name"], "vhost": values["vhost"]}
        policy: Headers = {}
        if what == "set":
            policy = {
                "pattern": values.get("pattern", ""), "definition": values.get("definition", {}),
                "priority": values.get("priority", 0), "apply-to": values.get("apply_to", "all"),
            }  # fmt: skip
        found: list[Event] = [(event, {**named, **policy})]
        if component:
            value = {"value": policy} if policy else {}
            found.insert(0, (f"parameter.{what}", {**named, "component": component, **value}))
        return found

    return make


def _parameter(what: str, component: str = "") -> Callable[[Entry], list[Event]]:
    def make(entry: Entry) -> list[Event]:
        values = _values(entry)
        headers = {"name": values["name"], "component": component or values["component"]}
        if not component:
            headers["vhost"] = values["vhost"]
        if what == "set":
            headers["value"] = values.get("value", "")
        return [(f"parameter.{what}", headers)]

    return make


def _new_vhost(entry: Entry) -> list[Event]:
    values = _values(entry)
    headers = {name: values.get(name, "") for name in ("name", "description")}
    return [("vhost.created", {**headers, "tags": values.get("tags", []), "tracing": False})]


_MAKERS: Final[Mapping[str, Callable[[Entry], list[Event]]]] = {
    "add_user": _new_user,
    "put_user": _new_user,
    "init": _new_user,
    "delete_user": _one("user.deleted", NAME),
    "delete_users": _deleted_users,
    "change_password": _one("user.password.changed", NAME),
    "set_user_tags": _one("user.tags.set", ("name", "tags")),
    "set_permissions": _one(
        "permission.created", (*PERMISSION, "configure", "write", "read")
    ),
    "clear_permissions": _one("permission.deleted", PERMISSION),
    "set_topic_permissions": _one(
        "topic.permission.created", (*PERMISSION, "exchange", "write", "read")
    ),
    "clear_topic_permissions": _one("topic.permission.deleted", (*PERMISSION, "exchange")),
    "set_user_limits": _user_limits("user.limits.set"),
    "clear_user_limits": _user_limits("user.limits.cleared"),
    "add_vhost": _new_vhost,
    "delete_vhost": _one("vhost.deleted", NAME),
    "set_vhost_limits": _vhost_limits("set"),
    "clear_vhost_limits": _vhost_limits("cleared"),
    "set_policy": _policy("policy.set", "set"),
    "clear_policy": _policy("policy.cleared", "cleared"),
    "set_operator_policy": _policy("policy.set", "set", "operator_policy"),
    "clear_operator_policy": _policy("operator.policy.cleared", "cleared", "operator_policy"),
    "set_parameter": _parameter("set"),
    "clear_parameter": _parameter("cleared"),
    "set_global_parameter": _parameter("set", "global"),
    "clear_global_parameter": _parameter("cleared", "global"),
}  # fmt: skip
