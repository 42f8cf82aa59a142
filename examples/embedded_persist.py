"""A disk between a meter and its evaluation: `penstock.persist`, killed in the middle of its work.

    python examples/embedded_persist.py [DIRECTORY]

The meter gives a reading now and then, and cannot be asked for an old one. The evaluation takes its
time, and may crash; here its process is killed with signal 9 after a third of the work. Run again,
it goes on where it was: every reading that was taken is evaluated, and only those of the last
moments before the kill twice.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import penstock

READINGS = 60
KILL_AFTER = 20
Reading = dict[str, Any]


def meter(first: int) -> Iterator[Reading]:
    """What the meter says, from this number on."""
    for number in range(first, READINGS):
        yield {"number": number, "watts": 900 + number % 7 * 50}


def evaluate(directory: str, first: int) -> None:
    """The consumer: one line for each reading that it has done with."""
    readings = penstock.persist(
        meter(first), directory, encode=lambda reading: json.dumps(reading).encode(),
        decode=json.loads,
    )  # fmt: skip
    for reading in readings:
        print(reading["number"], reading["watts"], flush=True)


def run(directory: str, first: int, *, kill_after: int = -1) -> list[int]:
    """Evaluate in a process of its own, killed after so many readings; what it did."""
    command = [sys.executable, __file__, "--evaluate", directory, str(first)]
    done: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done.append(int(line.split()[0]))
            if len(done) == kill_after:
                process.send_signal(signal.SIGKILL)
    return done


def main(directory: str) -> None:
    before = run(directory, 0, kill_after=KILL_AFTER)
    # The meter goes on with the reading behind the last one that was taken from it.
    with penstock.open_stream(directory) as stream:
        (last,) = stream.read(offset="last")
    after = run(directory, json.loads(last.body)["number"] + 1)
    assert set(before) | set(after) == set(range(READINGS)), "a reading is missing"
    assert after == sorted(after), "they come in order"
    print(f"{READINGS} readings evaluated; the process was killed once on the way")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--evaluate"]:
        evaluate(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "readings.d")
