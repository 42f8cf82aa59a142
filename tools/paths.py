"""How far a message travels through the source: modules, calls and moves of each important path.

    PYTHONPATH=src .venv-pure/bin/python tools/paths.py [--modules] [PATH ...]

Each path is run for real on a vhost (or the library) and traced from its first call to its last.
Only functions of the package count, and only the uncompiled build can be traced. What is counted:

    modules   different modules that a function was called in
    calls     calls of functions (comprehensions and lambdas count as part of their function)
    moves     calls that lead from one module into another
    json      texts of JSON that are made; if more are read than made, one is read twice

A path is run a few times before it is traced, so what is cached is cached. Limits stand in
pyproject.toml, [tool.penstock.paths]; tests/test_paths.py compares.
"""

import argparse
import asyncio
import io
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import penstock  # noqa: E402
from penstock import operation_json  # noqa: E402
from penstock.broker import operations  # noqa: E402
from penstock.broker.in_flight import InFlight  # noqa: E402
from penstock.cli.main import main as cli_main  # noqa: E402
from penstock.clock import ManualClock, SystemClock  # noqa: E402
from penstock.codec.frames import content_frames, method_frame  # noqa: E402
from penstock.codec.properties import BasicProperties  # noqa: E402
from penstock.codec.spec import (  # noqa: E402
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.config import Config  # noqa: E402
from penstock.queues.priority_queue import open_backing  # noqa: E402
from penstock.queues.queue_ram import CHECKS  # noqa: E402
from penstock.server import control  # noqa: E402
from penstock.server.control import NAME, ControlClient  # noqa: E402
from penstock.server.node_operations import NodeOperations  # noqa: E402
from penstock.server.polling_loop import polling_loop  # noqa: E402
from penstock.server.process_link import ControlServer, ProcessLink  # noqa: E402
from penstock.server.vhost_process import VhostProcess  # noqa: E402
from penstock.server.watched_process import RUNNING  # noqa: E402
from penstock.server.watched_vhost import WatchedVhost  # noqa: E402
from penstock.storage.engine import StorageEngine  # noqa: E402
from penstock.storage.files.options import StorageOptions  # noqa: E402
from tests.helpers.broker_rig import BrokerRig, RigClient  # noqa: E402

PACKAGE = str(Path(penstock.__file__).parent) + "/"
LOOP = ("server.poller", "server.polling_loop")
PERSISTENT = 2
BODY = b"x" * 256
ROUNDS = 30  # of each call of the library
PAGED = 200  # messages that overflow a queue of PAGED_BYTES
PAGED_BYTES = 16 << 10


# The simulated disk need not hold log segments of the usual size. All else is as users have it.
OPTIONS = StorageOptions(
    wal_segment_bytes_min=1 << 20, wal_segment_bytes_max=1 << 20, disk_free_limit=0
)


# orjson, which operation_json asks first, has no frame of its own.
MADE = (operation_json._text_of.__code__, json.JSONEncoder.encode.__code__)
READ = json.JSONDecoder.decode.__code__


@dataclass
class Trace:
    """What was seen of one path. modules: calls in each, by its name, in the order met."""

    modules: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    moves: int = 0
    json: int = 0
    read: int = 0  # texts of JSON

    def see(self, frame: FrameType, event: str, _arg: object) -> None:
        """A profile function for sys.setprofile."""
        if event != "call":
            return
        caller = frame.f_back
        self.json += frame.f_code in MADE and (caller is None or caller.f_code not in MADE)
        self.read += frame.f_code is READ
        module = module_of(frame)
        if module is None or module in LOOP or frame.f_code.co_name.startswith("<"):
            return
        self.calls += 1
        self.modules[module] = self.modules.get(module, 0) + 1
        while caller is not None:
            above = module_of(caller)
            if above is not None:
                self.moves += above != module and above not in LOOP  # which calls everything
                return
            caller = caller.f_back

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace what runs inside."""
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)


def module_of(frame: FrameType) -> str | None:
    """The module of a frame, as "broker.publish"; None if it is not of the package."""
    path = frame.f_code.co_filename
    if not path.startswith(PACKAGE):
        return None
    return path.removeprefix(PACKAGE).removesuffix(".py").replace("/", ".")


# ---- the broker --------------------------------------------------------------------------------


def publisher(rig: BrokerRig, **arguments: Any) -> RigClient:
    """A client with a durable queue q and confirms."""
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q", durable=True, arguments=arguments), QueueDeclareOk)
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    return client


def publish_bytes() -> bytes:
    """The frames of a persistent message for q."""
    method = BasicPublish(exchange="", routing_key="q")
    props = BasicProperties(delivery_mode=PERSISTENT).encode()
    return method_frame(1, method.encode()) + content_frames(1, props, BODY, 131072)


PUBLISH = publish_bytes()


def trace_publish(traces: dict[str, Trace]) -> None:
    """publish: from the bytes to appended. confirm: the turn and the sync until its basic.ack."""
    rig = BrokerRig(storage=OPTIONS)
    client = publisher(rig)
    for _ in range(3):
        client.handler.receive(PUBLISH)
        rig.turn()
    client.pump()
    with traces["publish"].running():
        client.handler.receive(PUBLISH)
    with traces["confirm"].running():
        rig.turn()
    client.pump()
    assert len(client.methods(BasicAck)) == 4


def trace_deliver(traces: dict[str, Trace]) -> None:
    """deliver: a turn in which a ready message goes to a consumer. ack: its basic.ack."""
    rig = BrokerRig(storage=OPTIONS)
    client = publisher(rig)
    consumer = rig.client().open(1)
    consumer.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consumer.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    for _ in range(4):
        client.handler.receive(PUBLISH)
    rig.turn()
    for n in range(1, 4):
        ack = consumer.protocol.send(1, BasicAck(delivery_tag=n))
        trace = Trace()
        with trace.running():
            consumer.handler.receive(ack)
        traces["ack"] = trace
        trace = Trace()
        with trace.running():
            rig.vhost.turn()
        traces["deliver"] = trace
    assert len(consumer.messages()) == 4


def trace_page_out(traces: dict[str, Trace]) -> None:
    """page_out: the publish after which the queue pages out, as far as that publish does it."""
    rig = BrokerRig(storage=OPTIONS)
    client = publisher(rig, **{"x-queue-max-memory-bytes": PAGED_BYTES})
    most = Trace()
    for _ in range(PAGED):
        trace = Trace()
        with trace.running():
            client.handler.receive(PUBLISH)
        if trace.calls > most.calls and "queues.paging" in trace.modules:
            most = trace
        rig.turn()
    traces["page_out"] = most


def trace_recovery(traces: dict[str, Trace]) -> None:
    """recovery: the engine opens after a crash, and a queue with some messages on it."""
    rig = BrokerRig(storage=OPTIONS)
    client = publisher(rig)
    for _ in range(10):
        client.handler.receive(PUBLISH)
    rig.turn()
    fs = rig.fs.crash("lost")
    path = rig.vhost.path
    with traces["recovery"].running():
        engine = StorageEngine(
            fs, path, b"/", clock=ManualClock(), rng=random.Random(1), options=OPTIONS
        )
        queue = open_backing(engine, b"q")
    assert queue.len() == 10


# ---- the library -------------------------------------------------------------------------------


def trace_library(traces: dict[str, Trace]) -> None:
    """put, get and job_ack of the blocking library, in mode `os`.

    The box has a thread of its own, and now and then a call writes what others left for it. So each
    call is made ROUNDS times, and the shortest trace counts.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        penstock.open(directory, durability="os") as box,
    ):
        queue = box.queue("q")
        for _ in range(ROUNDS):
            keep_shortest(traces, "put", lambda: queue.put(BODY))
            jobs: list[penstock.Job] = []
            keep_shortest(traces, "get", lambda jobs=jobs: jobs.append(queue.get()))
            keep_shortest(traces, "job_ack", jobs[0].ack)


def keep_shortest(traces: dict[str, Trace], name: str, call: Callable[[], None]) -> None:
    """Trace a call, and keep the trace if it is the shortest of this name so far."""
    trace = Trace()
    with trace.running():
        call()
    if not traces[name].calls or trace.calls < traces[name].calls:
        traces[name] = trace


# ---- an operator -------------------------------------------------------------------------------


class DrivenSocket:
    """A blocking socket whose other end is on this thread's loop, which runs until there is
    something to receive."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.sock = sock
        self.loop = loop

    def sendmsg(self, buffers: control.Packet) -> int:
        return self.sock.sendmsg(buffers)

    def recv(self, size: int) -> bytes:
        arrived = asyncio.Event()
        self.loop.add_reader(self.sock, arrived.set)
        self.loop.run_until_complete(arrived.wait())
        self.loop.remove_reader(self.sock)
        return self.sock.recv(size)

    def close(self) -> None:
        self.sock.close()


def trace_verb(traces: dict[str, Trace]) -> None:
    """verb: `penstock purge_queue` from its arguments to the operation's function, through the
    control socket, the supervisor and the vhost's process, and back to the line that it prints.
    What the function does is not part of it."""
    rig = BrokerRig(storage=OPTIONS)
    loop = polling_loop()
    loop.poller.pass_seconds = SimpleNamespace(record=float)  # type: ignore[assignment]
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.dict(operations.FUNCTIONS, {"purge_queue": lambda call: call.reply({"messages": 3})}),
        patch.object(asyncio, "get_running_loop", lambda: loop),
    ):
        above, below = control.pair()
        vhost = VhostProcess.__new__(VhostProcess)
        vhost._vhost, vhost._loop, vhost._ended = rig.vhost, loop, loop.create_future()
        vhost._hub, vhost._in_flight = SimpleNamespace(wake=int), InFlight(time.monotonic)
        links = [ProcessLink(below, print, on_call=vhost._on_call), ProcessLink(above, print)]
        watched = WatchedVhost("/", "", Config(), SystemClock(), print)
        watched._state, watched._link = RUNNING, links[1]
        node = SimpleNamespace(vhost=lambda _: watched, is_known=bool, vhosts={"/": watched})
        server = ControlServer(f"{directory}/{NAME}", NodeOperations(node).call, print)
        server.start()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(server.path)
        with (
            patch.object(ControlClient, "_connected", lambda _: DrivenSocket(sock, loop)),
            patch.object(sys, "stdout", io.StringIO()) as printed,
        ):
            for _ in range(3):
                trace = Trace()
                with trace.running():
                    cli_main(["purge_queue", "--yes", "q", "--data", directory])
            traces["verb"] = trace
            assert printed.getvalue() == "3 messages purged from queue 'q'\n" * 3
        sock.close()
        loop.run_until_complete(server.stop())
        for link in links:
            link.close()
        loop.close()


PATHS: dict[str, Callable[[dict[str, Trace]], None]] = {
    "publish": trace_publish,
    "confirm": trace_publish,
    "deliver": trace_deliver,
    "ack": trace_deliver,
    "page_out": trace_page_out,
    "recovery": trace_recovery,
    "put": trace_library,
    "get": trace_library,
    "job_ack": trace_library,
    "verb": trace_verb,
}


def trace_all() -> dict[str, Trace]:
    """Trace all paths, each on a vhost or box of its own. Checks of invariants, which tests switch
    on, are off meanwhile."""
    traces = {name: Trace() for name in PATHS}
    was_on, CHECKS.is_on = CHECKS.is_on, False
    try:
        for run in dict.fromkeys(PATHS.values()):
            run(traces)
    finally:
        CHECKS.is_on = was_on
    return traces


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="Modules, calls and moves of each path.")
    parser.add_argument("--modules", action="store_true", help="name the modules, too")
    parser.add_argument("path", nargs="*", metavar="PATH", help=f"of {', '.join(PATHS)} [all]")
    given = parser.parse_args()
    if penstock.build_kind() != "pure":
        sys.exit("paths: this is the compiled build, which cannot be traced; use .venv-pure")
    for name, trace in trace_all().items():
        if given.path and name not in given.path:
            continue
        print(
            f"{name:10} {len(trace.modules):3} modules {trace.calls:5} calls {trace.moves:4} moves"
            f"{trace.json:4} json{trace.read:4} read"
        )
        if given.modules:
            for module, calls in trace.modules.items():
                print(f"{'':12}{calls:4}  {module}")


if __name__ == "__main__":
    main()
