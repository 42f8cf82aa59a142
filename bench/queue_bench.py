"""The figures of the queues and of the embedded library, and of others' in the same run.

Which scenarios of queues.py and peers.py are run, and with which numbers; run.py calls it, and
queue_report.py has the goals and the tables.
"""

from collections.abc import Callable

from peers import PEERS, installed
from runner import Result, Runner

from penstock.storage.files.durability import NONE, OS

SMALL, KIB = 100, 1024  # bytes of body
MANY = 1_000_000


class QueueBench(Runner):
    """Scenarios of the queues; `figures` by the name of the scenario."""

    script = "queues.py"

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {
            "put_get": self.put_get, "flat": self.flat, "threads": self.threads,
            "backlog": self.backlog, "states": self.states, "cliff": self.cliff,
            "returns": self.returns, "peers": self.peers,
        }  # fmt: skip

    def put_get(self) -> None:
        """CPU per message put and got, one by one and in batches."""
        runs, count = self.pick((2, 2_000), (9, 20_000))
        rows = []
        for build, is_pure in (("compiled", False), ("pure", True)):
            for size in (SMALL, KIB):
                self.say(f"CPU per put and get, os, {size} B, {build}")
                found = self.child("cpu", "cpu", is_pure=is_pure, size=size, runs=runs, count=count)
                rows.append({"size": size, **found})
        self.figures["put_get"] = rows

    def flat(self) -> None:
        """Get and ack at growing backlogs, and after as many acks."""
        backlogs = self.pick([1_000, 5_000, 20_000], [1_000, 100_000, MANY])
        runs, sample = self.pick((2, 1_000), (3, 20_000))
        self.say(f"get and ack at backlogs of {', '.join(f'{n:,}' for n in backlogs)}")
        self.figures["flat"] = self.child(
            "flat", "flat", size=SMALL, backlogs=backlogs, sample=sample, runs=runs
        )

    def threads(self) -> None:
        """One thread and 64, each waiting until its message is on the disk."""
        seconds, runs = self.pick((0.3, 1), (2.0, 3))
        self.say("puts per second with 1 and 64 threads, disk")
        self.figures["threads"] = self.child(
            "threads", "threads", size=SMALL, counts=[1, 64], seconds=seconds, runs=runs
        )

    def backlog(self) -> None:
        """A million messages: RAM, disk, opening after an orderly stop and after a kill -9."""
        count, warm = self.pick((20_000, 2_000), (MANY, 10_000))
        records = self.pick(2_000, 50_000)
        self.say(f"a backlog of {count:,}")
        result = self.child("backlog", "backlog", keep=True, count=count, size=SMALL, warm=warm)
        clean, dirty = [], []
        runs = self.pick(1, 3)
        for run in range(runs):
            self.say(f"backlog of {count:,}: open after an orderly stop, run {run + 1}")
            clean.append(self.child("reopen", "backlog", keep=True))
        for run in range(runs):
            self.say(f"backlog of {count:,}: open after a kill -9, run {run + 1}")
            told = self.child(
                "tail", "backlog", is_killed=True, keep=True, records=records, size=SMALL
            )
            dirty.append(self.child("reopen", "backlog", keep=run < runs - 1))
            assert dirty[-1]["count"] == told["count"], "the queue lost something"
        self.figures["backlog"] = {
            **result, "records": records, "clean_ms": [found["ms"] for found in clean],
            "kill_ms": [found["ms"] for found in dirty],
        }  # fmt: skip

    def states(self) -> None:
        """RAM per message as alpha, beta, gamma, delta."""
        count = self.pick(10_000, 100_000)
        self.say(f"RAM per message in each state, {count:,} messages")
        self.figures["states"] = self.child("ram_states", "states", count=count, size=SMALL)

    def cliff(self) -> None:
        """Times of publishes while a queue passes its limit, by three policies."""
        limit, count, runs = self.pick((2 << 20, 5_000, 1), (16 << 20, 60_000, 3))
        rows = []
        for policy in ("steps", "at once", "unlimited"):
            self.say(f"publishing past a memory limit, {policy}")
            found = [
                self.child("cliff", "cliff", policy=policy, size=KIB, limit=limit, count=count)
                for _ in range(runs)
            ]
            rows.append({"policy": policy, "limit": limit, "size": KIB, "runs": found})
        self.figures["cliff"] = rows

    def returns(self) -> None:
        """A queue that once flowed beside one that never did; drains of both kinds of messages."""
        # Long enough that one checkpoint, some 15 ms, does not decide.
        limit, count, runs = self.pick((1 << 20, 2_000, 1), (16 << 20, 400_000, 5))
        rows = []
        for size in (SMALL, KIB):
            for mode, name in ((OS, "persistent"), (NONE, "transient")):
                self.say(f"a queue that has flowed and one that has not, {name}, {size} B")
                found: dict[str, list[Result]] = {"never": [], "once": []}
                for _ in range(runs):
                    for key, has_flowed in (("never", False), ("once", True)):
                        found[key].append(
                            self.child(
                                "returns", "returns", mode=mode, size=size, limit=limit,
                                count=count, has_flowed=has_flowed,
                            )
                        )  # fmt: skip
                rows.append({"messages": name, "size": size, "limit": limit, **found})
        self.figures["returns"] = rows

    def peers(self) -> None:
        """The same calls of other libraries, in the modes that they know."""
        seconds, depths = self.pick((0.06, [200, 1_000]), (1.0, [1_000, 20_000]))
        rows: list[Result] = []
        for name, peer in PEERS.items():
            if not installed(name):
                self.say(f"{name} is not installed")
                continue
            for mode in peer.modes:
                for size in (SMALL, KIB):
                    self.say(f"{name}, {mode}, {size} B")
                    found = self.child(
                        "measure", "peer", script="peers.py", peer=name, mode=mode, size=size,
                        seconds=seconds, depths=depths,
                    )  # fmt: skip
                    rows.append({"peer": name, "mode": mode, "size": size, **found})
        self.figures["peers"] = rows
