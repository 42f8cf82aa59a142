"""NodeOperations: operations of the whole broker; all others are passed on to a vhost.

penstock.operation_table lists both. An operation `x` of the node is the method `_x` here.

When a change of users or permissions is answered, it is on disk and was sent to the vhosts that
run: it applies to open connections from the next turn of their vhost's loop. The connections of a
deleted user are closed.
"""

import asyncio
import hashlib
import logging
import os
import platform
import shlex
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from penstock.access.limits import OF_USERS, OF_VHOSTS, VHOST_OPTIONS, LimitTable
from penstock.access.permissions import DEFAULT_EXCHANGE, GUEST
from penstock.access.tokens import OAUTH2
from penstock.access.users import Tables, Users, rabbitmq_hash
from penstock.clock import Clock, date
from penstock.config import Config, effective, with_value
from penstock.errors import (
    ACCESS_REFUSED,
    DAMAGE_ADVICE,
    INTERNAL_ERROR,
    NEWER,
    NOT_FOUND,
    PRECONDITION_FAILED,
    VERSION_ADVICE,
    OptionError,
    blocked_advice,
)
from penstock.native import VERSION, build_kind, node_name
from penstock.operation_json import dumps, loads, parts_of, read
from penstock.operation_table import (
    ALARM,
    AS_USER,
    AUDITED,
    DEFAULT_VHOST,
    NODE_VHOST,
    NODE_VHOSTS,
    OPERATIONS,
    OPERATOR,
    SESSION,
    VHOST,
    Arguments,
    check_over_http,
    find,
)
from penstock.options import format_bytes
from penstock.queues.budget import machine_memory, pids_max, process_usage
from penstock.server import definitions, vhost_directories
from penstock.server.audit import AuditEntries
from penstock.server.backends import TOPIC, Backends, Refused
from penstock.server.control import ControlError
from penstock.server.definitions import Definitions, DefinitionsError
from penstock.server.listener import Listener
from penstock.server.log_lines import LogTail
from penstock.server.memory_shares import MemoryShares
from penstock.server.watched_http import WatchedHttp, WatchedTls
from penstock.server.watched_process import DOWN, RUNNING, STOPPED, ProcessDown, WatchedProcess
from penstock.server.watched_vhost import BY_OPERATOR, UNOPENED, WatchedVhost
from penstock.storage.files.data_directory import LOG, SPILL, DataDirectory
from penstock.storage.files.durability import MODE_NAMES
from penstock.storage.files.user_store import READY

# Of a vhost that was opened; 0 of another.
COUNTS: Final = (
    "restarts", "counted_bytes", "memory_bytes", "connections", "depth_bytes", "rss_bytes",
    "returned_bytes",
)  # fmt: skip
DECLARED_AT_ONCE: Final = 32
LOCAL: Final = "127.0.0.1"  # where an operator is
ASK_S: Final = 5.0  # for the answer of each vhost
# Kinds of problems: publishers wait; a vhost; the node itself.
OF_VHOST: Final = "vhost"
OF_NODE: Final = "node"
LOG_ADVICE: Final = "read the broker's log"
FILES_ADVICE: Final = "raise the limit of open files (ulimit -n)"

logger = logging.getLogger(__name__)


class NodeProblem(NamedTuple):
    """What keeps clients from being served. kind: ALARM, OF_VHOST or OF_NODE. text: one line. do:
    what ends it. vhost: which one it is about."""

    kind: str
    text: str
    do: str
    vhost: str | None = None


class Node(Protocol):
    """The part of the supervisor that operations use."""

    settings: Config
    clock: Clock
    started_s: float
    started_ms: int
    vhosts: dict[str, WatchedVhost]
    http: WatchedHttp | None
    tls: WatchedTls | None
    limits: LimitTable
    memory: MemoryShares
    listener: Listener[Any]
    users: Users
    backends: Backends
    data: DataDirectory
    is_ready: asyncio.Event
    audits: dict[str, AuditEntries]
    log: LogTail

    def vhost(self, name: str) -> WatchedVhost:
        """Return the vhost of that name, which is known."""

    def is_known(self, name: str) -> bool:
        """Return whether there is such a vhost."""

    def note(self, entry: Mapping[str, object]) -> None:
        """Write an entry of the audit log, if there is one."""

    def limits_changed(self) -> None:
        """Send changed limits to every vhost."""

    def ports(self) -> dict[str, int]:
        """Return the ports that are listened at, by the names of what is spoken there."""

    def stop(self) -> None:
        """Stop the broker."""

    def use(self, changed: Config) -> None:
        """Use other settings, which differ in live options only."""


class NodeOperations:
    """The operations of the node. node: the supervisor."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._importing = asyncio.Lock()

    async def call_for_http(self, op: str, vhost: str | None, args: bytes) -> list[bytes]:
        """Call an operation of the node for the HTTP process: of its own accord, or for the user
        in `as_user`, with name, tags and address (`from`)."""
        row = find(op, OPERATIONS)
        if row.of == VHOST:
            raise _wrong(f"{op} is asked on the vhost's own link")
        given = loads(args, is_exact=True)
        user: Any = given.pop(AS_USER, None)
        if user is None:
            check_over_http(row, "", None)
            return await self.call(op, vhost, args)
        check_over_http(row, user["name"], user["tags"])
        given_json = dumps(given, is_exact=True)
        return await self.call(op, vhost, given_json, (str(user["name"]), str(user["from"])))

    async def open_link(self, vhost: str) -> socket.socket:
        """Return an end of a link to the vhost's process, for the HTTP process. Raises
        ControlError."""
        try:
            return await self._vhost(vhost).http_link()
        except ProcessDown as error:
            raise ControlError(INTERNAL_ERROR, f"INTERNAL_ERROR - {error}") from error

    async def call(
        self, op: str, vhost: str | None, given: bytes, caller: tuple[str, str] = OPERATOR
    ) -> list[bytes]:
        """Return the result in parts. given, result: exact JSON. caller: user and place, for the
        audit log. Raises PenstockError if the operation is refused."""
        row = find(op, OPERATIONS)
        name = "" if row.of == NODE_VHOSTS else DEFAULT_VHOST
        name = name if vhost is None else vhost
        try:
            if row.of == VHOST:
                return [await self._vhost(name).call(op, given)]
            function: Callable[..., Awaitable[object]] = getattr(self, f"_{op}")
            args = Arguments(op, row.arguments, loads(given, is_exact=True), caller)
            found = await function(args, name)
            if op in AUDITED:
                self._node.note(
                    {
                        "event": op, "user": caller[0], "from": caller[1],
                        **({"vhost": name} if row.of == NODE_VHOST else {}),
                        "args": args.shown(),
                    }
                )  # fmt: skip
            return parts_of({} if found is None else found, is_exact=True)
        except (OptionError, DefinitionsError) as error:
            raise ControlError(PRECONDITION_FAILED, f"PRECONDITION_FAILED - {error}") from error
        except ProcessDown as error:
            raise ControlError(INTERNAL_ERROR, f"INTERNAL_ERROR - {error}") from error
        except TimeoutError as error:
            text = f"INTERNAL_ERROR - vhost '{name}' has not answered"
            raise ControlError(INTERNAL_ERROR, text) from error

    def session_gone(self, vhost: str, session: str) -> None:
        """Release what this session of an operator holds at the vhost."""
        known = self._node.vhosts.get(vhost)
        if known is not None and known.state == RUNNING:
            task = asyncio.ensure_future(
                known.call("session_closed", dumps({SESSION: session}, is_exact=True))
            )
            task.add_done_callback(_log_failure)

    def _vhost(self, name: str) -> WatchedVhost:
        if not self._node.is_known(name):
            raise ControlError(NOT_FOUND, f"NOT_FOUND - no vhost '{name}'")
        return self._node.vhost(name)

    def _running(self) -> list[WatchedVhost]:
        return [v for v in self._node.vhosts.values() if v.state == RUNNING]

    # ---- the node ------------------------------------------------------------------------------

    async def _status(self, _args: Arguments, _vhost: str) -> object:
        node = self._node
        host, port = node.settings.host, None
        if node.listener.socks:
            host, port = node.listener.socks[0].getsockname()[:2]
        disks, limit_bytes = self._disks()
        problems = self.problems()
        return {
            "product": "Penstock",
            "version": VERSION,
            "build": build_kind(),
            "now_ms": node.clock.wall_ms(),
            "uptime_s": round(node.clock.monotonic() - node.started_s, 1),
            "data": _from_root(node.data.path),
            "host": host,
            "port": port,
            "listeners": node.ports(),
            "durability": MODE_NAMES[node.settings.mode],
            "memory_bytes": node.settings.memory_bytes,
            "counted_bytes": sum(v.counted_bytes for v in node.vhosts.values()),
            "log_directory": _from_root(node.data.places.get(LOG, node.data.path)),
            "spill_directory": _from_root(node.data.places.get(SPILL, node.data.path)),
            "disk_free_bytes": min(disks.values()),
            "disk_free_limit_bytes": limit_bytes,
            "is_ready": node.is_ready.is_set(),
            "is_healthy": not problems,
            "takes_clients": not node.listener.is_short,
            "problems": [one.text for one in problems],
            "kinds": [one.kind for one in problems],
            "about": [one.vhost for one in problems],
            "advice": [one.do for one in problems],
            "connections": sum(v.connections for v in node.vhosts.values()),
            "half_open": node.listener.half_open,
            "accepted": node.listener.accepted,
            "vhosts": self._vhost_rows(),
            "http": None if node.http is None else node.http.facts(),
            "tls": None if node.tls is None else node.tls.facts(),
        }

    async def _node_metrics(self, _args: Arguments, _vhost: str) -> object:
        """Return values for the rows of the node, by their names, and the vhosts that serve."""
        node = self._node
        disks, limit_bytes = self._disks()
        processes = self._processes()
        used = {
            (vhost, kind): usage
            for vhost, kind, pid in [
                ("", "supervisor", os.getpid()), *((v, k, one.pid) for v, k, one in processes)
            ]
            if pid and (usage := process_usage(node.data.fs, pid)) is not None
        }  # fmt: skip
        values: dict[str, object] = {
            "build_info": [[VERSION, build_kind(), platform.python_version(), 1]],
            "start_time_seconds": node.started_ms / 1000,
            "ready": int(node.is_ready.is_set()),
            "disk_free_bytes": min(disks.values()),
            "disk_free_limit_bytes": limit_bytes,
            "accepted_connections_total": node.listener.accepted,
            "handshakes_failed_total": dict(node.listener.failed),
            "half_open_connections": node.listener.half_open,
            "audit_left_out_total": {
                place: audit.left_out_total for place, audit in node.audits.items()
            },
            "process_up": [
                ["", "supervisor", 1],
                *([v, kind, int(one.state == RUNNING)] for v, kind, one in processes),
            ],
            "process_restarts_total": [
                [v, kind, reason, n] for v, kind, one in processes for reason, n in one.ends.items()
            ],
        }
        for at, name in enumerate(
            ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds")
        ):
            values[name] = [[*who, usage[at]] for who, usage in used.items()]
        names = self._node.users.global_parameters()
        return {
            "values": values,
            "vhosts": [name for name, one in node.vhosts.items() if one.state == RUNNING],
            "node": {
                "name": node_name(),
                "cluster_name": names.get("cluster_name", node_name()),
                "uptime_s": node.clock.monotonic() - node.started_s,
                "memory_bytes": node.settings.memory_bytes,
                "files_max": node.settings.nofile * len(used),
            },
        }

    async def _describe_node(self, _args: Arguments, _vhost: str) -> object:
        node = self._node
        listener = node.listener
        refused = sum(listener.failed[why] for why in ("password", "protocol", "timeout"))
        return {
            "os_pid": os.getpid(),
            "uptime_ms": int((node.clock.monotonic() - node.started_s) * 1000),
            "processors": os.cpu_count() or 1,
            "fd_total": node.settings.nofile,
            "proc_total": pids_max(node.data.fs),
            "config_files": [],
            "db_dir": node.data.path,
            "log_directory": node.data.places.get(LOG, node.data.path),
            "spill_directory": node.data.places.get(SPILL, node.data.path),
            "processes": self._process_rows(),
            "logins": {
                "succeeded": max(listener.accepted - listener.half_open - refused, 0),
                "failed": listener.failed["password"],
            },
        }

    async def _log_tail(self, args: Arguments, _vhost: str) -> object:
        after = args.whole_or_none("after")
        return self._node.log.rows(args.whole("number"), args.text("level"), after)

    def _processes(self) -> list[tuple[str, str, WatchedProcess]]:
        """Return (vhost, kind, process) of all but this one."""
        node = self._node
        others = (("http", node.http), ("tls", node.tls))
        return [
            *((name, "vhost", one) for name, one in sorted(node.vhosts.items())),
            *(("", kind, one) for kind, one in others if one is not None),
        ]

    def _process_rows(self) -> list[object]:
        rows: list[object] = [
            {
                "process": "supervisor", "vhost": None, "pid": os.getpid(), "state": RUNNING,
                "since": None, "why": None, "restarts": 0, **self._usage(os.getpid()),
            }
        ]  # fmt: skip
        for vhost, kind, one in self._processes():
            rows.append(
                {
                    "process": kind, "vhost": vhost or None, "pid": one.pid or None,
                    "state": one.state,
                    "since": None if one.since_ms is None else date(one.since_ms),
                    "why": one.why or None, "restarts": one.restarts, **self._usage(one.pid),
                }
            )  # fmt: skip
        return rows

    def _usage(self, pid: int) -> dict[str, object]:
        found = process_usage(self._node.data.fs, pid) if pid else None
        cpu_s, rss_bytes, open_files = found if found is not None else (None, None, None)
        return {"cpu_s": cpu_s, "rss_bytes": rss_bytes, "open_files": open_files}

    def _disks(self) -> tuple[dict[str, int], int]:
        """Return a directory on each disk that the store uses, with the bytes that are free there,
        and the bytes below which publishers wait."""
        data = self._node.data
        disks = {disk: data.fs.free_bytes(disk) for disk in data.fs.disks(data.path)}
        return disks, self._node.settings.storage.disk_free_limit

    def problems(self) -> list[NodeProblem]:
        """Return what keeps clients from being served; for vhosts as of their last pong."""
        node = self._node
        found: list[NodeProblem] = []
        if not node.is_ready.is_set():
            text = "the broker has not started yet"
            found.append(NodeProblem(OF_NODE, text, "wait for it: penstock await_startup"))
        if node.listener.is_short:
            text = "clients cannot be accepted: no descriptor is left (ulimit -n)"
            found.append(NodeProblem(OF_NODE, text, f"{FILES_ADVICE} and start the broker again"))
        for vhost in node.vhosts.values():
            named = f"vhost '{vhost.name}'"
            if vhost.state == DOWN:
                do = f"{LOG_ADVICE}, then penstock restart_vhost {shlex.quote(vhost.name)}"
                if vhost.is_hopeless:
                    advice = VERSION_ADVICE if vhost.why.endswith(NEWER) else DAMAGE_ADVICE
                    do = f"no start helps: {advice}"
                found.append(NodeProblem(OF_VHOST, str(vhost.down()), do, vhost.name))
            elif vhost.unserved():
                text = f"{named} does not serve: it {vhost.unserved()}"
                found.append(NodeProblem(OF_VHOST, text, LOG_ADVICE, vhost.name))
            elif vhost.blocked_reason:
                text = f"{named} is low on {vhost.blocked_reason}: publishers wait"
                do = blocked_advice(vhost.blocked_reason)
                found.append(NodeProblem(ALARM, text, do, vhost.name))
            if vhost.crowded():
                text = f"{named} takes no more clients: {vhost.crowded()}"
                do = f"{FILES_ADVICE}, or close connections"
                found.append(NodeProblem(OF_VHOST, text, do, vhost.name))
        disks, limit_bytes = self._disks()
        for disk, free_bytes in disks.items():
            if free_bytes < limit_bytes:
                text = (
                    f"the disk of {_from_root(disk)} has {format_bytes(free_bytes)} free, "
                    f"publishers wait below {format_bytes(limit_bytes)} (storage.disk_free_limit)"
                )
                do = (
                    "make room there, or lower it: penstock config set storage.disk_free_limit SIZE"
                )
                found.append(NodeProblem(ALARM, text, do))
        return found + [
            NodeProblem(OF_NODE, str(process.down()), LOG_ADVICE)
            for process in (node.http, node.tls)
            if process is not None and process.state == DOWN
        ]

    async def _await_startup(self, args: Arguments, _vhost: str) -> None:
        """Return when the node listens, and HTTP and all vhosts that were started serve, except
        those that an operator has stopped. Raises ProcessDown if one is down."""
        seconds = args.number("timeout_s")
        try:
            async with asyncio.timeout(seconds):
                await self._node.is_ready.wait()
                for vhost in list(self._node.vhosts.values()):
                    if not vhost.is_held:
                        await vhost.ready()
                for process in (self._node.http, self._node.tls):
                    if process is not None:
                        await process.ready()
        except TimeoutError:
            text = f"INTERNAL_ERROR - not ready after {seconds:g} s"
            raise ControlError(INTERNAL_ERROR, text) from None

    async def _show_config(self, _args: Arguments, _vhost: str) -> object:
        return effective(self._node.settings)

    async def _set_config(self, args: Arguments, _vhost: str) -> object:
        node, key, given = self._node, args.text("key"), args.text("value")
        whole_bytes = machine_memory(node.data.fs)[0]
        node.use(with_value(node.settings, key, given, whole_bytes, "config_set"))
        logger.info("%s is %s now, until the next start", key, given)
        (row,) = [one for one in effective(node.settings) if one["option"] == key]
        return {"value": row["value"]}

    async def _stop(self, _args: Arguments, _vhost: str) -> None:
        asyncio.get_running_loop().call_later(0.05, self._node.stop)  # the answer goes first

    async def _list_connections(self, _args: Arguments, _vhost: str) -> object:
        """Return the connections of all vhosts that answer."""
        asked = [v.call("list_connections", b"", ASK_S) for v in self._running()]
        found: list[object] = []
        for rows in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(rows, bytes):
                found += read(rows)
            else:
                logger.warning("list_connections: %s", rows)
        return found

    # ---- vhosts --------------------------------------------------------------------------------

    async def _list_vhosts(self, _args: Arguments, _vhost: str) -> object:
        return self._vhost_rows()

    def _vhost_rows(self) -> list[object]:
        rows: list[object] = []
        for name, state in sorted(self._node.users.vhosts().items()):
            watched = self._node.vhosts.get(name)
            row: dict[str, object] = {"name": name, "state": state}
            if watched is not None and state == READY:
                row["state"] = watched.state
            row["pid"] = watched.pid or None if watched is not None else None
            row["error"] = watched.why or None if watched is not None else None
            row["retry_in_s"] = watched.retry_in_s if watched is not None else None
            row["unserved"] = watched.unserved() or None if watched is not None else None
            row["takes_clients"] = watched is None or not (watched.crowded() or watched.unserved())
            row["refused"] = watched.refused() if watched is not None else []
            row["blocked_reason"] = watched.blocked_reason or None if watched is not None else None
            for count in COUNTS:
                row[count] = getattr(watched, count, 0)
            since_ms = watched.since_ms if watched is not None else None
            row |= self._node.users.vhost_options(name)
            row["why"] = watched.reason() if watched is not None else UNOPENED
            if state != READY:
                row["why"] = f"is {state}"
            elif watched is None:
                row["state"] = STOPPED
            stopped_ms = self._node.users.stopped_ms(name)
            if state == READY and stopped_ms is not None:
                since_ms = stopped_ms
                row["why"] = BY_OPERATOR if watched is None else row["why"]
            row["since"] = date(since_ms) if since_ms is not None else None
            row["tracing"] = watched is not None and watched.is_tracing
            row["cluster_state"] = {node_name(): row["state"]}
            rows.append(row)
        return rows

    async def _add_vhost(self, args: Arguments, _vhost: str) -> None:
        name = args.text("name")
        self._node.users.add_vhost(name, _vhost_options(args))
        self._node.limits_changed()
        vhost_directories.make(self._node.data, self._node.users, name)

    async def _update_vhost_metadata(self, args: Arguments, _vhost: str) -> None:
        self._node.users.update_vhost(args.text("name"), _vhost_options(args))
        self._node.limits_changed()

    async def _delete_vhost(self, args: Arguments, _vhost: str) -> None:
        name = args.text("name")
        node = self._node
        node.users.delete_vhost(name)
        watched = node.vhosts.get(name)
        if watched is not None:
            await watched.stop()
            node.vhosts.pop(name, None)
        await asyncio.to_thread(vhost_directories.remove, node.data, name)
        node.users.vhost_gone(name)

    async def _restart_vhost(self, args: Arguments, _vhost: str) -> None:
        """Restart a vhost: one that is down at once, one that runs after an orderly stop."""
        vhost = self._vhost(args.text("name"))
        if vhost.is_held:
            text = f"vhost '{vhost.name}' was stopped by an operator, use start_vhost"
            raise _wrong(text)
        await vhost.restart()

    async def _stop_vhost(self, args: Arguments, _vhost: str) -> None:
        """Stop a vhost. Notes on disk that it is stopped, then stops it."""
        vhost = self._vhost(args.text("name"))
        self._node.users.stop_vhost(vhost.name, self._node.clock.wall_ms())
        logger.info("%s is stopped by an operator", vhost.who)
        await vhost.hold()

    async def _start_vhost(self, args: Arguments, _vhost: str) -> None:
        """Start a vhost that was stopped, is down, or was never opened."""
        vhost = self._vhost(args.text("name"))
        if not self._node.users.start_vhost(vhost.name) and vhost.state == RUNNING:
            raise _wrong(f"vhost '{vhost.name}' runs already")
        logger.info("%s is started by an operator", vhost.who)
        self._node.memory.make_room(vhost)
        await vhost.release()

    # ---- users ---------------------------------------------------------------------------------

    async def _list_global_parameters(self, _args: Arguments, _vhost: str) -> object:
        known = self._node.users.global_parameters()
        return [{"name": name, "value": value} for name, value in sorted(known.items())]

    async def _set_global_parameter(self, args: Arguments, _vhost: str) -> object:
        name, value = args.text("name"), args.value("value")
        return {"is_new": self._node.users.set_global_parameter(name, value)}

    async def _clear_global_parameter(self, args: Arguments, _vhost: str) -> None:
        self._node.users.clear_global_parameter(args.text("name"))

    async def _list_users(self, args: Arguments, _vhost: str) -> object:
        tables = self._node.users.tables()
        hidden = set[str]()
        if args.flag("without_permissions"):
            hidden = {user for user, _ in tables.permissions}
        limits = tables.limits["user"]
        users = {name: one for name, one in tables.users.items() if name not in hidden}
        if args.flag("with_hashes"):
            return [
                {"penstock": {}, **definitions.user_row(name, hashed, tags, limits.get(name, {}))}
                for name, (hashed, tags) in users.items()
            ]
        return [{"name": name, "tags": list(tags)} for name, (_, tags) in users.items()]

    async def _add_user(self, args: Arguments, _vhost: str) -> None:
        self._node.users.add_user(args.text("name"), _password(args), args.texts("tags"))

    async def _init(self, args: Arguments, _vhost: str) -> object:
        name = args.text("name")
        is_set, had_guest = self._node.users.init(
            name, _password(args), is_forced=args.flag("force")
        )
        for vhost in self._running():
            self._push(name, vhost.name)
            vhost.notify("close_user", user=GUEST, why=f"user '{GUEST}' was deleted")
        return {"password_set": is_set, "guest_deleted": had_guest}

    async def _put_user(self, args: Arguments, _vhost: str) -> object:
        name, users = args.text("name"), self._node.users
        password, hashed = args.value("password"), args.value("password_hash")
        if password is not None and hashed is not None:
            raise _wrong("both_password_and_password_hash_are_provided: expected one of them")
        if password is not None:
            stored = users.new_hash(str(password).encode("utf-8", "surrogateescape"))
        else:
            stored = rabbitmq_hash(str(hashed or ""), args.text("hashing_algorithm"))
        is_new = users.put_user(name, stored, args.texts("tags"), args.table("limits"))
        self._node.limits_changed()
        for vhost in self._running():
            self._push(name, vhost.name)
        return {"is_new": is_new}

    async def _delete_user(self, args: Arguments, _vhost: str) -> None:
        self._forget_users([args.text("name")])

    async def _delete_users(self, args: Arguments, _vhost: str) -> None:
        self._forget_users(args.texts("names"))

    def _forget_users(self, names: list[str]) -> None:
        self._node.users.delete_users(names)
        for vhost in self._running():
            for name in names:
                vhost.notify("close_user", user=name, why=f"user '{name}' was deleted")

    async def _change_password(self, args: Arguments, _vhost: str) -> None:
        self._node.users.change_password(args.text("name"), _password(args))

    async def _authenticate_user(self, args: Arguments, _vhost: str) -> None:
        name = args.text("name")
        try:
            await self._node.backends.login(name, _password(args), LOCAL)
        except Refused as error:
            text = f"ACCESS_REFUSED - login of user '{name}' is refused: {error}"
            raise ControlError(ACCESS_REFUSED, text) from error

    async def _set_user_tags(self, args: Arguments, _vhost: str) -> None:
        name = args.text("name")
        self._node.users.set_user_tags(name, args.texts("tags"))
        for vhost in self._running():
            self._push(name, vhost.name)

    async def _list_permissions(self, args: Arguments, vhost: str) -> object:
        user = args.text_or_none("user")
        return self._node.users.list_permissions(vhost=vhost or None, user=user)

    async def _check_permission(self, args: Arguments, vhost: str) -> object:
        """As for a login from this machine: with a password by the backend that accepts it, else by
        http or internal, which of them is asked first."""
        user, verb, name = args.text("user"), args.text("verb"), args.text("name")
        key, backends = args.text_or_none("routing_key"), self._node.backends
        try:
            if args.text_or_none("password") is not None:
                account = await backends.login(user, _password(args), LOCAL)
            else:
                users = self._node.users
                if OAUTH2 in self._node.settings.auth_backends and not users.knows(user):
                    text = (
                        f"NOT_FOUND - there is no user '{user}' here; what a user of oauth2 may do "
                        "is in its token: give it as `password`"
                    )
                    raise ControlError(NOT_FOUND, text)
                users.tags(user)  # AMQPError 404
                account = backends.kept(user, LOCAL)
        except Refused as error:
            return {"is_allowed": False, "why": f"a login of user '{user}' is refused: {error}"}
        await account.ask([vhost])
        identity = account.identity(vhost)
        if identity is None:
            why = f"user '{user}' has no permissions on vhost '{vhost}'"
            if account.must_ask and self._node.users.identity(user, vhost) is not None:
                why = f"the server of auth_http does not let user '{user}' open vhost '{vhost}'"
            return {"is_allowed": False, "why": why}
        is_allowed, why = identity.verdict(verb, name, key)
        http = backends.http
        kind = args.text("resource") or ("queue" if name and key is None else "exchange")
        questions = []
        if identity.asks_resources:
            questions.append((verb, kind, name or DEFAULT_EXCHANGE, ""))
        if identity.asks_topics and key is not None and verb != "configure":
            questions.append((verb, TOPIC, name, key))
        if is_allowed and http is not None and questions:
            try:
                for question in questions:
                    await http.check_right(vhost, (identity.name, identity.asks_from, *question))
            except Refused as error:
                return {"is_allowed": False, "why": f"{why}; {verb} of {kind} '{name}': {error}"}
            why += "; the server of auth_http allows it, too"
        return {"is_allowed": is_allowed, "why": why}

    async def _list_user_permissions(self, args: Arguments, _vhost: str) -> object:
        return self._node.users.list_permissions(user=args.text("user"))

    async def _set_permissions(self, args: Arguments, vhost: str) -> object:
        user = args.text("user")
        is_new = self._node.users.set_permissions(
            user, vhost, args.text("configure"), args.text("write"), args.text("read")
        )
        self._push(user, vhost)
        return {"is_new": is_new}

    async def _clear_permissions(self, args: Arguments, vhost: str) -> object:
        user = args.text("user")
        was_there = self._node.users.clear_permissions(user, vhost)
        watched = self._node.vhosts.get(vhost)
        if watched is not None:
            watched.notify("close_user", user=user, why=f"access to vhost '{vhost}' was taken away")
        return {"was_there": was_there}

    async def _list_topic_permissions(self, args: Arguments, vhost: str) -> object:
        user = args.text_or_none("user")
        return self._node.users.list_topic_permissions(vhost=vhost or None, user=user)

    async def _list_user_topic_permissions(self, args: Arguments, _vhost: str) -> object:
        return self._node.users.list_topic_permissions(user=args.text("user"))

    async def _set_topic_permissions(self, args: Arguments, vhost: str) -> object:
        user = args.text("user")
        is_new = self._node.users.set_topic_permissions(
            user, vhost, args.text("exchange"), args.text("write"), args.text("read")
        )
        self._push(user, vhost)
        return {"is_new": is_new}

    async def _clear_topic_permissions(self, args: Arguments, vhost: str) -> object:
        user, exchange = args.text("user"), args.text("exchange") or None
        was_there = self._node.users.clear_topic_permissions(user, vhost, exchange)
        self._push(user, vhost)
        return {"was_there": was_there}

    # ---- definitions ---------------------------------------------------------------------------

    async def _export_definitions(self, _args: Arguments, vhost: str) -> object:
        tables = self._node.users.tables()
        topology = {
            name: await self._topology(name) for name in ([vhost] if vhost else tables.vhosts)
        }
        return await asyncio.to_thread(definitions.document, tables, topology, vhost)

    async def _import_definitions(self, args: Arguments, vhost: str) -> object:
        async with self._importing:
            return await self._import(
                args.text("definitions"), vhost, args.caller, is_lenient=args.flag("leave_out"),
                is_dry=args.flag("dry_run"),
            )  # fmt: skip

    async def load_definitions(self, path: str) -> None:
        """Import the definitions in a file, at the start; nothing happens if they are those that
        were loaded last. Raises OptionError with all that is wrong, OSError, and PenstockError."""
        users = self._node.users
        data = await asyncio.to_thread(self._node.data.fs.read, path)
        digest = hashlib.sha256(data).hexdigest()
        if digest == users.loaded():
            logger.info("definitions in %s: loaded before", path)
            return
        try:
            async with self._importing:
                found = await self._import(data.decode("utf-8", "replace"), "")
        except DefinitionsError as error:
            wrong = "; ".join(error.problems)
            raise OptionError(
                "load_definitions", path, f"definitions that can be imported: {wrong}"
            ) from error
        users.set_loaded(digest)
        logger.info("definitions in %s: %s", path, found)

    async def _import(
        self, given: str, vhost: str, caller: tuple[str, str] = OPERATOR, *,
        is_lenient: bool = False, is_dry: bool = False,
    ) -> dict[str, object]:  # fmt: skip
        """Check a document as a whole, then apply it, unless is_dry. What was applied before a
        crash is found to be there when it is imported again. caller: as of `call`. Raises
        DefinitionsError and ControlError."""
        node = self._node
        if vhost:
            self._vhost(vhost)
        found = await asyncio.to_thread(Definitions, given, vhost, is_lenient=is_lenient)
        wrong = node.users.unknown_in(found.tables)
        known = {*found.tables.vhosts, *node.users.vhosts()}
        wrong += [f"no vhost '{name}'" for name in found.topology if name not in known]
        declared: dict[str, definitions.VhostTopology] = {}
        differs: list[str] = []
        for name, wanted in found.topology.items():
            own = found.tables.limits["vhost"].get(name, {})
            limits = {one: own.get(one, node.limits.of_vhost(name, one)) for one in OF_VHOSTS}
            there = definitions.of_new_vhost()
            if node.is_known(name):
                there = await self._topology(name)
            declared[name], others, bad = await asyncio.to_thread(
                definitions.missing, name, wanted, there, limits
            )
            differs += others
            wrong += bad
        found.finish(wrong)
        new = node.users.changes_in(found.tables) if is_dry else node.users.put(found.tables)
        counts: dict[str, object] = {
            "users": len(new.users), "vhosts": len(new.vhosts), "permissions": len(new.permissions)
        }  # fmt: skip
        for section in definitions.SECTIONS:
            counts[section] = sum(len(one[section]) for one in declared.values())
        if not is_dry:
            for entry in definitions.audited(new):
                node.note({"user": caller[0], "from": caller[1], **entry})
            await self._apply(new, declared)
        return {
            **counts, "differs": differs, "left_out": found.left_out, "not_run": found.not_run,
        }  # fmt: skip

    async def _apply(self, new: Tables, declared: Mapping[str, definitions.VhostTopology]) -> None:
        """Make the new vhosts, tell the processes about users, and declare what is missing."""
        node = self._node
        for name in new.vhosts:
            vhost_directories.make(node.data, node.users, name)
        node.limits_changed()
        for user in {*new.users, *(who[0] for who in (*new.permissions, *new.topics))}:
            for running in self._running():
                self._push(user, running.name)
        for section in definitions.SECTIONS:
            for name, one in declared.items():
                await self._declare(name, section, one[section])

    async def _topology(self, name: str) -> definitions.VhostTopology:
        """Return what the vhost has, in the form of `list_topology`."""
        found = await self._vhost(name).call("list_topology", b"")
        topology: definitions.VhostTopology = await asyncio.to_thread(read, found)
        return topology

    async def _declare(self, name: str, section: str, rows: list[definitions.Json]) -> None:
        """Declare what definitions have, DECLARED_AT_ONCE at a time: other clients have their turns
        in between. Raises ControlError."""
        vhost = self._vhost(name)
        for at in range(0, len(rows), DECLARED_AT_ONCE):
            asked = [
                vhost.call(op, dumps(args, is_exact=True))
                for op, args in (
                    definitions.declaration(section, row)
                    for row in rows[at : at + DECLARED_AT_ONCE]
                )
            ]
            for error in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(error, ControlError):
                    text = f"{error.text}; what came before it was imported, import again to go on"
                    raise ControlError(error.code, text) from error
                if isinstance(error, BaseException):
                    raise error

    # ---- limits --------------------------------------------------------------------------------

    async def _list_user_limits(self, args: Arguments, _vhost: str) -> object:
        """Each user's limits, those that are the server's defaults too; or of one user."""
        asked = args.text_or_none("user")
        table = self._node.limits
        names = [str(user["user"]) for user in self._node.users.list_users()]
        if asked is not None:
            self._node.users.tags(asked)  # AMQPError 404
            names = [asked]
        if args.flag("without_defaults"):
            known = self._node.users.limits("user")
            return [{"user": name, **known[name]} for name in names if name in known]
        return [
            {"user": name, **{limit: table.of_user(name, limit) for limit in OF_USERS}}
            for name in names
        ]

    async def _set_user_limits(self, args: Arguments, _vhost: str) -> None:
        self._node.users.set_limits("user", args.text("user"), args.table("limits"))
        await self._limits_changed()

    async def _clear_user_limits(self, args: Arguments, _vhost: str) -> None:
        self._node.users.clear_limits("user", args.text("user"), args.text("limit"))
        await self._limits_changed()

    async def _list_vhost_limits(self, args: Arguments, vhost: str) -> object:
        """Return the limits of each vhost, or of the one that is named."""
        table = self._node.limits
        if vhost and vhost not in self._node.users.vhosts():
            raise ControlError(NOT_FOUND, f"NOT_FOUND - no vhost '{vhost}'")
        names = [vhost] if vhost else sorted(self._node.users.vhosts())
        if args.flag("without_defaults"):
            known = self._node.users.limits("vhost")
            return [{"vhost": name, **known[name]} for name in names if name in known]
        return [
            {"vhost": name, **{limit: table.of_vhost(name, limit) for limit in OF_VHOSTS}}
            for name in names
        ]

    async def _set_vhost_limits(self, args: Arguments, vhost: str) -> None:
        self._node.users.set_limits("vhost", vhost, args.table("limits"))
        await self._limits_changed()

    async def _clear_vhost_limits(self, args: Arguments, vhost: str) -> None:
        self._node.users.clear_limits("vhost", vhost, args.text("limit"))
        await self._limits_changed()

    async def _limits_changed(self) -> None:
        """Send changed limits to every vhost. Returns when those that run have them; one that
        hangs is not waited for longer than ASK_S."""
        self._node.limits_changed()
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                await asyncio.gather(*[vhost.heard() for vhost in self._running()])

    def _push(self, user: str, vhost: str) -> None:
        """Send the user's new permissions to the vhost."""
        watched = self._node.vhosts.get(vhost)
        identity = self._node.users.identity(user, vhost)
        if watched is not None and identity is not None:
            watched.notify("identity", identity=identity.facts())


@lru_cache(8)  # the dashboard's numbers ask for the status of an idle broker, too
def _from_root(path: str) -> str:
    """Return where a path is that may be one from the directory in which the broker was started."""
    return str(Path(path).absolute())


def _wrong(text: str) -> ControlError:
    return ControlError(PRECONDITION_FAILED, f"PRECONDITION_FAILED - {text}")


def _vhost_options(args: Arguments) -> dict[str, object]:
    """Return those of VHOST_OPTIONS that are given."""
    found: dict[str, object] = {}
    for option in VHOST_OPTIONS:
        value = args.value(option.name)
        if value is not None:
            found[option.name] = list(value) if isinstance(value, tuple) else value
    return found


def _password(args: Arguments) -> bytes:
    return args.text("password").encode("utf-8", "surrogateescape")


def _log_failure(task: "asyncio.Future[bytes]") -> None:
    """Log a failed release: the vhost has ended, and with it what the session held."""
    if not task.cancelled() and task.exception() is not None:
        logger.debug("session_closed: %s", task.exception())
