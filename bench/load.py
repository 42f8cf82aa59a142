"""Load: runs the load generator of bench/amqpload against one broker, and reads what it found.

amqpload is a C program without a client library: it costs far less CPU than any broker that it
measures, it checks each message that it gets back (lost, twice, out of order, altered, in the wrong
queue), and it tells the CPU of the server's whole process tree.
"""

import json
import subprocess
import sys

from runner import HERE, ROOT, Result

PROGRAM = ROOT / "build" / "amqpload" / "amqpload"
RUN_S_MAX = 600
NO_QUEUE = "no.such.queue"


def build() -> None:
    """Compile it if it is not there or older than its source."""
    made = subprocess.run(
        ["make", "--silent", "-C", str(HERE / "amqpload")], capture_output=True, text=True
    )
    if made.returncode:
        sys.exit(f"the load generator does not compile:\n{made.stderr}")


class Load:
    """Calls of amqpload on a port; pid: the root of the server's processes."""

    def __init__(self, port: int, pid: int, *, idle_s: int = 60) -> None:
        self._port = port
        self._pid = pid
        self._idle_s = idle_s

    def command(self, mode: str, *options: object) -> list[str]:
        fixed = ["--port", self._port, "--server-pid", self._pid, "--idle-timeout", self._idle_s]
        return [str(PROGRAM), mode, *map(str, fixed), *map(str, options)]

    def __call__(self, mode: str, *options: object) -> Result:
        """Run it. The result has `exit`, 0 if all was right; a wrong one is told on stderr."""
        command = self.command(mode, *options)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired:
            return {"error": f"over {RUN_S_MAX} s", "exit": 124}
        found = parsed(done.stdout)
        found["exit"] = done.returncode
        if done.returncode:
            print(f"!! {' '.join(command)}\n!! {done.stderr.strip()}", file=sys.stderr)
        return found

    def begin(self, mode: str, *options: object) -> "subprocess.Popen[str]":
        """Start it beside whatever else is measured; `finish` collects it."""
        return subprocess.Popen(self.command(mode, *options), stdout=subprocess.PIPE, text=True)

    def answers(self) -> bool:
        """Does the broker answer? (Also that there is no such queue.)"""
        done = subprocess.run(
            self.command("count", "-q", NO_QUEUE), capture_output=True, text=True, timeout=60
        )
        found = parsed(done.stdout)
        return "404" in str(found.get("error", "")) or "ready" in found

    def can_get(self, queue: str, *options: object) -> bool:
        """Does a first message come? It is not acked."""
        command = self.command(
            "consume", "-q", queue, "--passive", "--partial", "-n", 1, "-f", 1, "--no-final-ack",
            *options,
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
        return done.returncode == 0 and parsed(done.stdout).get("delivered", 0) > 0


def finish(process: "subprocess.Popen[str]") -> Result:
    """The result of what `begin` began."""
    output, _ = process.communicate(timeout=RUN_S_MAX)
    return {**parsed(output), "exit": process.returncode}


def parsed(output: str) -> Result:
    """The last line of JSON; those before it as `steps`."""
    rows: list[Result] = [json.loads(line) for line in output.splitlines() if line[:1] == "{"]
    if not rows:
        return {"error": "no output"}
    return {**rows[-1], "steps": rows[:-1]}
