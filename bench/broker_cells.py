"""The cells of the broker's bench: what one measurement is, the same for every broker.

A cell is one or more runs of the load generator on fresh queues, each of which is a row of the
tables: published and consumed at once, or published into a backlog and then drained. All have the
same number of messages for all brokers. Confirms are waited for with 1,000 outstanding; acks come
with a prefetch of 200, one for every 50 messages unless `--ack-each` says otherwise.
"""

from dataclasses import dataclass
from typing import Any

from brokers import Broker
from runner import Result

QUEUE = "bench"
DURABLE = ("-d", "-D", "-w", 1000)  # durable queues, persistent messages, confirms
ACKS = ("-f", 200)
# No two messages alike: sizes, properties, keys; a topic exchange with bindings that do not match.
VARIED = (
    "-Q", 8, "-e", f"{QUEUE}.topic", "-E", "topic", "--keys", 1000, "--bindings", 1000,
    "--vary-size", "--vary-props", "--ack-each",
)  # fmt: skip
FAN_OUT = ("-Q", 10, "-e", f"{QUEUE}.fanout", "-E", "fanout")


@dataclass(frozen=True)
class Step:
    """One run of the load generator: a row. what: as it is called in the tables."""

    what: str
    mode: str
    options: tuple[object, ...]


@dataclass(frozen=True)
class Cell:
    """group: the table it is in. is_durable: of interest in each durability mode.

    deleted: the options with which the queues are deleted after the last step, if need be.
    """

    group: str
    steps: tuple[Step, ...]
    is_durable: bool = False
    deleted: tuple[object, ...] = ()


def both(what: str, count: int, size: int, *options: object) -> Step:
    """Published and consumed at once; the queue is gone afterwards."""
    shape = ("-q", QUEUE, "-n", count, "-s", size, *options, "--delete-after")
    return Step(what, "both", shape)


def transient(scale: float) -> list[Cell]:
    """Transient messages, without confirms, of four sizes."""
    cells = []
    for size, count in ((16, 80_000), (256, 80_000), (1024, 50_000), (16_384, 10_000)):
        for acks, options in (("no_ack", ("--no-ack",)), ("acks", ACKS)):
            step = both(f"{size:,} B, {acks}", int(count * scale), size, *options)
            cells.append(Cell("transient", (step,)))
    return cells


def persistent(scale: float) -> list[Cell]:
    """Durable queues, persistent messages, confirms and acks; and a backlog in and out."""
    cells = []
    for size in (256, 1024):
        step = both(f"{size:,} B, confirms and acks", int(50_000 * scale), size, *DURABLE, *ACKS)
        cells.append(Cell("persistent", (step,), is_durable=True))
    name, count = ("-q", f"{QUEUE}.backlog"), ("-n", int(80_000 * scale), "-s", 256)
    steps = (
        Step("256 B, published into a backlog", "publish", (*name, *count, *DURABLE)),
        Step("256 B, backlog drained", "consume", (*name, "--passive", *count, *ACKS)),
    )
    cells.append(Cell("persistent", steps, is_durable=True, deleted=name))
    return cells


def shapes(scale: float) -> list[Cell]:
    """What is not one producer, one consumer, one queue and one message over and over."""
    count = int(60_000 * scale)
    fewer = int(30_000 * scale)
    several = ("-P", 4, "-C", 4)
    fan = ("-q", f"{QUEUE}.fan", *FAN_OUT, "-d")
    fan_shape = ("-n", int(10_000 * scale), "-s", 1024)
    return [
        Cell("shapes", (both("transient, varied, topic", fewer, 256, *VARIED, *ACKS),)),
        Cell("shapes", (both("persistent, varied, topic", fewer, 256, *VARIED, *DURABLE, *ACKS),)),
        Cell("shapes", (both("transient, 4 producers and consumers, one queue", count, 256,
                             *several, *ACKS),)),
        Cell("shapes", (both("persistent, 4 producers and consumers, 4 queues", count, 256,
                             *several, "-Q", 4, *DURABLE, *ACKS),)),
        Cell("shapes", (
            Step("persistent, 1 KiB to 10 queues, per publish", "publish",
                 (*fan, *fan_shape, "-D", "-w", 1000)),
            Step("the same, drained, per delivery", "consume",
                 (*fan, "--passive", *fan_shape, *ACKS)),
        ), deleted=fan),
    ]  # fmt: skip


def warm_up(scale: float) -> Step:
    """What each broker does once, unmeasured: its files and memory are then no longer new."""
    return both("warm-up", int(60_000 * scale), 1024, *DURABLE, *ACKS)


def many_queues(count: int) -> Cell:
    """A thousand durable queues: declared, 100 messages into each, drained."""
    queues = ("-q", f"{QUEUE}.many", "-Q", count)
    shape = ("-n", count * 100, "-s", 256)
    steps = (
        Step(f"{count:,} queues declared, per queue", "declare", (*queues, "-d")),
        Step("100 x 256 B into each", "publish", (*queues, "--passive", *shape, "-D", "-w", 1000)),
        Step("all drained", "consume", (*queues, "--passive", *shape, *ACKS)),
    )
    return Cell("queues", steps, deleted=queues)


def measured(broker: Broker, cell: Cell) -> dict[str, Result]:
    """What each step of the cell found; the queues are gone."""
    load = broker.load()
    rows = {}
    for step in cell.steps:
        found = load(step.mode, *step.options)
        rows[step.what] = digest(found)
        if found["exit"]:
            break
    if cell.deleted:
        load("delete", *cell.deleted)
    return rows


KEPT = (
    "msgs", "msgs_s", "server_us_per_msg", "client_us_per_msg", "server_cpus", "other_cpus",
    "stolen_cpus", "server_rss_max", "queues_s", "error",
)  # fmt: skip


def digest(found: Result) -> Result:
    """Of a run's result what is kept. us: CPU of the server per message, or per queue declared."""
    kept: Result = {name: found[name] for name in KEPT if name in found}
    if "queues" in found and "server_cpu_s" in found:
        kept["server_us_per_msg"] = found["server_cpu_s"] * 1e6 / found["queues"]
        kept["msgs_s"] = found["queues_s"]
    for name in ("latency_us", "confirm_us"):
        if name in found:
            kept[name] = found[name]
    kept["is_ok"] = found["exit"] == 0
    return kept


def merged(runs: list[Result]) -> Result:
    """Several runs of one row as lists."""
    lists: dict[str, list[Any]] = {}
    for run in runs:
        for name in ("server_us_per_msg", "msgs_s", "client_us_per_msg", "other_cpus"):
            if name in run:
                lists.setdefault(name, []).append(run[name])
    return {**lists, "is_ok": all(run["is_ok"] for run in runs), "runs": len(runs)}
