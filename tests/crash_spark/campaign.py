"""A campaign: jobs that run and die until so many kills are done, and then everything is counted.

    python -m tests.crash_spark.campaign [--kills 21] [--seed 1] [--only stream-queue] [--sink ...]

It starts a broker, puts numbered messages into a queue or stream, and starts job after job, each
going on where the last one was. What dies when is drawn from the seed: the driver before its
commit, after it, or at any time; Python workers in the middle of their tasks; the broker at any
time, or while a batch is committed; and tasks that fail with everything staged, so that it is
staged twice. In the end a job runs undisturbed, and each number has to be in the sink once: count,
different ones, sum, CRCs; and where the sink has an order, in the order in which they were put.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import penstock
from tests.crash_spark.kill_points import VARIABLE, Plan
from tests.crash_spark.sinks import Sink, sink_of
from tests.helpers.live_broker import LiveBroker, children_of

ROOT: Final = Path(__file__).parent.parent.parent
BROKER_SINK: Final = "tests.crash_spark.sinks:BrokerSink"
JOB_LIMIT_S: Final = 240.0
SETTLE_LIMIT_S: Final = 120.0
BODY_BYTES: Final = 300

# A kill -> where it is planned, what happens there, and how late at most.
PLANNED: Final[Mapping[str, tuple[str, str, int]]] = {
    "driver before commit": ("before_commit", "driver", 3),
    "driver after commit": ("after_commit", "driver", 3),
    "workers in tasks": ("in_task", "workers", 12),
    "task with all staged": ("after_write", "fail", 6),
    "broker before commit": ("before_commit", "mark", 3),
    "broker after commit": ("after_commit", "mark", 3),
}
ANY_TIME: Final = ("driver at any time", "broker at any time")
KILLS: Final = (*PLANNED, *ANY_TIME)


class CampaignError(AssertionError):
    """The sink does not hold what it should, or a job failed by itself."""


@dataclass
class Campaign:
    """source: "stream" or "classic". sink: module:Class, made with `arguments` beside url and
    http_url. rows: of each job, put into the source before it starts."""

    directory: Path
    source: str
    sink: str = BROKER_SINK
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"kind": "queue"})
    seed: int = 1
    rows: int = 6000
    rows_a_batch: int = 1500
    say: Callable[[str], None] = print
    kills: list[str] = field(default_factory=list)
    jobs: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.source} {self.sink} {self.arguments}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.plan = Plan(self.directory / "plan")
        self.broker = LiveBroker(self.directory / "data", has_http=True)
        self.sent = 0

    def run(self, kills: int, chosen: tuple[str, ...] = ()) -> None:
        """So many kills, of a random kind each, or these; then the count. CampaignError."""
        wanted = list(chosen) or self._drawn(kills)
        with self.broker:
            sink = self._sink()
            sink.prepare()
            while wanted:
                self._put()
                wanted = self._job(wanted)
            self._put()
            self._job([])
            self._check(sink)

    def _drawn(self, count: int) -> list[str]:
        """Each kind as often as any other, in a random order."""
        kinds: list[str] = []
        while len(kinds) < count:
            kinds += self.rng.sample(KILLS, len(KILLS))
        return kinds[:count]

    @property
    def _urls(self) -> dict[str, str]:
        return {
            "url": self.broker.url_of("/"),
            "http_url": f"http://127.0.0.1:{self.broker.http_port}",
        }

    def _sink(self) -> Sink:
        return sink_of(self.sink, {**self._urls, **self.arguments})

    def _put(self) -> None:
        """The next rows; the broker is there."""
        bodies = [body_of(n) for n in range(self.sent, self.sent + self.rows)]
        with penstock.open(self.broker.url_of("/")) as box:
            if self.source == "stream":
                box.stream("in").append_many(bodies)
            else:
                box.queue("in").put_many(bodies)
        self.sent += self.rows

    # ---- a job ---------------------------------------------------------------------------------

    def _job(self, wanted: list[str]) -> list[str]:
        """Run one until it dies or ends; the kills that are left. What kills no driver happens one
        after the other in the same job."""
        self.plan.clear()
        self.jobs += 1
        told = {
            **self._urls, "source": "in", "sink": self.sink, "rows_a_batch": self.rows_a_batch,
            "arguments": {**self._urls, **self.arguments},
            "checkpoint": str(self.directory / "checkpoint"),
        }  # fmt: skip
        log = self.directory / f"job.{self.jobs}.log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(self.plan.path)}
        with log.open("wb") as out:
            job = subprocess.Popen(
                [sys.executable, "-m", "tests.crash_spark.job", json.dumps(told)],
                stdout=out, stderr=out, env=environment, start_new_session=True,
            )  # fmt: skip
        try:
            left = self._disturbed(job, wanted)
            code = job.wait(JOB_LIMIT_S)
        finally:
            end(job)
        if code not in (0, -signal.SIGKILL):
            raise CampaignError(f"job {self.jobs} failed with {code}:\n{tail(log)}")
        self.say(f"job {self.jobs}: {'ended' if code == 0 else 'killed'}, {len(left)} kills left")
        return left

    def _disturbed(self, job: "subprocess.Popen[bytes]", wanted: list[str]) -> list[str]:
        """Do the kills, until a driver dies or the job ends."""
        for index, kind in enumerate(wanted):
            if not self._kill(job, kind):
                return wanted[index:]
            self.kills.append(kind)
            self.say(f"  kill {len(self.kills)}: {kind}")
            if kind.startswith("driver"):
                return wanted[index + 1 :]
        return []

    def _kill(self, job: "subprocess.Popen[bytes]", kind: str) -> bool:
        """Whether it happened before the job's end."""
        if kind in PLANNED:
            point, action, most = PLANNED[kind]
            for path in self.plan.path.glob(f"{point}.*"):
                path.unlink()
            self.plan.set(point, action, self.rng.randint(1, most))
            if not self._waits(job, lambda: self.plan.has_happened(point)):
                return False
            if kind.startswith("broker"):
                self.plan.go_on(point)
                time.sleep(self.rng.uniform(0, 0.1))
                self._restart_broker()
            elif kind.startswith("driver"):
                job.wait(JOB_LIMIT_S)
            return True
        if not self._waits(job, (self.plan.path / "pids").exists):
            return False
        delay = self.rng.uniform(2, 8)
        started = time.monotonic()
        if not self._waits(job, lambda: time.monotonic() > started + delay):
            return False
        if kind.startswith("broker"):
            self._restart_broker()
        else:
            end(job)
        return True

    def _restart_broker(self) -> None:
        self.broker.kill()
        time.sleep(self.rng.uniform(0, 0.5))
        self.broker.start()

    def _waits(self, job: "subprocess.Popen[bytes]", is_there: Callable[[], bool]) -> bool:
        """Until it is there; whether it was before the job ended."""
        deadline = time.monotonic() + JOB_LIMIT_S
        while not is_there():
            if job.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise CampaignError(f"job {self.jobs} is not done in {JOB_LIMIT_S} s")
            time.sleep(0.01)
        return True

    # ---- the end -------------------------------------------------------------------------------

    def _check(self, sink: Sink) -> None:
        """Each row once."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while not sink.is_settled():
            if time.monotonic() > deadline:
                raise CampaignError(f"batches are still on their way after {SETTLE_LIMIT_S} s")
            time.sleep(0.05)
        expected = [body_of(n) for n in range(self.sent)]
        found = sink.bodies()
        there, wanted = facts_of(found), facts_of(expected)
        if there != wanted:
            numbers = [int(body.split()[0]) for body in found]
            lost = sorted(set(range(self.sent)) - set(numbers))
            raise CampaignError(
                f"seed {self.seed}, {self.source} -> {self.arguments}: {there}, expected {wanted}; "
                f"lost {len(lost)}: {lost[:5]}; more than once {len(numbers) - len(set(numbers))}"
            )
        if sink.is_ordered and found != expected:
            at = next(n for n, body in enumerate(found) if body != expected[n])
            raise CampaignError(f"seed {self.seed}: out of order from message {at} on")
        self.say(f"{self.source} -> {dict(self.arguments)}: {len(self.kills)} kills, {there}")


def body_of(n: int) -> bytes:
    """Message n."""
    return (b"%d " % n).ljust(BODY_BYTES, b"%d" % (n % 10))


def facts_of(bodies: list[bytes]) -> dict[str, int]:
    """How many, how many different ones, the sum of their numbers, and of their CRCs."""
    return {
        "count": len(bodies),
        "different": len(set(bodies)),
        "sum": sum(int(body.split()[0]) for body in bodies),
        "crcs": sum(zlib.crc32(body) for body in bodies),
    }


def end(job: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to it and all below it, and wait."""
    below = children_of(job.pid)
    for pid in (job.pid, *below):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    job.wait()


def tail(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-4000:]


# Names for --only: a source, a sink, and what it is told. A table's path is added: a new directory.
LAKE_SINKS: Final = "tests.crash_spark.lake_sinks"
PAIRS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "stream-queue": ("stream", BROKER_SINK, {"kind": "queue"}),
    "stream-stream": ("stream", BROKER_SINK, {"kind": "stream"}),
    "classic-queue": ("classic", BROKER_SINK, {"kind": "queue"}),
    "classic-stream": ("classic", BROKER_SINK, {"kind": "stream"}),
    "stream-exchange": ("stream", BROKER_SINK, {"kind": "exchange"}),
    "classic-delta": ("classic", f"{LAKE_SINKS}:DeltaTarget", {}),
    "stream-iceberg": ("stream", f"{LAKE_SINKS}:IcebergTarget", {}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=21, help="in all, shared among the pairs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], choices=[*PAIRS])
    parser.add_argument("--sink", help="module:Class of another sink, fed from a stream")
    parser.add_argument("--arguments", type=json.loads, default={}, help="its JSON")
    given = parser.parse_args()
    pairs = [PAIRS[name] for name in given.only or PAIRS]
    if given.sink:
        pairs = [("stream", given.sink, given.arguments)]
    share = -(-given.kills // len(pairs))
    done = 0
    for source, sink, arguments in pairs:
        with tempfile.TemporaryDirectory(prefix="crash-spark-") as directory:
            arguments = {"path": f"{directory}/table"} | dict(arguments)
            campaign = Campaign(Path(directory), source, sink, arguments, given.seed)
            campaign.run(share)
            done += len(campaign.kills)
    print(f"{done} kills, exactly once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
