"""How far one vhost, one broker and its HTTP process go: the figures of docs/reference/scaling.md.

    python bench/scaling.py                 all, three minutes; writes docs/reference/scaling.md
    python bench/scaling.py --quick         the same with smaller numbers; only prints
    python bench/scaling.py --only http

in the environment of `make bench` (.venv-bench/bin/python). One broker in mode `disk`, amqpload as
client, everything on this machine: client and broker share its cores, so beside what went through
in a second stands the CPU that the broker took for a message, and what a core could do by that. A
full run is appended to bench/results/scaling.jsonl and put between the two marks of the page.

Readers of HTTP are processes that take pages as fast as they come and throw them away: what a
broker can send, not what Spark does with it.
"""

import argparse
import base64
import http.client
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import load
import page
from broker_cells import ACKS, DURABLE, digest
from brokers import free_port, tree
from measure import measure
from penstock_node import PenstockNode
from report import Result, markdown, where
from runner import ROOT, Runner

PAGE = ROOT / "docs" / "reference" / "scaling.md"
MARKS = ("<!-- figures: written by bench/scaling.py -->", "<!-- end of the figures -->")
SIZES = (256, 1024)
SECOND = "second"  # the other vhost
STREAM = "bench"
RECORD_BYTES = 1024
CONFIRM_EVERY = 10_000
READ_BYTES = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
MEGA = 1e6


class ScalingNode(PenstockNode):
    """A broker in mode `disk` with its HTTP process."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, "disk", is_pure=False)
        self.http_port = 0

    def command(self) -> tuple[list[str], dict[str, str]]:
        self.http_port = free_port()
        command, environment = super().command()
        return command, {**environment, "PENSTOCK_HTTP_PORT": str(self.http_port)}


class ScalingBench(Runner):
    """Scenarios on one broker; `figures` by what they measure."""

    script = ""

    def __init__(self, data: Path, *, is_quick: bool, say: Callable[[str], None]) -> None:
        super().__init__(data, is_quick=is_quick, say=say)
        self._node: ScalingNode | None = None

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {"vhost": self.one_vhost, "vhosts": self.two_vhosts, "http": self.http}

    @property
    def node(self) -> ScalingNode:
        """Started when first asked for, and warm."""
        if self._node is None:
            load.build()
            self._node = ScalingNode(self.data / "node")
            self._node.start()
            warm = ("-q", "warm", "-n", self.pick(10_000, 60_000), "-s", 1024)
            self._node.load()("both", *warm, *DURABLE, *ACKS, "--delete-after")
        return self._node

    def end(self) -> None:
        if self._node is not None:
            self._node.end()

    def one_vhost(self) -> None:
        """Published, drained, and both at once, with confirms and acks, by one and by four."""
        count = self.pick(20_000, 200_000)
        rows: list[Result] = []
        for size in SIZES:
            name = ("-q", "scaling", "-n", count, "-s", size)
            four = ("-P", 4, "-C", 4, "-Q", 4)
            for what, mode, options in (
                ("published into a backlog", "publish", (*name, *DURABLE)),
                ("backlog drained", "consume", (*name, "--passive", *ACKS, "--delete-after")),
                ("published and consumed", "both", (*name, *DURABLE, *ACKS, "--delete-after")),
                ("the same, 4 queues, 4 producers and consumers", "both",
                 (*name, *four, *DURABLE, *ACKS, "--delete-after")),
            ):  # fmt: skip
                self.say(f"one vhost: {size:,} B, {what}")
                found = digest(self.node.load()(mode, *options))
                rows.append({"what": what, "size": size, **found})
        self.figures["vhost"] = rows

    def two_vhosts(self) -> None:
        """The same two runs one after the other in one vhost, and at once in two."""
        count = self.pick(20_000, 150_000)
        for verb in (
            ("add_vhost", SECOND),
            ("set_permissions", "-p", SECOND, "guest", ".*", ".*", ".*"),
        ):
            command = [sys.executable, "-m", "penstock", *verb, "--data", str(self.node.files)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        rows: list[Result] = []
        for size in SIZES:
            shape = ("-q", "scaling", "-n", count, "-s", size, *DURABLE, *ACKS, "--delete-after")
            self.say(f"two vhosts: {size:,} B, one alone")
            alone = self.node.load()("both", *shape)
            self.say(f"two vhosts: {size:,} B, two at once")
            started = time.monotonic()
            cpu = cpu_s(self.node.pid)
            runs = [self.node.load().begin("both", *shape, "--vhost", v) for v in ("/", SECOND)]
            both = [load.finish(run) for run in runs]
            seconds = time.monotonic() - started
            cpu = cpu_s(self.node.pid) - cpu
            rows.append(
                {"size": size, "alone": digest(alone), "msgs_s": 2 * count / seconds,
                 "server_us_per_msg": cpu / (2 * count) * 1e6, "server_cpus": cpu / seconds,
                 "is_ok": all(run["exit"] == 0 for run in both)}
            )  # fmt: skip
        self.figures["vhosts"] = rows

    def http(self) -> None:
        """A stream read over HTTP by one connection, two, four and eight."""
        count = self.pick(50_000, 500_000)
        self.say(f"HTTP: {count:,} records of {RECORD_BYTES:,} B are appended")
        publish(self.node.port, count)
        rows: list[Result] = []
        for readers in (1, 2, 4, 8):
            self.say(f"HTTP: {readers} connections")
            runs = [self._read(readers, count) for _ in range(self.pick(1, 3))]
            rows.append({"readers": readers, "runs": runs})
        self.figures["http"] = {"count": count, "size": RECORD_BYTES, "rows": rows}

    def _read(self, readers: int, count: int) -> Result:
        """Each reads the whole stream once. MB/s of all; CPU of the broker per GB."""
        cpu, started = cpu_s(self.node.pid), time.monotonic()
        with multiprocessing.Pool(readers) as pool:
            ready = time.monotonic()
            sizes = pool.starmap(fetch, [(self.node.http_port, count)] * readers, 1)
            seconds = time.monotonic() - ready
        cpu = cpu_s(self.node.pid) - cpu
        assert min(sizes) >= count * RECORD_BYTES, "less came than there is"
        total = sum(sizes)
        return {"mb_s": total / seconds / MEGA, "cpu_s_per_gb": cpu / total * 1e9,
                "starting_s": ready - started}  # fmt: skip


def fetch(port: int, count: int) -> int:
    """Ask for all records, and take the answer; its bytes."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    token = base64.b64encode(b"guest:guest").decode()
    target = f"/api/streams/%2F/{STREAM}/frames?partition=0&from=0&to={count}"
    link.request("GET", target, headers={"Authorization": f"Basic {token}"})
    answer = link.getresponse()
    assert answer.status == 200, answer.read()
    taken, space = 0, bytearray(READ_BYTES)
    while got := answer.readinto(space):
        taken += got
    link.close()
    return taken


def publish(port: int, count: int) -> None:
    """The stream, with so many records."""
    import penstock

    body = bytes(range(256)) * (RECORD_BYTES // 256)
    with penstock.open(f"amqp://guest:guest@127.0.0.1:{port}/", durability="os") as box:
        stream = box.stream(STREAM)
        for _ in range(0, count, CONFIRM_EVERY):
            stream.append_many([body] * CONFIRM_EVERY)


def cpu_s(root: int) -> float:
    """Seconds of CPU that the process and all below it have had."""
    ticks = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


# ---- the tables ----------------------------------------------------------------------------------


def sections(found: Result) -> list[str]:
    """Titles and tables in Markdown."""
    figures = found["figures"]
    parts = [where(found).replace("`make bench", "`python bench/scaling.py").replace(" ARGS=", " ")]
    if "vhost" in figures:
        parts += ["### One vhost", vhost_table(figures["vhost"])]
    if "vhosts" in figures:
        parts += ["### Two vhosts at once", vhosts_table(figures["vhosts"])]
    if "http" in figures:
        parts += ["### Reading over HTTP", http_table(figures["http"])]
        takers = takers_table(figures["http"])
        parts += ["### Cores of Spark that one HTTP process feeds", takers] if takers else []
    return parts


def vhost_table(rows: list[Result]) -> str:
    head = ["body, B", "persistent, `disk`, confirms and acks", "messages/s", "MB/s",
            "broker's CPU, µs a message", "messages/s of a core by that"]  # fmt: skip
    return markdown(head, [
        [f"{row['size']:,}", row["what"], *rates(row["msgs_s"], row["size"]),
         f"{row['server_us_per_msg']:.1f}", f"{1e6 / row['server_us_per_msg']:,.0f}"]
        for row in rows if row["is_ok"]
    ])  # fmt: skip


def vhosts_table(rows: list[Result]) -> str:
    head = ["body, B", "published and consumed", "messages/s", "MB/s",
            "broker's CPU, µs a message", "cores that the broker had"]  # fmt: skip
    lines = []
    for row in rows:
        for what, one in (("in one vhost", row["alone"]), ("in two at once, together", row)):
            lines.append(
                [f"{row['size']:,}", what, *rates(one["msgs_s"], row["size"]),
                 f"{one['server_us_per_msg']:.1f}", f"{one['server_cpus']:.2f}"]
            )  # fmt: skip
    return markdown(head, lines)


def http_table(found: Result) -> str:
    head = ["connections", "MB/s together", "MB/s of each", "broker's CPU, s a GB",
            "MB/s of a core by that"]  # fmt: skip
    lines = []
    for row in found["rows"]:
        speed = statistics.median(run["mb_s"] for run in row["runs"])
        cost = statistics.median(run["cpu_s_per_gb"] for run in row["runs"])
        lines.append([str(row["readers"]), f"{speed:,.0f}", f"{speed / row['readers']:,.0f}",
                      f"{cost:.2f}", f"{1000 / cost:,.0f}"])  # fmt: skip
    return markdown(head, lines)


def takers_table(found: Result) -> str:
    """What a core of Spark takes in, by the last run of `make bench-spark`; "" without one."""
    spark = page.last("spark")
    if spark is None:
        return ""
    cost = min(run["cpu_s_per_gb"] for row in found["rows"] for run in row["runs"])
    lines = []
    for key, what in (("scan", "sum(length(value))"), ("parsing", "from_json and an aggregate")):
        if key in spark["figures"]:
            its = spark["figures"][key]
            seconds = statistics.median(its["seconds"]["penstock"])
            taken = its["count"] * its["size"] / seconds / MEGA / spark["cores"]
            lines.append([what, f"{taken:,.0f}", f"{1000 / cost / taken:,.0f}"])
    return markdown(["query", "MB/s of values that a core takes", "cores"], lines)


def rates(messages_s: float, size: int) -> list[str]:
    return [f"{messages_s:,.0f}", f"{messages_s * size / MEGA:,.0f}"]


def write_page(found: Result) -> None:
    """The figures between the marks of the page."""
    begin, end = (re.escape(mark) for mark in MARKS)
    text = "\n\n".join([MARKS[0], *sections(found), MARKS[1]])
    before = PAGE.read_text(encoding="utf-8")
    after, done = re.subn(f"{begin}.*{end}", lambda _: text, before, flags=re.DOTALL)
    if done != 1:
        sys.exit(f"{PAGE.relative_to(ROOT)} has not the two marks: {' '.join(MARKS)}")
    PAGE.write_text(after, encoding="utf-8")
    print(f"written to {PAGE.relative_to(ROOT)}")


def main() -> int:
    names = list(ScalingBench(Path(), is_quick=True, say=print).scenarios())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--data", type=Path, default=ROOT / "run-data" / "bench-scaling",
                        help="on the disk to measure; deleted afterwards")  # fmt: skip
    parser.add_argument("--only", action="append", default=[], choices=names)
    parser.add_argument("--no-save", action="store_true", help="do not keep a full run")
    parser.add_argument("--render", action="store_true", help="only docs/reference/scaling.md anew")
    given = parser.parse_args()
    if given.render:
        kept = page.last("scaling")
        if kept is None:
            sys.exit("no full run is kept yet")
        write_page(kept)
        return 0
    found = measure(ScalingBench, given.data, is_quick=given.quick, only=given.only)
    print("\n\n".join(["", *sections(found)]))
    if not given.quick and not given.only and not given.no_save:
        page.save("scaling", found)
        write_page(json.loads(json.dumps(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
