"""Live: what the dashboard shows each second, its past, and the streams of events that carry it.

    GET /api/penstock/events?topics=overview,queue:%2F:orders    server-sent events
    GET /api/penstock/history/{vhost}?step=10                    samples of a vhost
    GET /api/penstock/history/{vhost}/{queue}?step=1             samples of a queue

A **tick** asks the supervisor for its status and each vhost that runs for its counters: once for
all who look, each TICK_S while somebody does, otherwise VHOSTS_MAX of them each IDLE_S for the
samples. If it takes long, because there are many, the pause after it is as long. Each LOOK_S the
vhosts are also asked what is wrong (`why`). A queue is asked for while it is a topic. Rates are
differences of counters between two ticks.

Every client gets what its user may see: vhosts that it may open, or all with the tag monitoring;
what is said of the node only with that tag. A stream ends when its user may do no more, by a
logout, another password or the loss of the tags. A client that does not take its events misses
some: nothing is kept for it.

    event: overview
    data: {"time": s, "problems": [{...}], "node": {...}, "vhosts": {NAME: {...}}}

    event: queue:%2F:orders
    data: {"time": s, "vhost": "/", "name": "orders", ...its sample..., "penstock": {...}}

What is not known is left out. A queue that is not there has the member `error`.

**Samples** are kept in rings of RINGS, packed, 110 bytes each: 300 KB for a vhost after a day, of
VHOSTS_MAX vhosts; of QUEUES_MAX queues 66 KB each, from when somebody looks at it. They begin again
with this process.
"""

import asyncio
import json
import logging
import math
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote_to_bytes

from penstock.clock import Clock, until_next
from penstock.counts import DISK_S, UserSums
from penstock.errors import CERTIFICATE_ADVICE
from penstock.http.node_link import NodeLink, mark_seen
from penstock.http.requests import HttpError
from penstock.members import dug
from penstock.operation_json import to_json
from penstock.operation_table import ALARM
from penstock.server.certificates import CertificateFacts
from penstock.server.control import ControlError
from penstock.server.watched_process import DOWN, RUNNING

TICK_S: Final = 1.0
IDLE_S: Final = 10.0
LOOK_S: Final = 10.0
STREAMS_MAX: Final = 64
USER_STREAMS_MAX: Final = 32
QUEUE_TOPICS_MAX: Final = 4  # of one stream
QUEUES_MAX: Final = 100
VHOSTS_MAX: Final = 50
PROBLEMS_MAX: Final = 50
SYNC_TICKS: Final = 60  # of which the slowest hundredth of syncs is shown
RINGS: Final = ((1.0, 600), (10.0, 720), (60.0, 1440))  # seconds between two samples, how many
ANSWER_S: Final = 1.0  # for each answer: a vhost that does not answer does not stop the others
AGAIN_S: Final = 0.25  # between two ticks at least, also if clients come and go
VHOST: Final = "vhost"
OVERVIEW: Final = "overview"
QUEUE: Final = "queue"
RETRY: Final = b"retry: 2000\n\n"

# Member of a sample -> the counter whose rate it is, by its name in `metrics`.
VHOST_RATES: Final = {
    "published": "messages_published_total", "delivered": "messages_delivered_total",
    "acked": "messages_acked_total", "unroutable": "messages_unroutable_total",
}  # fmt: skip
VHOST_VALUES: Final = {
    "unacked": "messages.unacked", "alpha": "messages.alpha", "beta": "messages.beta",
    "gamma": "messages.gamma", "delta": "messages.delta", "counted_bytes": "memory_counted_bytes",
    "budget_bytes": "memory_budget_bytes", "backlog_as_alphas_bytes": "backlog_as_alphas_bytes",
    "oldest_ready_s": "oldest_ready_seconds",
}  # fmt: skip
VHOST_COLUMNS: Final = (*VHOST_RATES, *VHOST_VALUES, "ready", "connections", "sync_p99_ms")
# The same of a queue, by the names of its row.
QUEUE_RATES: Final = {
    "published": "message_stats.publish", "delivered": "message_stats.deliver_get",
    "acked": "message_stats.ack", "refused": "penstock.refused",
}  # fmt: skip
QUEUE_VALUES: Final = {
    "ready": "messages_ready", "unacked": "messages_unacknowledged", "consumers": "consumers",
    "alpha": "penstock.alphas", "beta": "penstock.betas", "gamma": "penstock.gammas",
    "delta": "penstock.delta", "ram_bytes": "penstock.ram_bytes",
    "backlog_as_alphas_bytes": "penstock.backlog_as_alphas_bytes",
}  # fmt: skip
QUEUE_COLUMNS: Final = (*QUEUE_RATES, *QUEUE_VALUES)
ASKED_OF_QUEUE: Final = [
    "state", "type", "consumers", "messages_ready", "messages_unacknowledged", "message_stats",
    "penstock",
]  # fmt: skip

Sample = dict[str, float]
Info = dict[str, Any]

logger = logging.getLogger(__name__)


class Viewer(Protocol):
    """Who looks, and at what it may look."""

    @property
    def sees_all(self) -> bool:
        """Return whether it may see the node, and every vhost."""

    def vhosts(self) -> list[str]:
        """Return the vhosts that it sees."""

    def identity(self, vhost: str) -> object | None:
        """Return None if it may not see the vhost."""


class SampleRing:
    """Samples with these columns, in rings of these (seconds between two, how many)."""

    def __init__(self, columns: Sequence[str], rings: Sequence[tuple[float, int]]) -> None:
        self._columns = columns
        self._format = struct.Struct(f"<d{len(columns)}f")
        self._rings = [(step_s, deque[bytes](maxlen=most)) for step_s, most in rings]

    def add(self, time_s: float, sample: Mapping[str, float]) -> None:
        """Add a sample. A ring leaves it out if its last one is too new."""
        packed = self._format.pack(time_s, *(sample.get(one, math.nan) for one in self._columns))
        for step_s, ring in self._rings:
            # A tick may come a little early.
            if not ring or time_s - struct.unpack_from("<d", ring[-1])[0] >= step_s - TICK_S / 2:
                ring.append(packed)

    def samples(self, step_s: float) -> list[Info]:
        """Return the samples of the ring with so many seconds between two, the oldest first."""
        found: list[Info] = []
        for one, ring in self._rings:
            if one == step_s:
                for packed in ring:
                    time_s, *values = self._format.unpack(packed)
                    named = zip(self._columns, values, strict=True)
                    known = {name: round(v, 3) for name, v in named if not math.isnan(v)}
                    found.append({"time": time_s, **known})
        return found


class _Past:
    """The samples of one thing, and its counters at the last tick."""

    def __init__(
        self, rates: Mapping[str, str], values: Mapping[str, str], columns: Sequence[str],
        rings: Sequence[tuple[float, int]],
    ) -> None:  # fmt: skip
        self.ring = SampleRing(columns, rings)
        self._rates = rates
        self._values = values
        self._counters: tuple[float, dict[str, float]] = (0.0, {})
        self._syncs: deque[list[int]] = deque(maxlen=SYNC_TICKS + 1)

    def sample(self, time_s: float, row: Info) -> Sample:
        """Return the sample of what was asked now. Counters that begin again have no rate."""
        counters = _numbers(self._rates, row)
        before_s, before = self._counters
        self._counters = time_s, counters
        found: Sample = {}
        for name, count in counters.items():
            if name in before and count >= before[name] and time_s > before_s:
                found[name] = round((count - before[name]) / (time_s - before_s), 3)
        return found | _numbers(self._values, row)

    def sync_p99_ms(self, counts: list[int]) -> float | None:
        """Return in how many ms 99 of 100 syncs of the last SYNC_TICKS were done; None without
        one, or if it was longer than the last bound. counts: of `sync_seconds` now."""
        if self._syncs and sum(counts) < sum(self._syncs[-1]):
            self._syncs.clear()
        self._syncs.append(counts)
        since = [now - then for now, then in zip(counts, self._syncs[0], strict=True)]
        limit, seen = 0.99 * sum(since), 0
        for bound, count in zip(DISK_S, since, strict=False):
            seen += count
            if count and seen >= limit:
                return bound * 1000
        return None


class Live:
    """See the head of this module. `run` ticks until `close`."""

    def __init__(self, node: NodeLink, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._vhosts: dict[str, _Past] = {}
        self._queues: dict[tuple[str, str], _Past] = {}  # the longest unused first
        self._topics: dict[tuple[str, str], int] = {}  # queue -> how many look at it
        self._asking: dict[tuple[str, Any], asyncio.Task[Any]] = {}  # who has not answered yet
        self._streams = UserSums()
        self._is_closed = False
        self._looked_s = -math.inf
        self._wanted = asyncio.Event()
        self._ticked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Of the last tick:
        self._time_s = 0.0
        self._status: Info = {}
        self._of_vhosts: dict[str, Info] = {}
        self._of_queues: dict[tuple[str, str], Info] = {}
        self._wrong: dict[str, list[Info]] = {}  # vhost -> findings of `why`
        self._encoded: dict[tuple[bool, tuple[str, ...]], bytes] = {}

    async def run(self) -> None:
        """Tick until `close`."""
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            began_s = loop.time()
            self._wanted.clear()
            try:
                await self.tick()
            except Exception:
                logger.exception("the numbers of the dashboard are not known")
            took_s = loop.time() - began_s
            pause_s = TICK_S if self._streams.total else until_next(began_s, IDLE_S)
            due_s = began_s + max(pause_s, 2 * took_s)
            try:
                async with asyncio.timeout_at(due_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(max(began_s + AGAIN_S - loop.time(), 0))

    def now_s(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._clock.wall_ms() / 1000

    def close(self) -> None:
        """End the streams, and `run`."""
        self._is_closed = True
        self._wanted.set()
        self._end_tick()

    def _end_tick(self) -> None:
        self._ticked.set_result(None)
        self._ticked = self._ticked.get_loop().create_future()

    # ---- a tick --------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Ask for everything, and give it to those who look. What does not answer is left out."""
        node = self._node
        self._time_s = self.now_s()
        try:
            self._status = await node.status()
        except (ControlError, HttpError):
            self._status = {}
        rows = {row["name"]: row for row in self._status.get("vhosts", [])}
        running = [name for name, row in rows.items() if row["state"] == RUNNING]
        if not self._streams.total:
            running = running[:VHOSTS_MAX]
        found = await self._each("metrics", running, lambda name: node.value("metrics", name))
        if rows:
            self._vhosts = {name: past for name, past in self._vhosts.items() if name in rows}
        self._of_vhosts = {
            name: self._vhost_info(row, found.get(name)) for name, row in rows.items()
        }
        if self._streams.total and self._time_s >= self._looked_s + LOOK_S:
            self._looked_s = self._time_s
            self._wrong = await self._each("why", running, lambda name: node.value("why", name))
        asked = [key for key in self._topics if key[0] in found]
        described = await self._each(QUEUE, asked, lambda key: self._describe(*key))
        self._of_queues = {key: self._queue_info(key, row) for key, row in described.items()}
        self._encoded.clear()
        self._end_tick()

    async def _each(
        self, what: str, names: Sequence[Any], ask: Callable[[Any], Coroutine[Any, Any, Any]]
    ) -> dict[Any, Any]:
        """Return what those say that answer within ANSWER_S. Who has not answered yet is not asked
        again. what: is asked."""
        tasks: dict[Any, asyncio.Task[Any]] = {}
        for name in names:
            task = self._asking.get((what, name))
            if task is None or task.done():
                task = self._asking[what, name] = asyncio.create_task(ask(name))
                task.add_done_callback(mark_seen)
            tasks[name] = task
        if tasks:
            await asyncio.wait(tasks.values(), timeout=ANSWER_S)
        answered: dict[Any, Any] = {}
        for name, task in tasks.items():
            if not task.done():
                continue
            del self._asking[what, name]
            error = task.exception()
            if error is None:
                answered[name] = task.result()
            elif not isinstance(error, ControlError | HttpError):
                raise error
        return answered

    async def _describe(self, vhost: str, queue: str) -> Info:
        try:
            row: Info = await self._node.value(
                "describe_row", vhost, kind="queues", name=queue, columns=ASKED_OF_QUEUE
            )
        except ControlError as error:
            return {"error": error.text}
        return row

    def _vhost_info(self, row: Info, answer: Info | None) -> Info:
        """Return what is shown of a vhost, and keep a sample of it."""
        name = row["name"]
        info: Info = {"state": row["state"], "restarts": row.get("restarts", 0)}
        if row["state"] != RUNNING and row.get("why"):
            info["why"] = row["why"]
        if row["blocked_reason"]:
            info["blocked"] = row["blocked_reason"]
        if answer is None:
            return info
        values = answer["values"]
        past = self._vhosts.get(name)
        if past is None:
            rings = RINGS if len(self._vhosts) < VHOSTS_MAX else ()
            past = self._vhosts[name] = _Past(VHOST_RATES, VHOST_VALUES, VHOST_COLUMNS, rings)
        sample = past.sample(self._time_s, values)
        sample["ready"] = sum(sample.get(one, 0) for one in ("alpha", "beta", "gamma", "delta"))
        sample["connections"] = row["connections"]
        p99_ms = past.sync_p99_ms([round(one) for one in values["sync_seconds"][1:]])
        if p99_ms is not None:
            sample["sync_p99_ms"] = p99_ms
        past.ring.add(self._time_s, sample)
        return {**info, **sample}

    def _queue_info(self, key: tuple[str, str], row: Info) -> Info:
        info: Info = {"time": self._time_s, "vhost": key[0], "name": key[1]}
        if "error" in row:
            return info | row
        past = self._queues.pop(key, None)
        if past is None:
            past = _Past(QUEUE_RATES, QUEUE_VALUES, QUEUE_COLUMNS, RINGS[:1])
        self._queues[key] = past
        while len(self._queues) > QUEUES_MAX:
            del self._queues[next(iter(self._queues))]
        sample = past.sample(self._time_s, row)
        past.ring.add(self._time_s, sample)
        kept: Info = {name: row[name] for name in ("state", "type", "penstock") if name in row}
        return {**info, **sample, **kept}

    # ---- what is shown -------------------------------------------------------------------------

    def overview(self, vhosts: Sequence[str], *, sees_node: bool) -> bytes:
        """Return the data of the overview's event, with these vhosts."""
        key = (sees_node, tuple(vhosts))
        if key not in self._encoded:
            found: Info = {
                "time": self._time_s, "problems": self._problems(vhosts, sees_node=sees_node),
                "vhosts": {
                    name: self._of_vhosts[name] for name in vhosts if name in self._of_vhosts
                },
            }  # fmt: skip
            if sees_node and self._status:
                found["node"] = self._of_node()
            self._encoded[key] = _json(found)
        return self._encoded[key]

    def _of_node(self) -> Info:
        status = self._status
        processes = [*status["vhosts"], *(status[one] or {} for one in ("http", "tls"))]
        return {
            "disk_free": status["disk_free_bytes"], "disk_limit": status["disk_free_limit_bytes"],
            "memory": {
                "counted": status["counted_bytes"], "budget": status["memory_bytes"],
                "rss": sum(one.get("rss_bytes") or 0 for one in processes),
            },
        }  # fmt: skip

    def _problems(self, vhosts: Sequence[str], *, sees_node: bool) -> list[Info]:
        """Return what is wrong, the worst first: {level, text, do, href, since}. It is what
        `penstock status` and `penstock why` say, and certificates that expire soon; to users
        without the tag monitoring only which vhosts of theirs are down or blocked."""
        if not self._status:
            return [_said("danger", "The broker does not answer.", "", "#/overview")]
        rows = [row for row in self._status["vhosts"] if row["name"] in vhosts]
        found: list[Info] = []
        if not sees_node:
            for row in rows:
                if row["state"] == DOWN or row["blocked_reason"]:
                    low = f"publishers wait, low on {row['blocked_reason']}"
                    text = f"vhost '{row['name']}': {'down' if row['state'] == DOWN else low}"
                    found.append(_said("danger", text, "ask an administrator", "#/overview"))
            return found
        findings = [one for name in vhosts for one in self._found(name)]
        blocked = {row["name"] for row in rows if row["blocked_reason"]}
        causes = [
            one for one in findings
            if one[VHOST] in blocked and one["about"].startswith("vhost")
        ]  # fmt: skip
        for one in causes:
            text = f"{one['about']}: {one['text']}"
            found.append(_said("danger", text, one["do"], "#/alarms", one))
        known = {(ALARM, one[VHOST]) for one in causes}
        parts = (self._status[part] for part in ("kinds", "about", "problems", "advice"))
        for kind, about, text, do in zip(*parts, strict=True):
            if (kind, about) not in known:
                found.append(_said("danger", text, do, _place_of(kind, about)))
        for one in (self._status["tls"] or {}).get("certificates", []):
            facts = CertificateFacts(one["file"], tuple(one["names"]), one["expires_ms"])
            now_ms = round(self._time_s * 1000)
            if text := facts.warning(now_ms):
                level = "danger" if now_ms >= facts.expires_ms else "warning"
                found.append(_said(level, text, CERTIFICATE_ADVICE, "#/alarms"))
        for one in findings:
            if one not in causes:
                place = one["about"]
                what, _, name = place.partition(" '")
                is_shown = what in (QUEUE, "stream")
                href = _href(f"{what}s", one[VHOST], name[:-1]) if is_shown else _href("alarms")
                found.append(_said("warning", f"{place}: {one['text']}", one["do"], href, one))
        return found[:PROBLEMS_MAX]

    def _found(self, vhost: str) -> list[Info]:
        return [{VHOST: vhost, **one} for one in self._wrong.get(vhost, [])]

    def samples(self, vhost: str, queue: str | None, step_s: int) -> list[Info]:
        """Return the samples of a vhost, or of a queue, so many seconds apart."""
        past = self._vhosts.get(vhost) if queue is None else self._queues.get((vhost, queue))
        return [] if past is None else past.ring.samples(step_s)

    # ---- streams -------------------------------------------------------------------------------

    async def stream(
        self, viewer: Viewer, user: str, topics: Sequence[str],
        lasts: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[bytes]:  # fmt: skip
        """Yield the events of these topics until the client leaves, `lasts` says that the user may
        no more, or `close`."""
        queues = {topic: key for topic in topics if (key := queue_of(topic)) is not None}
        self._streams.add(user)
        for key in queues.values():
            self._topics[key] = self._topics.get(key, 0) + 1
        self._wanted.set()
        number = 0
        try:
            yield RETRY
            while True:
                await asyncio.shield(self._ticked)
                if self._is_closed or not await lasts():
                    return
                pieces: list[bytes] = []
                number += 1
                for topic in topics:
                    data = self._data(viewer, queues.get(topic))
                    if data is not None:
                        pieces.append(
                            b"id: %d\nevent: %s\ndata: %s\n\n" % (number, topic.encode(), data)
                        )
                yield b"".join(pieces) or b": nothing is known\n\n"
        finally:
            self._streams.add(user, -1)
            for key in queues.values():
                self._topics[key] -= 1
                if not self._topics[key]:
                    del self._topics[key]

    def check_room(self, user: str) -> None:
        """Raise HttpError 503 if there are as many streams as there may be, of all or of a user."""
        total, own = self._streams.total, self._streams.of(user)
        if total >= STREAMS_MAX or own >= USER_STREAMS_MAX:
            error = HttpError(
                503, f"{total} streams of events are open, {own} of "
                f"user '{user}'; expected fewer than {STREAMS_MAX} and {USER_STREAMS_MAX}: close "
                "some pages of the dashboard",
            )  # fmt: skip
            error.headers["Retry-After"] = "10"
            raise error

    def _data(self, viewer: Viewer, key: tuple[str, str] | None) -> bytes | None:
        if key is None:
            return self.overview(viewer.vhosts(), sees_node=viewer.sees_all)
        if viewer.identity(key[0]) is None:
            return _json({"time": self._time_s, VHOST: key[0], "name": key[1], "error": "refused"})
        found = self._of_queues.get(key)
        return None if found is None else _json(found)


def _numbers(names: Mapping[str, str], row: Info) -> Sample:
    """Return the members of the row that are numbers, by other names."""
    found = {name: dug(row, path) for name, path in names.items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _href(*names: str) -> str:
    return "#/" + "/".join(quote(name, safe="") for name in names)


def _place_of(kind: str, vhost: str | None) -> str:
    """Return where the dashboard shows a problem of `status`."""
    return _href("vhosts", vhost) if kind == VHOST and vhost is not None else _href("alarms")


def _said(level: str, text: str, do: str, href: str, finding: Info | None = None) -> Info:
    found: Info = {"level": level, "text": text, "do": do, "href": href}
    if finding is not None and finding["since"]:
        found["since"] = datetime.fromisoformat(finding["since"]).timestamp()
    return found


def _json(value: object) -> bytes:
    return json.dumps(to_json(value), separators=(",", ":")).encode()


def queue_of(topic: str) -> tuple[str, str] | None:
    """Return the (vhost, queue) of a topic; None if it is the overview. Raises HttpError 400."""
    parts = topic.split(":")
    if parts == [OVERVIEW]:
        return None
    if len(parts) != 3 or parts[0] != QUEUE or not topic.isprintable() or not topic.isascii():
        raise HttpError(
            400, f"topics: given {topic!r:.80}, expected overview, or queue:VHOST:NAME with both "
            "percent-encoded, separated by commas",
        )  # fmt: skip
    vhost, name = (unquote_to_bytes(one).decode("utf-8", "surrogateescape") for one in parts[1:])
    return vhost, name
