"""The figures of the broker, and of RabbitMQ in the same run on the same machine.

The brokers take turns: each cell is measured on one after the other, and then all of it again, so
that whatever else the machine does meets all alike. What is compared is CPU of the server's whole
process tree per message; messages per second of wall clock stand beside it. Penstock runs as
installed (compiled) and as plain Python, in the durability modes `disk` and `os`; RabbitMQ with its
package's defaults, which confirm a persistent message after writing it, without waiting for a sync
of each. Which cells there are is in broker_cells.py; goals and tables are in broker_report.py.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import load
import rabbitmq
from broker_cells import (
    ACKS,
    DURABLE,
    FAN_OUT,
    QUEUE,
    Cell,
    digest,
    many_queues,
    measured,
    merged,
    persistent,
    shapes,
    transient,
    warm_up,
)
from brokers import Broker
from memory_limit import MemoryLimit
from penstock_node import PenstockNode
from runner import Result, Runner

MILLION = 1_000_000
LIMIT_BYTES = 256 << 20
LITTLE = "32MiB"  # --memory of the server that keeps a backlog on disk
SETTLE_S = 3


class BrokerBench(Runner):
    """Scenarios over brokers that run side by side; `figures` by the name of the scenario."""

    script = ""

    def __init__(self, data: Path, *, is_quick: bool, say: Callable[[str], None]) -> None:
        super().__init__(data, is_quick=is_quick, say=say)
        self._nodes: dict[str, Broker] = {}

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {
            "transient": self.transient, "persistent": self.persistent, "shapes": self.shapes,
            "queues": self.many_queues, "latency": self.latency, "million": self.million,
            "fanout": self.fan_out, "limit": self.limit,
        }  # fmt: skip

    # --- the brokers ---

    def nodes(self) -> dict[str, Broker]:
        """All of them, started when first asked for."""
        if not self._nodes:
            load.build()
            self.say("starting the brokers")
            there: list[Broker] = [
                PenstockNode(self.data / f"{mode}{'-pure' * is_pure}", mode, is_pure=is_pure)
                for is_pure in (False, True)
                for mode in ("disk", "os")
            ]
            missing = rabbitmq.install()
            if missing:
                self.say(f"without RabbitMQ: {missing}")
            else:
                there.append(rabbitmq.RabbitMQ(self.data / "rabbitmq"))
            for node in there:
                self._nodes[node.name] = node
                node.start()
                step = warm_up(self.pick(0.25, 1.0))
                node.load()(step.mode, *step.options)
            self.figures["versions"] = {node.name: node.version for node in there}
        return self._nodes

    def chosen(self, *, modes: str = "disk os", with_pure: bool = True) -> list[Broker]:
        """Some of them: Penstock in these modes, RabbitMQ always."""
        return [
            node
            for node in self.nodes().values()
            if not isinstance(node, PenstockNode)
            or (node.mode in modes.split() and (with_pure or not node.is_pure))
        ]

    def end(self) -> None:
        for node in self._nodes.values():
            node.end()

    # --- CPU per message ---

    def transient(self) -> None:
        """Four sizes, with and without acks. Durability does not matter to them."""
        self._cells(transient(self.pick(0.25, 1.0)), modes="disk")

    def persistent(self) -> None:
        """Confirms and acks; a backlog in and out. In both modes."""
        self._cells(persistent(self.pick(0.3, 1.0)), modes="disk os")

    def shapes(self) -> None:
        """Varied messages, several producers and consumers, fan-out."""
        self._cells(shapes(self.pick(0.3, 1.0)), modes="disk")

    def many_queues(self) -> None:
        """A thousand queues."""
        self._cells([many_queues(self.pick(200, 1000))], modes="disk", runs=1)

    def _cells(self, cells: list[Cell], *, modes: str, runs: int = 0) -> None:
        """Each cell on each broker, in turn, so often."""
        rows: dict[str, dict[str, list[Result]]] = {}
        for run in range(runs or self.pick(1, 3)):
            for cell in cells:
                for node in self.chosen(modes=modes):
                    self.say(f"{cell.group}: {cell.steps[0].what}; {node.name}, run {run + 1}")
                    for what, found in measured(node, cell).items():
                        rows.setdefault(what, {}).setdefault(node.name, []).append(found)
        self.figures[cells[0].group] = [
            {"what": what, "peers": {name: merged(found) for name, found in peers.items()}}
            for what, peers in rows.items()
        ]

    # --- latency ---

    def latency(self) -> None:
        """5,000 messages/s: idle, while a backlog is built, with 1 % large bodies."""
        seconds = self.pick(2, 4)
        rows: dict[str, dict[str, list[Result]]] = {}
        for run in range(self.pick(1, 3)):
            for what, options, is_crowded in (
                ("transient, idle", (), False),
                ("persistent, confirms, idle", DURABLE, False),
                ("transient, 1 % of 256 KiB", ("--large", 256 << 10), False),
                ("transient, while a backlog is built", (), True),
            ):
                for node in self.chosen(modes="disk", with_pure=False):
                    self.say(f"latency: {what}; {node.name}, run {run + 1}")
                    found = self._latency(node, seconds, options, is_crowded=is_crowded)
                    rows.setdefault(what, {}).setdefault(node.name, []).append(found)
        self.figures["latency"] = [{"what": what, "peers": peers} for what, peers in rows.items()]

    def _latency(
        self, node: Broker, seconds: int, options: tuple[object, ...], *, is_crowded: bool
    ) -> Result:
        run = node.load()
        shape = ("-q", f"{QUEUE}.latency", "-s", 256, "-r", 5000, "-n", 5000 * seconds, "-k", 1)
        if not is_crowded:
            return digest(run("latency", *shape, *ACKS, *options, "--delete-after"))
        # As fast as it goes, and more than can be published meanwhile: it is ended with its queue.
        crowd = ("-q", f"{QUEUE}.crowd", "-d", "-D", "-w", 1000, "-s", 256, "-n", 50 * MILLION)
        beside = run.begin("publish", *crowd)
        try:
            time.sleep(0.5)
            found = run("latency", *shape, *ACKS, *options, "--delete-after")
            still = beside.poll() is None
        finally:
            beside.kill()
            beside.wait()
            run("delete", "-q", f"{QUEUE}.crowd")
        return {**digest(found), "was_building": still}

    # --- a million messages ---

    def million(self) -> None:
        """RAM and disk of a backlog; how soon after a stop and a kill -9 the first one comes."""
        count = self.pick(50_000, MILLION)
        self.nodes()
        little = PenstockNode(self.data / "little", "disk", is_pure=False, memory=LITTLE)
        self._nodes[little.name] = little  # so that it is ended whatever happens
        self.figures["million"] = [
            {"peer": node.name, "count": count, **self._million(node, count)}
            for node in self.chosen(modes="disk", with_pure=False)
        ]
        self._nodes.pop(little.name).end()

    def _million(self, node: Broker, count: int) -> Result:
        name = ("-q", f"{QUEUE}.million")
        shape = ("-n", count, "-s", 256)
        self.say(f"{count:,} x 256 B: published; {node.name}")
        if node.is_running:
            node.restart()
        else:
            node.start()
        node.load()("declare", *name, "-d")
        time.sleep(SETTLE_S)
        rss, anonymous = node.memory()
        published = node.load()("publish", *name, *shape, *DURABLE)
        time.sleep(SETTLE_S)
        found: Result = {
            "publish": digest(published),
            "ram_per_message": (node.memory()[0] - rss) / count,
            "anonymous_per_message": (node.memory()[1] - anonymous) / count,
            "disk_per_message": node.disk() / count,
        }
        for what, ended in (("stop", node.stop), ("kill", node.kill)):
            self.say(f"{count:,} x 256 B: {what}, then the first message; {node.name}")
            ended()
            started = time.monotonic()
            node.start()
            is_there = node.load().can_get(f"{QUEUE}.million", "-s", 256)
            found[f"first_s_after_{what}"] = time.monotonic() - started if is_there else None
        self.say(f"{count:,} x 256 B: drained; {node.name}")
        # With the same -n every confirmed message must be there.
        found["drain"] = digest(node.load()("consume", *name, "--passive", *shape, *ACKS))
        node.load()("delete", *name)
        return found

    def fan_out(self) -> None:
        """Disk of a message of 1 KiB that went to ten queues, log included."""
        rows = []
        for node in self.chosen(modes="disk", with_pure=False):
            is_ours = isinstance(node, PenstockNode)
            count = self.pick(5_000, 400_000 if is_ours else 20_000)
            self.say(f"{count:,} x 1 KiB to ten queues; {node.name}")
            fan = ("-q", f"{QUEUE}.fan", *FAN_OUT, "-d")
            shape = ("-n", count, "-s", 1024)
            node.load()("declare", *fan)
            published = node.load()("publish", *fan, *shape, "-D", "-w", 1000)
            if isinstance(node, PenstockNode):
                node.checkpoint()
            time.sleep(SETTLE_S)
            row = {"disk_per_message": node.disk() / count, "publish": digest(published)}
            node.load()("delete", *fan)
            rows.append({"peer": node.name, "count": count, **row})
        self.figures["fanout"] = rows

    # --- little memory ---

    def limit(self) -> None:
        """Two million messages of 1 KiB through a server that may have 256 MiB."""
        count = self.pick(100_000, 2 * MILLION)
        with MemoryLimit("penstock-bench", LIMIT_BYTES) as limit:
            if limit.reason:
                self.say(f"no limit of memory: {limit.reason}")
                self.figures["limit"] = {"reason": limit.reason}
                return
            with self._limited(limit) as node:
                self.say(f"{count:,} x 1 KiB within {LIMIT_BYTES >> 20} MiB")
                name, shape = ("-q", f"{QUEUE}.limit"), ("-n", count, "-s", 1024)
                published = node.load()("publish", *name, *shape, *DURABLE)
                is_alive = node.is_running
                found = {"count": count, "limit": LIMIT_BYTES, "publish": digest(published)}
                if is_alive:
                    drained = node.load()("consume", *name, "--passive", *shape, *ACKS)
                    found["drain"] = digest(drained)
                    found["rss"] = node.memory()[0]
                found["most_bytes"] = limit.most_bytes()
                self.figures["limit"] = found

    @contextmanager
    def _limited(self, limit: MemoryLimit) -> Iterator[PenstockNode]:
        load.build()
        node = PenstockNode(self.data / "limit", "disk", is_pure=False)
        node.cgroup = limit.path
        try:
            node.start()
            yield node
        finally:
            node.end()
