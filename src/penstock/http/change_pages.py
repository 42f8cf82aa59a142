"""What changes something over HTTP as RabbitMQ's API does, and what reads the same objects.

Queues, exchanges, bindings, connections, messages, users, permissions, limits, policies,
parameters, vhosts and definitions. The functions take an ApiRequest, as endpoint.Endpoint.does
wants them; the shapes make RabbitMQ's JSON of a result. An operation does the work, with the
permissions of the user; nothing is decided here.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from penstock.errors import NO_ROUTE, NOT_FOUND, PRECONDITION_FAILED, ChannelError
from penstock.http.endpoint import VHOST, Answer, ApiRequest, number_of
from penstock.http.node_pages import check_node, check_own
from penstock.http.requests import STATUSES, HttpError
from penstock.operation_json import JsonText, dumps, loads
from penstock.operation_table import (
    ADMINISTRATORS,
    AS_USER,
    DEFAULT_VHOST,
    NODE,
    NODE_VHOSTS,
    OPERATIONS,
    find,
)
from penstock.server.control import ControlError

Info = dict[str, Any]

POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
VHOST_LIMITS: Final = "vhost-limits"
SET_POLICY: Final = {POLICY: "set_policy", OPERATOR_POLICY: "set_operator_policy"}
LIST_POLICIES: Final = {POLICY: "list_policies", OPERATOR_POLICY: "list_operator_policies"}
_BOUNDARY: Final = re.compile(r'boundary="?([^";]{1,70})"?')
FORM_PARTS_MAX: Final = 100
_FILE: Final = re.compile(rb'content-disposition:[^\r\n]*[ ;]name="?file"?(?:[;\r\n]|$)', re.I)


def made(found: Any) -> Answer:
    """Return 201 for what is new, 204 for what was there or was changed."""
    return Answer(201 if found["is_new"] else 204)


def removed(found: Any) -> Answer:
    """Return 204. Raises HttpError 404 if there was nothing to remove."""
    if not found["was_there"]:
        raise HttpError(404, "Not Found")
    return Answer(204)


def first(rows: Any) -> object:
    """Return the one row. Raises HttpError 404 if there is none."""
    if not rows:
        raise HttpError(404, "Not Found")
    return rows[0]


def some(rows: Any) -> object:
    """Return the rows. Raises HttpError 404 if there is none."""
    first(rows)
    return rows


@contextmanager
def _answering(code: int, status: int, form: str = "{}", **more: object) -> Iterator[None]:
    """Answer a refusal of this code with this status. form: of the reason, AMQP's text in it."""
    try:
        yield
    except ControlError as error:
        if error.code != code:
            raise
        text = error.text.partition(" - ")[2] or error.text
        raise HttpError(status, form.format(text), **more) from error


# ---- queues, exchanges, bindings -----------------------------------------------------------------


async def queue_action(asked: ApiRequest) -> object:
    """Do nothing: there are no mirrors to synchronise. Raises HttpError 400 for another action."""
    if asked.body["action"] not in ("sync", "cancel_sync"):
        raise HttpError(400, f"unknown action: {asked.body['action']!r:.100}")
    await asked.value("describe_queue", asked.vhost, queue=asked.names["queue"])
    return Answer(204)


def _ends(asked: ApiRequest) -> Info:
    """Return source and destination of the address."""
    if "queue" in asked.names:
        return {"exchange": asked.names["exchange"], "queue": asked.names["queue"]}
    return {"source": asked.names["exchange"], "destination": asked.names["destination"]}


async def bind(asked: ApiRequest) -> object:
    """Bind, and say in Location how the binding is addressed: relative, as RabbitMQ does."""
    ends = _ends(asked)
    op = "bind_queue" if "queue" in ends else "bind_exchange"
    with _answering(NOT_FOUND, 404, error="not_found"):
        found = await asked.call_once(op, asked.vhost, **ends, **asked.body)
    destination = str(ends.get("queue", ends.get("destination")))
    name = quote(destination.encode("utf-8", "surrogateescape"), safe="")
    where = f"{name}/{quote(found['properties_key'], safe='')}"
    return Answer(201, headers={"Location": where})


async def unbind(asked: ApiRequest) -> object:
    """Delete a binding by its key among those of source and destination."""
    ends = _ends(asked)
    is_queue = "queue" in ends
    await asked.call_once(
        "delete_binding", asked.vhost, source=asked.names["exchange"],
        destination=ends["queue" if is_queue else "destination"],
        destination_type="queue" if is_queue else "exchange",
        properties_key=asked.names["properties_key"],
    )  # fmt: skip
    return Answer(204)


# ---- connections ---------------------------------------------------------------------------------

REASON: Final = "x-reason"
REASON_DEFAULT: Final = "Closed via management plugin"  # RabbitMQ's


async def close_connection(asked: ApiRequest) -> None:
    """Close the connection of this name or its channel of this number, or those of this user. The
    address does not say in which vhost: each that the user sees is asked. Raises HttpError 404 if
    there is no connection of this name that the user sees."""
    reason = asked.request.headers.get(REASON, REASON_DEFAULT)
    name, user = (asked.names.get(part, "") for part in ("connection", "user"))
    channel = asked.names.get("number")
    given = {} if channel is None else {"channel": int(channel) if channel.isdecimal() else channel}
    for vhost in await asked.started(asked.vhosts()):
        try:
            await asked.call_once(
                "close_connections", vhost, name=name, user=user, reason=reason, **given
            )
        except ControlError as error:
            if error.code != NOT_FOUND:
                raise
        else:
            if name:
                return
    if name:
        part = "" if channel is None else f"channel {channel} of "
        raise HttpError(404, f"no {part}connection '{name}'")


# ---- messages ------------------------------------------------------------------------------------


async def publish(asked: ApiRequest) -> object:
    """Publish one message; say whether a queue got it."""
    body = asked.body["payload"].encode("utf-8", "surrogateescape")
    encoding = asked.body["payload_encoding"]
    if encoding == "base64":
        try:
            body = base64.b64decode(body, validate=True)
        except (ValueError, binascii.Error) as error:
            raise HttpError(400, f"payload: expected base64 ({error})") from error
    elif encoding != "string":
        raise HttpError(
            400, f"payload_encoding: given {encoding!r:.100}, expected string or base64"
        )
    try:
        await asked.call_once(
            "publish", asked.vhost, exchange=asked.names["exchange"],
            routing_key=asked.body["routing_key"], properties=asked.body["properties"],
            bodies=[body],
        )  # fmt: skip
    except ControlError as error:
        if error.code == NO_ROUTE:
            return {"routed": False}
        if error.code == NOT_FOUND:
            raise HttpError(400, f"{error.code} {error.text}") from error
        raise
    return {"routed": True}


async def get(asked: ApiRequest) -> object:
    """Get messages, as the operation get_messages."""
    with _answering(NOT_FOUND, 404, error="not_found"):
        return await asked.call_once(
            "get_messages", asked.vhost, queue=asked.names["queue"], **asked.body
        )


async def browse(asked: ApiRequest) -> object:
    """Return messages of a queue by key, header and body; nothing is taken. Raises HttpError
    400."""
    args = asked.parameters(OPERATIONS["browse_messages"].arguments)
    headers: dict[str, object] = {}
    for one in asked.request.query_params.getlist("header"):
        name, colon, value = one.partition(":")
        headers[name] = value if colon else None
    return await asked.call(
        "browse_messages", asked.vhost, **args, queue=asked.names["queue"], headers=headers
    )


def without_empty(rows: Any) -> object:
    """Return messages as RabbitMQ does: a message without properties has a list."""
    return [{**row, "properties": row["properties"] or []} for row in rows]


# ---- users and permissions -----------------------------------------------------------------------


async def users(asked: ApiRequest) -> Any:
    """Return all users, with the hashes of their passwords."""
    return await asked.value("list_users", with_hashes=True)


async def user(asked: ApiRequest) -> object:
    """Return one user."""
    rows = await users(asked)
    return first([row for row in rows if row["name"] == asked.names["name"]])


async def users_without_permissions(asked: ApiRequest) -> object:
    """Return the users who may use no vhost."""
    return await asked.value("list_users", without_permissions=True, with_hashes=True)


async def put_user(asked: ApiRequest) -> object:
    """Add or change a user. The tags are a list, or a text with commas."""
    body = dict(asked.body)
    tags = body["tags"]
    if tags is None:
        raise HttpError(400, "tags_not_present")
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list):
        raise HttpError(400, f"tags: given {tags!r:.100}, expected a list, or a text with commas")
    found = await asked.call_once("put_user", name=asked.names["name"], **{**body, "tags": tags})
    return made(found)


async def delete_users(asked: ApiRequest) -> object:
    """Delete users, all or none."""
    with _answering(NOT_FOUND, 400, "no_such_user: {}"):
        await asked.call_once("delete_users", names=asked.body["users"])
    return Answer(204)


def set_permissions(op: str) -> Callable[[ApiRequest], Any]:
    """Return the function that sets permissions with this operation. An unknown user or vhost is a
    400, as RabbitMQ says it."""

    async def put(asked: ApiRequest) -> object:
        with _answering(NOT_FOUND, 400, "vhost_or_user_not_found: {}"):
            return made(
                await asked.call_once(op, asked.vhost, user=asked.names["user"], **asked.body)
            )

    return put


async def test_permission(asked: ApiRequest) -> object:
    """Say whether a user may do something. Query: verb, name, routing_key, resource."""
    return await asked.value(
        "check_permission", asked.vhost, user=asked.names["user"],
        verb=asked.query.get("verb", ""), name=asked.query.get("name", ""),
        routing_key=asked.query.get("routing_key") or None,
        resource=asked.query.get("resource", ""),
    )  # fmt: skip


# ---- limits --------------------------------------------------------------------------------------


def limits_of(owner: str) -> Callable[[Any], object]:
    """Return the shape of a list of limits. owner: user or vhost."""

    def shape(rows: Any) -> object:
        return [
            {owner: row[owner], "value": {k: v for k, v in row.items() if k != owner}}
            for row in rows
        ]

    return shape


async def vhost_limits(asked: ApiRequest) -> object:
    """Return the limits that were set for the vhosts that the user sees."""
    rows = await asked.node.call("list_vhost_limits", asked.names.get(VHOST), without_defaults=True)
    return [row for row in rows if row[VHOST] in asked.vhosts()]


async def user_limits(asked: ApiRequest) -> object:
    """Return the limits that were set for users; only administrators see those of others."""
    name = asked.names.get("user")
    if name is not None:
        check_own(asked, name)
    elif asked.account.tags.isdisjoint(ADMINISTRATORS):
        name = asked.account.user
    return await asked.node.call("list_user_limits", user=name, without_defaults=True)


async def set_limit(asked: ApiRequest) -> object:
    """Set one limit of the vhost or the user in the address."""
    limits = {asked.names["limit"]: number_of(asked.body["value"])}
    if VHOST in asked.names:
        await _validated(asked, "set_vhost_limits", asked.vhost, limits=limits)
    else:
        await _validated(asked, "set_user_limits", None, user=asked.names["user"], limits=limits)
    return Answer(204)


async def clear_limit(asked: ApiRequest) -> object:
    """Clear one limit of the vhost or the user in the address."""
    limit = asked.names["limit"]
    if VHOST in asked.names:
        await _validated(asked, "clear_vhost_limits", asked.vhost, limit=limit)
    else:
        await _validated(asked, "clear_user_limits", None, user=asked.names["user"], limit=limit)
    return Answer(204)


async def _validated(asked: ApiRequest, op: str, vhost: str | None, /, **args: object) -> Any:
    """Call an operation; say of a wrong value that the validation failed, as RabbitMQ does."""
    with _answering(PRECONDITION_FAILED, 400, "Validation failed\n\n{}\n"):
        return await asked.call_once(op, vhost, **args)


# ---- policies and parameters ---------------------------------------------------------------------


async def _of_vhosts(asked: ApiRequest, op: str) -> list[Info]:
    """Return the rows of a list of the vhosts that the user sees; `asked.down` has the vhosts that
    did not answer."""
    if VHOST in asked.names:
        found = {asked.vhost: await asked.value(op, asked.vhost)}
    else:
        found = await asked.of_each(asked.vhosts(), lambda name: asked.value(op, name))
    return [{VHOST: name, **row} for name, rows in found.items() for row in rows]


def policies(component: str) -> Callable[[ApiRequest], Any]:
    """Return the function that lists policies, or operator policies: of all vhosts, or of one."""

    async def listed(asked: ApiRequest) -> object:
        rows = await _of_vhosts(asked, LIST_POLICIES[component])
        if "name" in asked.names:
            return first([row for row in rows if row["name"] == asked.names["name"]])
        return rows

    return listed


def set_policy(component: str) -> Callable[[ApiRequest], Any]:
    """Return the function that sets a policy, or an operator policy."""

    async def put(asked: ApiRequest) -> object:
        body = {name.replace("-", "_"): value for name, value in asked.body.items()}
        name = asked.names["name"]
        op = SET_POLICY[component]
        return made(await _validated(asked, op, asked.vhost, name=name, **body))

    return put


async def parameters(asked: ApiRequest) -> object:
    """Return parameters: those that were set, operator policies and limits of vhosts."""
    limits = await asked.node.call(
        "list_vhost_limits", asked.names.get(VHOST), without_defaults=True
    )
    seen = asked.vhosts()
    rows = [
        *(
            {
                "value": {k: v for k, v in row.items() if k not in (VHOST, "name")},
                VHOST: row[VHOST], "component": OPERATOR_POLICY, "name": row["name"],
            }
            for row in await _of_vhosts(asked, LIST_POLICIES[OPERATOR_POLICY])
        ),
        *await _of_vhosts(asked, "list_parameters"),
        *(
            {
                "value": {k: v for k, v in row.items() if k != VHOST}, VHOST: row[VHOST],
                "component": VHOST_LIMITS, "name": "limits",
            }
            for row in limits if row[VHOST] in seen
        ),
    ]  # fmt: skip
    wanted = {k: asked.names[k] for k in ("component", "name") if k in asked.names}
    rows = [row for row in rows if all(row[k] == text for k, text in wanted.items())]
    return first(rows) if "name" in asked.names else rows


async def set_parameter(asked: ApiRequest) -> object:
    """Set a parameter of a vhost."""
    names = {k: asked.names[k] for k in ("component", "name")}
    value = asked.body["value"]
    return made(await _validated(asked, "set_parameter", asked.vhost, **names, value=value))


async def global_parameter(asked: ApiRequest) -> object:
    """Return one parameter of the whole broker."""
    rows = await asked.value("list_global_parameters")
    return first([row for row in rows if row["name"] == asked.names["name"]])


# ---- vhosts --------------------------------------------------------------------------------------


async def put_vhost(asked: ApiRequest) -> object:
    """Add a vhost, or change what is said about one; with `tracing`, switch the firehose."""
    name = asked.vhost
    said = {k: v for k, v in asked.body.items() if k != "tracing" and v is not None}
    is_new = name not in asked.node.users.vhosts()
    if is_new:
        await asked.call_once("add_vhost", name=name, **said)
        await _open_to_creator(asked)
    elif said:
        await asked.call_once("update_vhost_metadata", name=name, **said)
    if "tracing" in asked.raw_body:
        await asked.call("trace_on" if asked.body["tracing"] else "trace_off", name)
    return Answer(201 if is_new else 204)


async def _open_to_creator(asked: ApiRequest) -> None:
    """Give the user all permissions on the new vhost, as RabbitMQ does; a user of another backend
    has its own."""
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    try:
        await asked.call_once("set_permissions", asked.vhost, user=asked.account.user, **everything)
    except ControlError as error:
        if error.code != NOT_FOUND:
            raise


async def start_vhost(asked: ApiRequest) -> object:
    """Restart a vhost, also one that is down. Raises HttpError 404 for another node's name."""
    check_node(asked)
    await asked.call_once("restart_vhost", name=asked.vhost)
    return Answer(204)


# ---- definitions ---------------------------------------------------------------------------------


async def definitions(asked: ApiRequest) -> object:
    """Return the definitions of the broker or of a vhost. Query: download, a file's name."""
    found = await asked.call("export_definitions", asked.names.get(VHOST))
    given = asked.query.get("download", "")
    name = "".join(c for c in given if c.isascii() and (c.isalnum() or c in "-_. "))
    headers = {"Content-Disposition": f'attachment; filename="{name}"'} if name else {}
    return Answer(200, found, headers)


async def import_definitions(asked: ApiRequest) -> object:
    """Import definitions, all or nothing: as JSON, or the part `file` of a form, as browsers send
    it. Query: leave_out, as of the operation. Of a row that is ours also dry_run, and the answer is
    what was imported, or would be."""
    kind = asked.request.headers.get("content-type", "")
    data = asked.data
    if kind.lower().startswith("multipart/form-data"):
        data = file_of(kind, data)
    elif not kind.lower().startswith("application/json"):
        return Answer(415)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, f"failed_to_parse_json: {error}") from error
    found = await asked.call_once(
        "import_definitions", asked.names.get(VHOST), definitions=text,
        leave_out=asked.is_set("leave_out"), dry_run=asked.is_set("dry_run"),
    )  # fmt: skip
    return found if asked.endpoint.is_ours else Answer(204)


def file_of(kind: str, data: bytes) -> bytes:
    """Return the part `file` of a form, one of the first FORM_PARTS_MAX: four million of them fit
    into 20 MB, which would take seconds. kind: its Content-Type. Raises HttpError 400."""
    found = _BOUNDARY.search(kind)
    if found is None:
        raise HttpError(400, "multipart/form-data: expected a boundary in Content-Type")
    parts = (b"\r\n" + data).split(b"\r\n--" + found[1].encode(), FORM_PARTS_MAX + 1)
    for part in parts[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if blank and _FILE.search(head):
            return content
    raise HttpError(
        400, f"multipart/form-data: expected the last boundary, and of the first {FORM_PARTS_MAX} "
        "parts one named file",
    )  # fmt: skip


# ---- any operation -------------------------------------------------------------------------------


async def operation(asked: ApiRequest) -> object:
    """Call an operation of the table. Body: its arguments; the answer: its result, both JSON as the
    control socket has it. A refusal has AMQP's `code`, and its text as `reason`. Raises
    HttpError."""
    try:
        row = find(asked.names["operation"], OPERATIONS)
        args = await asyncio.to_thread(loads, asked.data, is_exact=True)
        if AS_USER in args:
            raise HttpError(400, f"{row.name}: unknown argument {AS_USER!r}")
        vhost = None
        if row.of != NODE:
            vhost = asked.query.get(VHOST, DEFAULT_VHOST if row.of != NODE_VHOSTS else None)
        if vhost is not None and vhost not in asked.node.users.vhosts():
            raise ControlError(NOT_FOUND, f"NOT_FOUND - no vhost '{vhost}'")
        found = await asked.call_once(row.name, vhost, **args)
    except (ControlError, ChannelError) as error:
        raise HttpError(STATUSES.get(error.code, 409), error.text, code=error.code) from error
    return found if isinstance(found, JsonText) else JsonText(dumps(found, is_exact=True))
