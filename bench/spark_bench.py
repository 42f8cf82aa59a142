"""The figures of the Spark source, held against their goals, kept, rendered.

    make bench-spark                   all of it, about five minutes
    make bench-spark ARGS=--quick      the same with fewer rows
    make bench-spark ARGS='--only scan'
    make bench-spark ARGS='--only kafka --rows 20000 --cell micro'    some of the cells beside Kafka
    make bench-spark ARGS='--only kafka --save'                       all of them, kept and rendered

The scenarios are in spark_cells.py. A full run is appended to bench/results/spark.jsonl and
rendered to docs/reference/performance.md; the cells beside Kafka alone to kafka.jsonl.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import kafka
import load
import page
from cpu_group import CpuGroup
from measure import measure
from penstock_node import PenstockNode
from runner import ROOT, Result, Runner

CONFIRM_EVERY = 10_000


class SparkBench(Runner):
    """Scenarios of the Spark source; `figures` by what they measure."""

    script = "spark_cells.py"
    rows = 0
    cells: Collection[str] = ()

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {
            "arrow": self.arrow, "scan": self.scan, "parsing": self.parsing, "floor": self.floor,
            "network": self.network, "classic": self.classic, "sink": self.sink,
            "commit": self.commit, "kafka": self.beside_kafka,
        }  # fmt: skip

    def arrow(self) -> None:
        """Making batches, without Spark."""
        self.say("Arrow batches")
        self.figures["arrow"] = self.child("arrow", "arrow", count=1_000_000, runs=9)

    def scan(self) -> None:
        """Rows per second of each source."""
        self.say("scan: Penstock, Parquet, text, tuples")
        warm, runs = self.pick((1, 3), (2, 5))
        count = self.pick(400_000, 4_000_000)
        self.figures["scan"] = self.child("scan", "scan", count=count, warm=warm, runs=runs)

    def parsing(self) -> None:
        """What is left of a difference when JSON is parsed."""
        self.say("from_json: Penstock, Parquet")
        warm, runs = self.pick((1, 3), (1, 5))
        count = self.pick(300_000, 3_000_000)
        self.figures["parsing"] = self.child("parsing", "json", count=count, warm=warm, runs=runs)

    def floor(self) -> None:
        """The least that a micro-batch takes."""
        self.say("micro-batches")
        self.figures["floor"] = self.child("floor", "floor", batches=self.pick(15, 40))

    def network(self) -> None:
        """The same stream of a broker by files and by HTTP."""
        count = self.pick(200_000, 2_000_000)
        warm, runs = self.pick((1, 3), (2, 7))
        node = HttpNode(self.data / "node")
        self.say(f"network: {count:,} records are published")
        node.start()
        try:
            publish(node.port, count)
            self.say("network: by files, by HTTP")
            self.figures["network"] = self.child(
                "network", "network", count=count, warm=warm, runs=runs,
                url=f"amqp://guest:guest@127.0.0.1:{node.port}/",
                http_url=f"http://127.0.0.1:{node.http_port}",
            )  # fmt: skip
        finally:
            node.stop()

    def classic(self) -> None:
        """A classic queue as a source, and what leased messages cost in RAM."""
        count, runs = self.pick((200_000, 1), (1_000_000, 3))
        node = HttpNode(self.data / "node")
        self.say(f"classic queues: {runs + 1} of {count:,} messages are published")
        node.start()
        try:
            for run in range(runs + 1):
                fill(node.port, f"bench.{run}", count)
            self.say("classic queues: leased, read, acknowledged")
            found = self.child(
                "classic", "classic", count=count, runs=runs,
                url=f"amqp://guest:guest@127.0.0.1:{node.port}/",
                http_url=f"http://127.0.0.1:{node.http_port}",
            )  # fmt: skip
            self.say("classic queues: what leased messages cost")
            self.figures["classic"] = found | {"ram": self.leased_ram(node, 2 * count)}
        finally:
            node.stop()

    def leased_ram(self, node: "HttpNode", count: int) -> Result:
        """RSS of the broker's processes with so many messages ready, and with all of them leased;
        seconds that leasing and acknowledging took."""
        from penstock.spark.http_link import LEASES, HttpLink
        from penstock.spark.options import Place

        fill(node.port, "bench.ram", count)
        link = HttpLink(Place(f"http://127.0.0.1:{node.http_port}"), 600.0)
        lease = ("bench.ram", "bench")
        ready = node.memory()[0]
        started = time.monotonic()
        head = 0
        while head < count:
            part = {"messages": 1 << 18, "bytes": None}
            head = link.json("POST", lease, None, part, LEASES)["head"]
        leased = time.monotonic()
        rss = node.memory()[0]
        link.json("PUT", lease, None, {"committed": head}, LEASES)
        return {
            "count": count, "rss_ready": ready, "rss_leased": rss,
            "lease_seconds": leased - started, "commit_seconds": time.monotonic() - leased,
        }  # fmt: skip

    def sink(self) -> None:
        """Rows into a stream and into a queue, exactly once."""
        count = self.pick(200_000, 2_000_000)
        warm, runs = self.pick((1, 1), (1, 3))
        node = HttpNode(self.data / "node", "disk")
        node.start()
        try:
            self.say(f"sink: {count:,} rows into a stream, into a queue")
            self.figures["sink"] = self.child(
                "sink", "sink", script="sink_cells.py", count=count, warm=warm, runs=runs,
                **node.urls,
            )  # fmt: skip
        finally:
            node.stop()

    def commit(self) -> None:
        """What others feel of a large commit."""
        node = HttpNode(self.data / "node", "disk")
        node.start()
        try:
            size_mib = self.pick(64, 512)
            self.say(f"commit of {size_mib} MiB beside other clients")
            self.figures["commit"] = self.child(
                "commit", "commit", script="sink_cells.py", size_mib=size_mib,
                pids=node.below(), **node.urls,
            )  # fmt: skip
        finally:
            node.stop()

    def beside_kafka(self) -> None:
        """The cells that Kafka is measured in too, if Maven gives it."""
        found: Result = {"kafka": "", "why": ""}
        ours, its = HttpNode(self.data / "node", "disk"), None
        class_path = ""
        groups = {name: CpuGroup.make(f"penstock-{name}") for name in ("own", "penstock", "kafka")}
        paths = {name: str(group.path) for name, group in groups.items() if group.path}
        self.say("Kafka: asking Maven")
        try:
            server, connector = kafka.fetch(ROOT / "build" / "kafka")
            its, class_path = (
                kafka.KafkaNode(self.data / "kafka", server),
                kafka.for_spark(connector),
            )
            found["kafka"] = f"{kafka.SERVER}, connector {kafka.CONNECTOR}"
        except kafka.NoKafkaError as error:
            found["why"] = str(error)
            self.say(f"Kafka is left out: {error}")
        ours.cgroup = groups["penstock"].path
        try:
            if its:
                its.cgroup = groups["kafka"].path
                its.start()
            ours.start()
            warm, runs = self.pick((1, 1), (2, 3))
            self.say("Penstock beside Kafka" if its else "Penstock in the cells of Kafka")
            self.figures["kafka"] = found | self.child(
                "beside_kafka", "beside", script="kafka_cells.py", warm=warm, runs=runs,
                rows=self.rows or self.pick(100_000, 1_000_000), only=self.cells, groups=paths,
                pids={"penstock": ours.pid} | ({"kafka": its.pid} if its else {}),
                kafka=f"127.0.0.1:{its.port}" if its else "", class_path=class_path, **ours.urls,
            )  # fmt: skip
        finally:
            for node in (ours, its):
                if node:
                    node.end()
            for group in groups.values():
                group.remove()


class HttpNode(PenstockNode):
    """A broker with its HTTP process."""

    def __init__(self, data: Path, mode: str = "os") -> None:
        super().__init__(data, mode, is_pure=False)
        self.http_port = 0

    @property
    def urls(self) -> dict[str, str]:
        """Where it is, as scenarios want it."""
        return {
            "url": f"amqp://guest:guest@127.0.0.1:{self.port}/",
            "http_url": f"http://127.0.0.1:{self.http_port}",
        }

    def below(self) -> list[int]:
        """Its vhosts' processes and that of HTTP."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == self.pid:
                found.append(int(status.parent.name))
        return found

    def command(self) -> tuple[list[str], dict[str, str]]:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.http_port = free.getsockname()[1]
        command, environment = super().command()
        environment["PENSTOCK_HTTP_PORT"] = str(self.http_port)
        return command, environment


def publish(port: int, count: int) -> None:
    """A stream `bench` with so many records of 256 B."""
    import penstock

    body = bytes(range(256))
    with penstock.open(f"amqp://guest:guest@127.0.0.1:{port}/", durability="os") as box:
        stream = box.stream("bench")
        for _ in range(0, count, CONFIRM_EVERY):
            stream.append_many([body] * CONFIRM_EVERY)


def fill(port: int, queue: str, count: int) -> None:
    """A durable queue with so many persistent messages of 256 B."""
    import penstock

    body = bytes(range(256))
    with penstock.open(f"amqp://guest:guest@127.0.0.1:{port}/", durability="os") as box:
        made = box.queue(queue)
        for _ in range(0, count, CONFIRM_EVERY):
            made.put_many([body] * CONFIRM_EVERY)


def main() -> int:
    names = list(SparkBench(Path(), is_quick=True, say=print).scenarios())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--data", type=Path, default=ROOT / "run-data" / "bench-spark",
                        help="on the disk to measure; deleted afterwards")  # fmt: skip
    parser.add_argument("--only", action="append", default=[], choices=names)
    parser.add_argument("--rows", type=int, default=0, help="of each cell beside Kafka")
    parser.add_argument("--cell", action="append", default=[], help="a group of those cells",
                        choices=("scans", "parsing", "lake", "sinks", "micro", "many"))  # fmt: skip
    parser.add_argument("--save", action="store_true", help="keep the result of a quick run too")
    parser.add_argument("--no-save", action="store_true", help="do not keep that of a full run")
    given = parser.parse_args()
    SparkBench.rows, SparkBench.cells = given.rows, given.cell
    load.build()  # it tells whether a broker answers
    found = measure(SparkBench, given.data, is_quick=given.quick, only=given.only)
    is_full = not given.quick and not given.only
    part = "kafka" if given.only == ["kafka"] else "spark"
    if part == "kafka" and not given.quick:
        found["arguments"] = " ".join(sys.argv[1:])
    is_saved = given.save or (is_full and not given.no_save)
    if is_saved:
        page.save(part, found)
    print("\n\n".join(["", *page.sections(part, found)]))
    if is_saved and (is_full or part == "kafka"):
        print()
        page.render()
    return 0


if __name__ == "__main__":
    sys.exit(main())
