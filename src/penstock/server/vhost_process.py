"""The process of one vhost: `python -m penstock.server.vhost_process <descriptor>`.

Its only argument is its end of the link to the supervisor, which sends everything else
(watched_vhost has the messages).

When it ends (linked_process), it closes the connections and writes a checkpoint. When the storage
has failed it ends at once and writes nothing [10]; operators see the reason that it has sent as
`failed`.

A client whose identity has an end (of a token) is closed when it comes, with 320, unless it has
sent a new secret before.

hub has the loop, session a client, broker.operations the operations.
"""

import asyncio
import gc
import logging
import mmap
import os
import random
import resource
import socket
import sys
from functools import lru_cache
from typing import Any, Final

from penstock.access.limits import Limits
from penstock.access.permissions import INTERNAL, Identity
from penstock.broker import operations
from penstock.broker.asked_rights import Question
from penstock.broker.connection_facts import ConnectionFacts
from penstock.broker.connection_handler import ConnectionHandler
from penstock.broker.exactly_once.batches import batch_manager
from penstock.broker.exactly_once.leases import lease_manager
from penstock.broker.in_flight import SIZE, InFlight
from penstock.broker.operations.listings import connection_info
from penstock.broker.vhost import VHost, VHostSettings
from penstock.errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    AMQPError,
    CorruptionError,
    DescriptorsError,
    DiskFullError,
    LockedError,
    NotAStoreError,
    PenstockError,
    VersionError,
)
from penstock.operation_json import JsonParts, loads, parts_of, to_json
from penstock.operation_table import AUDIT_STREAM, HOME, OPERATIONS, check_over_http
from penstock.protocol.connection import Connection
from penstock.server import tls_records
from penstock.server.control import Facts, Packet, news
from penstock.server.descriptors import RESERVE, clients_max
from penstock.server.hub import Hub, Session
from penstock.server.linked_process import EX_OK, LinkedProcess, main
from penstock.server.log_lines import client_line, event_logger, set_level, set_up
from penstock.server.polling_loop import PollingLoop, take_longest_s
from penstock.server.process_link import AskedCall, ProcessLink
from penstock.server.tls_records import TlsRecords
from penstock.storage.files.data_directory import placed
from penstock.storage.files.filesystem import OsFileSystem

# A sync, a read ahead, combining files and verifying a backup do not wait for each other.
WORKERS: Final = 4
CLOSE_S: Final = 3.0  # for clients to answer connection.close when the vhost stops
LOCKED_S: Final = 60.0  # for another process to leave the directory
LOCKED_AGAIN_S: Final = 0.2
FULL_AGAIN_S: Final = 1.0  # between two checks of a disk that has no room for the start
STOPPING: Final = "broker forced connection closure with reason 'shutdown'"
EX_IOERR: Final = 74
END_WAIT_S: Final = 3600.0  # for the end of an identity; then the clock is asked again
EXPECTED: Final = (PenstockError, OSError)  # any other error is a defect
OPERATOR: Final = "operator"  # the user of operations of the control socket and HTTP
# Workers need the interpreter only between two system calls; the loop gets it back that soon.
SWITCH_S: Final = 0.0005
# When the table of a process's open files is full, the kernel enlarges it, and with several threads
# waits for a grace period: the loop stood still for 15 ms at the 65th, 129th ... file.
FILES: Final = 4096
# The loop waits for each collection, up to 1 us for each object that is looked at (measured, on a
# busy machine): the youngest, and those of the collection before. Few of our objects are in cycles,
# so all of them are looked at after 200 million.
GC_THRESHOLDS: Final = (10_000, 1, 10_000)

logger = logging.getLogger(__name__)


@lru_cache(64)
def _gone(user: str) -> list[Packet]:
    """Return the packets of the news that a connection of this user has ended."""
    return news({"do": "gone", "user": user})


class VhostProcess(LinkedProcess):
    """Serves until it is stopped; `run` returns the exit status."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, OsFileSystem(WORKERS, reserve=RESERVE))
        assert isinstance(self._loop, PollingLoop)
        self._poller = self._loop.poller
        self._nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        make_room_for_files(min(FILES, self._nofile))
        self._vhost: VHost | None = None
        self._blocked_reason: str = ""  # what the start waits for
        self._hub: Hub | None = None
        self._ends_s = float("inf")  # when the first identity ends
        self._ending: asyncio.TimerHandle | None = None
        self._http: list[ProcessLink] = []
        self._limits: dict[str, Any] = {}  # set by operators: arguments of LimitTable.set
        self._in_flight = InFlight(self._clock.monotonic)
        self._is_audited = False

    async def _finish(self, why: str) -> None:
        if self._status != EX_OK:
            logger.error("ends: %s", why)
        else:
            await self._stop(why)

    def _fail(self, error: BaseException, *, is_final: bool = False) -> None:
        """Report a failure and end."""
        if isinstance(error, EXPECTED):
            self._in_flight.blameless()
        else:
            self._in_flight.freeze()
        self._give_up(EX_IOERR, str(error) or type(error).__name__, is_final=is_final)

    async def _stop(self, why: str) -> None:
        """Stop in order: close connections, then the vhost."""
        hub, vhost = self._hub, self._vhost
        if hub is None or vhost is None:
            return
        logger.info("stops%s", f": {why}" if why else "")
        await hub.close_all(CONNECTION_FORCED, STOPPING, CLOSE_S)
        hub.stop()
        try:
            vhost.close()
            self._fs.close()
        except Exception as error:
            logger.exception("did not stop in order")
            self._fail(error)
            return
        self._link.send({"do": "stopped"})

    # ---- the link ------------------------------------------------------------------------------

    def _on_message(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        do = facts["do"]
        if do == "connection":
            self._adopt(facts, data, descriptors)
        elif do == "ping":
            self._link.send(self._pong(facts))
        elif do == "http":
            self._add_http(descriptors)
        elif do == "start":
            self._start(facts, descriptors)
        elif do == "stop":
            self._end("")
        elif do == "settings":
            self._change(facts)
        elif do == "limits":
            self._limits = {name: facts[name] for name in ("vhosts", "users", "queue_types")}
            if self._vhost is not None:
                self._vhost.limits.set(**self._limits)
        elif self._vhost is not None and self._hub is not None:
            self._on_news(str(do), facts)

    def _change(self, facts: dict[str, Any]) -> None:
        """Take settings that have changed."""
        set_level(facts["log_level"])
        if self._vhost is not None:
            self._vhost.limits.set_defaults(Limits(**facts["limits"]))
            self._vhost.engine.set_disk_free_limit(facts["disk_free_limit"])

    def _start(self, facts: dict[str, Any], descriptors: list[int]) -> None:
        if descriptors:
            shared = mmap.mmap(descriptors[0], SIZE)
            os.close(descriptors[0])
            self._in_flight = InFlight(self._clock.monotonic, shared)
        self._in_flight.refuse(facts["refused"])
        settings = facts["settings"]
        set_up(settings["log_level"], f"vhost {facts['name']!r}", self._send_line)
        options = VHostSettings.of(settings)
        self._limits = facts["limits"]
        if settings["has_tls"]:
            tls_records.load()
        self._open(facts, options, self._clock.monotonic() + LOCKED_S)

    def _open(
        self, facts: dict[str, Any], options: VHostSettings, until_s: float, has_said: bool = False
    ) -> None:
        """Open the vhost. Waits while another process has the directory: one whose supervisor was
        killed may still be closing. has_said: that it waits is in the log."""
        if self._ended.done():
            return
        try:
            vhost = VHost(
                self._fs, facts["path"], facts["name"], options, clock=self._clock,
                rng=random.SystemRandom(), on_event=event_logger(logger),
            )  # fmt: skip
            self._is_audited = facts["settings"]["is_audited"]
            vhost.events.send = self._send_event
            vhost.rights.send = self._ask_rights
            vhost.firehose.on_switched = self._send_tracing
            self._want_events(vhost, is_on=facts["events"])
            if facts["settings"]["audit_vhost"] == vhost.name:
                vhost.audit_stream = AUDIT_STREAM
            vhost.on_refused = lambda address, text: client_line(logger, address, "%s", text)
        except LockedError as error:
            if self._clock.monotonic() >= until_s:
                self._fail(error)
                return
            if not has_said:
                logger.info("waits: %s", error)
            self._loop.call_later(LOCKED_AGAIN_S, self._open, facts, options, until_s, True)
            return
        except DiskFullError as error:
            self._wait_for_space(facts, options, error)
            return
        except Exception as error:
            advice = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            logger.error(
                "cannot start: %s%s", error, advice, exc_info=not isinstance(error, EXPECTED)
            )
            final = isinstance(error, CorruptionError | VersionError | NotAStoreError)
            self._fail(error, is_final=final)
            return
        vhost.limits.set(**self._limits)
        vhost.watch_rss(self._rss_bytes, self._heap.give_back)
        lease_manager(vhost)
        batch_manager(vhost)
        poller = self._poller
        vhost.loop_seconds = {
            "loop_turn_seconds": poller.pass_seconds, "loop_delay_seconds": poller.late_seconds
        }  # fmt: skip
        hub = Hub(vhost, self._fail, poller, self._in_flight)
        hub.on_gone = self._gone
        hub.on_tick = self._heap.look
        vhost.deferred_free.on_freed = self._heap.freed
        vhost.in_flight = self._in_flight
        vhost.wake = hub.wake
        self._fs.on_complete = poller.wake_from_thread
        self._vhost, self._hub = vhost, hub
        hub.start()
        # The disk is looked at now, not only at the first tick: publishers may be faster.
        vhost.engine.set_disk_free_limit(options.storage.disk_free_limit)
        sys.setswitchinterval(SWITCH_S)
        self._heap.freeze_start()
        gc.set_threshold(*GC_THRESHOLDS)
        self._link.send(self._pong({"n": 0}))  # so that its size is known as soon as it runs
        self._link.send({"do": "ready"})
        if vhost.name == HOME:
            vhost.events.on_wanted = self._send_wanted
            self._send_wanted(vhost.events.is_on)

    def _wait_for_space(
        self, facts: dict[str, Any], options: VHostSettings, error: DiskFullError
    ) -> None:
        """Try again when there is more space on the disk: a full disk is not a failure. More means
        more than the least that was free since the attempt. If descriptors are lacking, try again
        a moment later."""
        path = facts["path"]
        if isinstance(error, DescriptorsError):
            logger.error("cannot start yet, waits for descriptors: %s", error)
            self._blocked_reason = "descriptors"
            self._link.send(self._pong({"n": 0}))
            until_s = self._clock.monotonic() + LOCKED_S
            self._loop.call_later(FULL_AGAIN_S, self._open, facts, options, until_s)
            return
        fs = placed(self._fs, path)
        logger.error("cannot start yet, waits for more space: %s", error)
        self._blocked_reason = "disk"
        self._link.send(self._pong({"n": 0}))
        least = fs.free_bytes(path)

        def look() -> None:
            nonlocal least
            if self._ended.done():
                return
            free = fs.free_bytes(path)
            if free > least:
                self._open(facts, options, self._clock.monotonic() + LOCKED_S)
                return
            least = free
            self._loop.call_later(FULL_AGAIN_S, look)

        self._loop.call_later(FULL_AGAIN_S, look)

    def _counted_bytes(self) -> int:
        return self._vhost.monitor.counted_bytes if self._vhost is not None else 0

    def _pong(self, facts: Facts) -> Facts:
        vhost = self._vhost
        depth_bytes = vhost.depth_bytes if vhost is not None else 0
        connections = len(self._hub.sessions) if self._hub is not None else 0
        return {
            "do": "pong",
            "n": facts["n"],
            "depth_bytes": depth_bytes,
            "connections": connections,
            "rss_bytes": self._rss_bytes(),
            "returned_bytes": self._heap.returned_bytes,
            "blocked_reason": self._blocked_reason if vhost is None else vhost.blocked_reason,
            "counted_bytes": vhost.monitor.counted_bytes if vhost is not None else 0,
            "clients_max": self._clients_max(),
        }

    def _clients_max(self) -> int:
        """Return how many clients there may be: no more than there are while the reserve of
        descriptors is not whole."""
        fs = self._fs
        most = clients_max(self._nofile, fs.open_files())
        if fs.restore_reserve() or self._hub is None:
            return most
        return min(most, len(self._hub.sessions))

    def _on_news(self, do: str, facts: dict[str, Any]) -> None:
        """Handle news of the node."""
        assert self._vhost is not None
        assert self._hub is not None
        if do == "memory":
            self._vhost.set_memory(facts["bytes"])
            self._link.send({"do": "memory_is", "bytes": facts["bytes"]})
            self._hub.wake()
        elif do == "identity":
            identity = Identity.from_facts(facts["identity"])
            for session in self._of_user(identity.name):
                assert session.handler is not None
                session.handler.set_identity(identity)
        elif do == "close_user":
            for session in self._of_user(str(facts["user"])):
                session.shutdown(CONNECTION_FORCED, str(facts["why"]))
        elif do == "events":
            self._want_events(self._vhost, is_on=bool(facts["is_on"]))
        elif do == "may":
            user, host, verb, kind, name, key = facts["question"]
            self._vhost.rights.answered(
                (user, host, verb, kind, name, key), facts["valid_s"],
                is_allowed=bool(facts["is_allowed"]),
            )  # fmt: skip
            self._hub.wake()
        elif do == "renewed":
            self._renewed(str(facts["connection"]), facts["identity"])

    def _want_events(self, vhost: VHost, *, is_on: bool) -> None:
        """Send events, or none any more. Entries of the audit become events, too."""
        if vhost.name != HOME:
            vhost.events.is_on = is_on
        vhost.on_audit = self._note if self._is_audited or is_on else None

    def _ask_rights(self, question: Question) -> None:
        self._link.send({"do": "may", "question": list(question)})

    def _send_event(self, event: str, headers: dict[str, object]) -> None:
        self._link.send({"do": "event", "event": event, "headers": to_json(headers)})

    def _send_wanted(self, is_on: bool) -> None:
        self._link.send({"do": "events_wanted", "is_on": is_on})

    def _send_tracing(self, is_on: bool) -> None:
        self._link.send({"do": "tracing", "is_on": is_on})

    def _note(self, op: str, user: str, place: str, args: dict[str, object]) -> None:
        """Send an entry of the audit log."""
        assert self._vhost is not None
        entry = {"event": op, "user": user, "from": place, "vhost": self._vhost.name, "args": args}
        self._link.send({"do": "audit", "entry": to_json(entry)})

    def _gone(self, user: str) -> None:
        """Report that a client's connection has ended: the supervisor counts them."""
        self._link.write(_gone(user))

    def _of_user(self, user: str) -> list[Session]:
        assert self._hub is not None
        return [
            s
            for s in self._hub.sessions
            if s.user == user and s.handler is not None and s.handler.identity.source == INTERNAL
        ]

    # ---- identities that end -------------------------------------------------------------------

    def _ask_renewal(self, handler: ConnectionHandler, secret: bytes) -> None:
        facts = handler.facts
        self._link.send({
            "do": "new_secret", "connection": facts.name, "user": facts.user,
            "host": facts.peer_host, "secret": secret.decode("utf-8", "surrogateescape"),
        })  # fmt: skip

    def _renewed(self, name: str, facts: dict[str, Any] | None) -> None:
        """Answer a client's new secret."""
        assert self._hub is not None
        for session in list(self._hub.sessions):
            handler = session.handler
            if handler is None or handler.facts.name != name:
                continue
            if facts is None:
                session.shutdown(NOT_ALLOWED, "New secret was refused by one of the backends")
                continue
            identity = Identity.from_facts(facts)
            handler.renewed(identity)
            self._watch_end(identity)
            self._hub.wake()

    def _watch_end(self, identity: Identity) -> None:
        """Have sessions closed when this identity ends."""
        end_s = identity.expires_at_s
        if end_s and end_s < self._ends_s:
            if self._ending is not None:
                self._ending.cancel()
            self._ends_s = end_s
            wait_s = max(end_s - self._clock.wall_ms() / 1000, 0.0)
            self._ending = self._loop.call_later(min(wait_s, END_WAIT_S), self._close_ended)

    def _close_ended(self) -> None:
        """Close the sessions whose identity has ended, and wait for the next end."""
        assert self._hub is not None
        self._ending, self._ends_s = None, float("inf")
        now_s = self._clock.wall_ms() / 1000
        for session in list(self._hub.sessions):
            if session.handler is None:
                continue
            identity = session.handler.identity
            if 0 < identity.expires_at_s <= now_s:
                text = f"the credentials of user '{identity.name}' have expired"
                client_line(logger, session.handler.facts.peer_host, "connection %s: %s",
                            session.handler.facts.name, text)  # fmt: skip
                session.shutdown(CONNECTION_FORCED, text)
            else:
                self._watch_end(identity)

    # ---- clients -------------------------------------------------------------------------------

    def _adopt(self, facts: dict[str, Any], data: bytes, descriptors: list[int]) -> None:
        facts_at = facts["identity_bytes"]
        facts_end = facts_at + facts["facts_bytes"]
        opened = ConnectionFacts.from_bytes(data[facts_at:facts_end])
        if len(descriptors) != 1 or self._hub is None:
            for descriptor in descriptors:
                socket.close(descriptor)
            logger.error("a connection was sent with %d descriptors, expected 1", len(descriptors))
            self._gone(opened.user)
            return
        assert self._vhost is not None
        family = socket.AF_INET6 if ":" in opened.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, 0, descriptors[0])
        sock.setblocking(False)
        identity = Identity.from_text(data[:facts_at])
        records = TlsRecords.of(facts["records"]) if "records" in facts else None
        try:
            session = self._hub.adopt(sock, opened.user, records)
        except OSError as error:
            logger.debug("connection %s lost: %s", opened.name, error)
            sock.close()
            self._gone(opened.user)
            return
        try:
            connection = Connection.resumed(opened.frame_max, opened.channel_max)
            handler = ConnectionHandler(self._vhost, connection, session.outlet, opened, identity)
            if identity.source != INTERNAL:
                handler.on_new_secret = self._ask_renewal
            self._watch_end(identity)
            session.start(handler, data[facts_end:])
        except Exception as error:  # noqa: BLE001 - the session reports it
            session.unexpected(error)

    # ---- operations ----------------------------------------------------------------------------

    def _links(self) -> list[ProcessLink]:
        return [self._link, *self._http]

    def _add_http(self, descriptors: list[int]) -> None:
        """Take a link to the HTTP process, and say so: until then it may have been lost."""
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            self._http = [one for one in self._http if not one.is_closed]
            self._http.append(ProcessLink(sock, lambda _why: None, on_call=self._on_http_call))
            self._http[-1].send({"do": "ready"})

    def _on_http_call(self, asked: AskedCall) -> None:
        """Answer a call of the HTTP process, which checks the permissions of its callers."""
        try:
            if asked.op in OPERATIONS:
                check_over_http(OPERATIONS[asked.op], "", None)
        except PenstockError as error:
            asked.refuse(error)
        else:
            self._on_call(asked)

    def _on_call(self, asked: AskedCall) -> None:
        """Call an operation; its answer may follow later. An unexpected error, in the operation or
        in its answer, is logged with its traceback and answered with 541."""
        op = asked.op

        def reply(result: object) -> None:
            if isinstance(result, BaseException):
                asked.refuse(result)
                return
            try:
                parts = parts_of(result, is_exact=True)
            except Exception as error:
                logger.exception("operation %s: the answer", op)
                asked.refuse(error)
                return
            asked.answer(parts, is_long=isinstance(result, JsonParts))

        if self._vhost is None or self._hub is None:
            reply(RuntimeError("the vhost has not started yet"))
            return
        if self._ended.done():
            reply(AMQPError(INTERNAL_ERROR, f"vhost '{self._vhost.name}' stops"))
            return
        try:
            args = loads(asked.args, is_exact=True)
            if op == "list_connections":
                handlers = [s.handler for s in self._hub.sessions]
                reply([connection_info(one.info()) for one in handlers if one is not None])
            elif op == "loop":
                reply({"longest_s": take_longest_s(self._loop)})
            else:
                self._in_flight.begin(OPERATOR, op)
                try:
                    operations.call(self._vhost, None, op, args, reply)
                finally:
                    self._in_flight.end()
        except (PenstockError, OSError) as error:
            if self._vhost.engine.failed is not None:
                self._hub.fail(error)
            logger.debug("operation %s: %s", op, error)
            reply(error)
        except Exception as error:
            if self._vhost.engine.failed is not None:
                self._hub.fail(error)
            logger.exception("operation %s failed", op)
            reply(error)
        self._hub.wake()


def make_room_for_files(n: int) -> None:
    """Have the kernel enlarge the table of open files to n now. Called before the first thread
    starts and before so many files are open."""
    some = os.open(os.devnull, os.O_RDONLY)
    os.close(os.dup2(some, n - 1, inheritable=False))
    os.close(some)


def run_process(arguments: list[str]) -> int:
    """Run the program, as linked_process.main."""
    return main("vhost", VhostProcess, arguments)


if __name__ == "__main__":
    sys.exit(run_process(sys.argv[1:]))
