"""Whatever one user without the tag administrator asks for, in any order: the budget holds.

Hypothesis draws sequences of requests from all methods of AMQP, all operations of penstock.call and
all addresses of the HTTP API, with names, numbers, tables and bodies that are right, wrong, and far
too large. They go to one real broker of 64 MiB, one sequence after the other; what they leave
behind stays. After each of them:

* every process of the broker is the one that was started, and its resident memory is at most the
  budget and 96 MiB;
* no iteration of the vhost's loop took more than 50 ms of CPU (a compiled build; ITERATION_S);
* what is not the user's is as it was: queues, exchanges, bindings, users, permissions, limits;
* another client publishes, with a confirm, and gets its message back.

Sequences are not made smaller when one fails: what others have left is part of it.
HYPOTHESIS_PROFILE says how many there are: 25, 60 (ci) or 1,000 (nightly, as
`make crash` has it).
"""

import base64
import contextlib
import http.client
import json
import os
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pamqp import commands

import penstock
from penstock.broker.operations import OPERATIONS
from penstock.codec.frames import content_frames, method_frame
from penstock.codec.method import Method
from penstock.codec.spec import (
    METHODS,
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ExchangeDeclare,
    ExchangeDelete,
    PenstockCall,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tests.helpers.live_broker import LiveBroker, external_broker, memory_bytes
from tests.helpers.wire import Ended, Wire, open_channel

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

MIB = 1 << 20
BUDGET_BYTES = 64 * MIB
RESIDENT_BYTES_MAX = BUDGET_BYTES + 96 * MIB
# Uncompiled source needs up to ten times the CPU of compiled code for the same work.
ITERATION_S = 0.05 if penstock.build_kind() == "compiled" else 0.5
EXAMPLES = {"dev": 25, "ci": 60, "nightly": 1000}[os.environ.get("HYPOTHESIS_PROFILE", "dev")]
STEPS_MIN, STEPS_MAX = 10, 40

NAMES = ("eve.a", "eve.b", "eve.s", "eve.x", "other.q", "other.x", "amq.direct", "amq.topic",
         "amq.headers", "amq.fanout", "", "eve." + "n" * 250, "eve.\udcff\n")  # fmt: skip
PATTERNS = {"configure": r"^eve\.", "write": r"^eve\.", "read": r"^(eve\.|amq\.)"}
CONNECTION_CLOSE, CHANNEL_CLOSE = b"\0\x0a\0\x32", b"\0\x14\0\x28"
PERSISTENT, TRANSIENT = b"\x10\x00\x02", b"\0\0"

# ---- what is drawn -------------------------------------------------------------------------------

names = st.sampled_from(NAMES)
keys = st.sampled_from(("", "eve.a", "other.q", "a.b.c", "#", "*.b.#", "#.#.#.#.#.#.a", "k" * 255))
numbers = st.sampled_from((0, 1, 2, 7, 255, 256, 65_535, 100_000, (1 << 31) - 1, -1, 1 << 40))


def nested(depth: int) -> dict[str, object]:
    table: dict[str, object] = {}
    for _ in range(depth):
        table = {"t": table}
    return table


TABLES: tuple[dict[str, object], ...] = (
    {}, {}, {}, {}, {"x-max-priority": 255}, {"x-max-length": 1}, {"x-message-ttl": 0},
    {"x-expires": 50}, {"x-dead-letter-exchange": "eve.x"}, {"x-dead-letter-exchange": "other.x"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "eve.a"},
    {"x-queue-type": "stream"}, {"x-queue-type": "stream", "x-partitions": 8},
    {"x-queue-type": "quorum", "x-delivery-limit": 1}, {"x-single-active-consumer": True},
    {"alternate-exchange": "other.x"}, {"alternate-exchange": "eve.x"}, {"x-delayed-type": "topic"},
    {"x-match": "any", "a": 1}, {"x-match": "all", "a": None}, {"x-stream-offset": "first"},
    {"x-priority": 5}, {"x-delay": 100}, {"x-overflow": "reject-publish", "x-max-length": 1},
    nested(30), nested(200), {f"{n:x}": None for n in range(1500)},
    {f"{n:x}": n for n in range(8000)}, {"s": "y" * 100_000},
)  # fmt: skip
TYPES = ("direct", "fanout", "topic", "headers", "x-delayed-message", "none")
OPS = (*OPERATIONS, "no.operation")
SAID = (*METHODS.values(),)


def value_of(name: str, default: object) -> st.SearchStrategy[Any]:
    """A value for a field of this name, whose default has its type."""
    if name == "type":
        return st.sampled_from(TYPES)
    if name == "routing_key":
        return keys
    if name in ("op", "mechanism"):
        return st.sampled_from(OPS)
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, int):
        return numbers
    if isinstance(default, dict):
        return st.sampled_from(TABLES)
    if isinstance(default, bytes):
        return st.sampled_from((b"", b"{}", b'{"queue": "other.q"}', b"\xff" * 100))
    return names


def methods() -> st.SearchStrategy[Method]:
    """Any method with any fields."""
    return st.sampled_from(SAID).flatmap(
        lambda kind: st.fixed_dictionaries(
            {name: value_of(name, default) for name, default in vars(kind()).items()}
        ).map(lambda fields: kind(**fields))
    )


args = st.dictionaries(
    st.sampled_from((
        "queue", "exchange", "name", "arguments", "routing_key", "body", "count", "reader", "query",
        "batch", "tokens", "target", "source", "destination", "type", "offset", "durable", "path",
        "to", "tags", "requeue", "limit", "transaction", "bodies", "channel", "after", "partition",
    )),
    st.one_of(
        names, numbers, st.booleans(), st.none(), st.sampled_from(TABLES[:26]),
        st.sampled_from(([], ["eve.a"], [1, 2], [["eve.a", "b"]], {"b64": "AAAA"}, "\ud800")),
    ),
    max_size=6,
)  # fmt: skip
ADDRESSES = (
    "/health", "/api/overview", "/api/streams/{v}", "/api/streams/{v}/{n}",
    "/api/streams/{v}/{n}/records", "/api/streams/{v}/{n}/readers/{n}", "/api/leases/{v}/{n}/{n}",
    "/api/queries/{v}/{n}/batches/{k}", "/api/staging/{v}/{n}/{k}/{k}/{k}", "/api/{n}", "/{n}",
    "/api/streams/{v}/{n}/records?offset={k}&count={k}",
)  # fmt: skip

# What a client would really ask for, so that the rest finds something to be wrong about.
mine = st.sampled_from(("eve.a", "eve.b", "eve.s"))
small = st.sampled_from(TABLES[:20])
SENSIBLE: tuple[st.SearchStrategy[Method], ...] = (
    st.builds(QueueDeclare, queue=mine, durable=st.booleans(), arguments=small),
    st.builds(QueueDeclare, queue=st.integers(0, 500).map("eve.{}".format)),
    st.builds(QueueDeclare, queue=st.just("eve.s"), durable=st.just(True),
              arguments=st.just({"x-queue-type": "stream"})),
    st.builds(ExchangeDeclare, exchange=st.just("eve.x"),
              type=st.sampled_from(TYPES[:4]), arguments=st.just({})),
    st.builds(ExchangeDelete, exchange=st.just("eve.x")),
    st.builds(QueueBind, queue=mine, exchange=st.sampled_from(("eve.x", "amq.topic")),
              routing_key=keys, arguments=st.sampled_from(TABLES)),
    st.builds(QueueDelete, queue=mine),
    st.builds(QueuePurge, queue=mine),
    st.builds(BasicConsume, queue=mine, no_ack=st.booleans(), arguments=small),
    st.builds(BasicGet, queue=mine, no_ack=st.booleans()),
    st.builds(BasicQos, prefetch_count=st.sampled_from((0, 1, 1000))),
    st.builds(BasicNack, delivery_tag=st.just(0), multiple=st.just(True), requeue=st.booleans()),
    st.builds(BasicAck, delivery_tag=st.just(0), multiple=st.just(True)),
    st.builds(BasicRecover, requeue=st.just(True)),
    st.builds(TxSelect), st.builds(TxCommit), st.builds(TxRollback), st.builds(ConfirmSelect),
)  # fmt: skip
# What there is again on each of her connections, so that what is published goes somewhere.
FIRST: tuple[Method, ...] = (
    ExchangeDeclare(exchange="eve.x", type="topic", nowait=True),
    QueueDeclare(queue="eve.a", durable=True, nowait=True),
    QueueDeclare(queue="eve.b", nowait=True),
    QueueBind(queue="eve.a", exchange="eve.x", routing_key="#", nowait=True),
    QueueBind(queue="eve.b", exchange="eve.x", routing_key="#", nowait=True),
)
sensible = st.tuples(st.just("method"), st.integers(1, 4), st.one_of(*SENSIBLE))
published = st.tuples(
    st.just("publish"), st.integers(1, 4), st.sampled_from(("eve.x",) * 9 + ("amq.topic", "")),
    keys, st.sampled_from((0, 100, 1000, 70_000, 900_000, 3 << 20)),
    st.sampled_from((1, 20, 500, 5000)), st.booleans(),
)  # fmt: skip

steps = st.one_of(
    *(sensible,) * 8, *(published,) * 6,
    st.tuples(st.just("method"), st.integers(1, 4), methods()),
    st.tuples(
        st.just("begin"), st.integers(1, 4), st.sampled_from((100, 60_000, 900_000, 1 << 30))
    ),
    st.tuples(st.just("call"), st.integers(1, 4), st.sampled_from(OPS), args),
    st.tuples(st.just("open"), st.integers(1, 200)),
    st.tuples(
        st.just("http"), st.sampled_from(("GET", "PUT", "POST", "DELETE", "HEAD")),
        st.sampled_from(ADDRESSES), names, numbers, st.sampled_from((0, 10, 100_000, 3 << 20)),
    ),
    st.tuples(st.just("bytes"), st.binary(max_size=200)),
    st.tuples(st.just("again")),
)  # fmt: skip


# ---- who asks ------------------------------------------------------------------------------------


class Eve:
    """One user and her connection, which is made again when the broker has ended it."""

    def __init__(self, broker: LiveBroker) -> None:
        self.broker = broker
        self.wire: Wire | None = None
        self._unread = b""

    def connect(self) -> Wire:
        if self.wire is None:
            wire = Wire(self.broker)
            wire.hello()
            wire.log_in("eve", "eve")
            wire.agree()
            wire.send(commands.Connection.Open(virtual_host="/"))
            wire.expect(commands.Connection.OpenOk)
            for number in range(1, 5):
                wire.channel(number)
            self._unread = b""
            for method in FIRST:
                wire.send_raw(method_frame(4, method.encode()))
            wire.sock.setblocking(False)
            self.wire = wire
        return self.wire

    def close(self) -> None:
        if self.wire is not None:
            self.wire.sock.close()
            self.wire = None

    def say(self, data: bytes) -> None:
        """Send, and read what comes meanwhile. What the broker does not take is left out: it has
        stopped to read her."""
        wire = self.connect()
        view = memoryview(data)
        waits = 0
        try:
            while view and waits < 50:
                try:
                    view = view[wire.sock.send(view) :]
                except BlockingIOError:
                    waits += 1
                self.read(wire)
            if view:
                self.close()
        except (OSError, Ended):
            self.close()

    def read(self, wire: Wire) -> None:
        wire.sock.settimeout(0.001)
        try:
            while True:
                data = wire.sock.recv(1 << 18)
                if not data:
                    raise Ended
                self._heard(wire, self._unread + data)
        except TimeoutError:
            pass
        finally:
            wire.sock.setblocking(False)

    def _heard(self, wire: Wire, data: bytes) -> None:
        """A channel that was closed is opened again; a connection that is, ended."""
        at = 0
        while len(data) - at >= 8:
            end = at + 8 + int.from_bytes(data[at + 3 : at + 7])
            if end > len(data):
                break
            method = data[at + 7 : at + 11]
            if data[at] == 1 and method == CONNECTION_CLOSE:
                raise Ended
            if data[at] == 1 and method == CHANNEL_CLOSE:
                number = int.from_bytes(data[at + 1 : at + 3])
                again = (ChannelCloseOk(), ChannelOpen())
                wire.sock.send(b"".join(method_frame(number, m.encode()) for m in again))
            at = end
        self._unread = data[at:]

    def do(self, step: tuple[Any, ...]) -> None:
        kind = step[0]
        if kind == "method":
            with contextlib.suppress(ValueError, OverflowError, UnicodeEncodeError):
                self.say(method_frame(step[1], step[2].encode()))
        elif kind == "publish":
            _, number, exchange, key, size, count, is_persistent = step
            count = min(count, max(1, (8 << 20) // (size + 1)))
            props = PERSISTENT if is_persistent else TRANSIENT
            method = BasicPublish(exchange=exchange, routing_key=key).encode()
            one = method_frame(number, method) + content_frames(number, props, bytes(size), 131_072)
            self.say(one * count)
        elif kind == "begin":
            _, number, size = step
            method = method_frame(number, BasicPublish(exchange="eve.x").encode())
            content = content_frames(number, TRANSIENT, bytes(min(size, 200_000)), 8192)
            head = content[:11] + size.to_bytes(8) + content[19:]
            self.say(method + head[: 22 + 8192 * (len(head) // 16_384)])
        elif kind == "call":
            _, number, op, given_args = step
            data = json.dumps(given_args).encode("utf-8", "surrogatepass")
            self.say(method_frame(number, PenstockCall(op=op, arguments=data).encode()))
        elif kind == "open":
            for number in range(1, step[1] + 1):
                self.say(b"\x01" + number.to_bytes(2) + b"\0\0\0\x05\0\x14\0\x0a\0\xce")
        elif kind == "http":
            self.ask(*step[1:])
        elif kind == "bytes":
            self.say(step[1])
        else:
            self.close()

    def ask(self, method: str, address: str, name: str, number: int, size: int) -> None:
        """One request over HTTP."""
        said = quote(name.encode("utf-8", "surrogateescape"), safe="")
        path = address.replace("{v}", "%2F").replace("{n}", said).replace("{k}", str(number))
        token = base64.b64encode(b"eve:eve").decode()
        headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(
            self.broker.host, self.broker.http_port or 0, timeout=30
        )
        try:
            connection.request(method, path, bytes(size), headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status != 500, (method, path, self.broker.log_text())
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()


# ---- what must be as it was ----------------------------------------------------------------------


class World:
    """A broker with somebody else's things in it."""

    def __init__(self, broker: LiveBroker) -> None:
        self.broker = broker
        broker.control("add_user", None, name="eve", password="eve")
        broker.control("set_permissions", "/", user="eve", **PATTERNS)
        with open_channel(broker) as wire:
            wire.declare("other.q", durable=True, exclusive=False)
            exchange = commands.Exchange.Declare(exchange="other.x", durable=True)
            wire.ask(exchange, commands.Exchange.DeclareOk)
            wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
            for _ in range(3):
                wire.publish(1, "other.q", b"theirs", properties=PERSISTENT)
                wire.expect(commands.Basic.Ack, 1)
        self.pids = broker.pids()
        self.before = self.theirs()
        broker.control("loop", "/")

    def theirs(self) -> dict[str, object]:
        """Everything that is not Eve's."""
        control = self.broker.control
        found: dict[str, object] = {
            "users": control("list_users"),
            "permissions": control("list_permissions"),
            "limits": [control("list_user_limits"), control("list_vhost_limits")],
            "vhosts": [row["name"] for row in control("list_vhosts")],
            "queues": [
                (row["name"], row["messages"], row["arguments"])
                for row in control("list_queues", "/") if not row["name"].startswith("eve.")
            ],
            "exchanges": [
                row for row in control("list_exchanges", "/") if not row["name"].startswith("eve.")
            ],
            "bindings": [
                row for row in control("list_bindings", "/")
                if not row["destination_name"].startswith("eve.")
            ],
        }  # fmt: skip
        return found

    def check(self) -> None:
        broker = self.broker
        assert broker.pids() == self.pids, broker.log_text()
        with open_channel(broker) as wire:
            queue = wire.declare()
            wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
            wire.publish(1, queue, b"still served")
            wire.expect(commands.Basic.Ack, 1)
            wire.ask(commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
            assert wire.content()[1] == b"still served"
            wire.ask(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
        assert self.theirs() == self.before
        resident = {pid: memory_bytes(pid, "VmRSS") for pid in self.pids}
        assert max(resident.values()) <= RESIDENT_BYTES_MAX, (resident, broker.log_text())
        longest_s = broker.control("loop", "/")["longest_s"]
        assert longest_s <= ITERATION_S, (longest_s, broker.log_text())
        assert "internal_error" not in broker.log.read_text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if external_broker() is not None:
        pytest.skip("memory and loop are measured in Penstock's own processes")
    environment = {"PENSTOCK_MEASURE_LOOP": "1"}
    place = tmp_path_factory.mktemp("budget") / "data"
    with LiveBroker(place, "--memory", "64MiB", environment=environment, has_http=True) as broker:
        yield World(broker)
        assert broker.stop() == 0, broker.log_text()


@settings(max_examples=EXAMPLES, phases=[Phase.generate], derandomize=EXAMPLES < 100)
@given(sequence=st.lists(steps, min_size=STEPS_MIN, max_size=STEPS_MAX))
def test_no_sequence_of_requests_exceeds_the_budget(
    world: World, sequence: list[tuple[Any, ...]]
) -> None:
    eve = Eve(world.broker)
    try:
        for step in sequence:
            eve.do(step)
        world.check()
    finally:
        eve.close()


def test_the_measure_notices_an_iteration_that_computes() -> None:
    """The hook itself: CPU between two questions of the loop to its selector counts."""
    import asyncio

    from penstock.server.linked_process import polling_loop, take_longest_s

    async def compute() -> None:
        await asyncio.sleep(0)
        random.Random(1).randbytes(1 << 24)
        await asyncio.sleep(0)

    with asyncio.Runner(
        loop_factory=lambda: polling_loop({"PENSTOCK_MEASURE_LOOP": "1"})
    ) as runner:
        runner.run(compute())
        longest_s = take_longest_s(runner.get_loop())
        assert longest_s is not None
        assert longest_s > 0
        assert take_longest_s(runner.get_loop()) == 0.0
    with asyncio.Runner(loop_factory=lambda: polling_loop({})) as runner:
        assert take_longest_s(runner.get_loop()) is None
