"""kill -9 of a program that runs `penstock.persist`, again and again: nothing kept is lost.

A program gives numbers, each with the run that it is of; its loop tells what it took. When it is
asked for the next number, the one before is on disk: so it says which were kept. The parent kills
it after some lines, at any moment, and runs it again in the same directory. In the end every number
that was kept was taken, those of a run in their order and of one run after the other; and when a
loop has come to its end nothing comes again.
"""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.tools.verify import verify_stream

pytestmark = [pytest.mark.crash, pytest.mark.real]

RUNS = 6
PROGRAM = """
import asyncio, os, sys
import penstock
from penstock import aio

directory, run, kind = sys.argv[1:]

def tell(what, n):
    os.write(1, b"%s %s\\n" % (what, n))

def source():
    n = 0
    while run != "end":
        yield b"%s-%d" % (run.encode(), n)
        n += 1
        tell(b"kept", b"%d" % n)

async def async_source():
    for item in source():
        yield item
        await asyncio.sleep(0)

async def main():
    async for item in aio.persist(async_source(), directory, page_bytes=4096):
        tell(b"took", item)

if kind == "aio":
    asyncio.run(main())
else:
    for item in penstock.persist(source(), directory, page_bytes=4096):
        tell(b"took", item)
"""


def run(program: Path, directory: Path, name: str, kind: str, lines: int) -> tuple[int, list[str]]:
    """One run, killed after so many lines, -1: it ends by itself. (how many were kept, what was
    taken)."""
    command = [sys.executable, str(program), str(directory), name, kind]
    said: list[bytes] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if len(said) == lines:
                process.send_signal(signal.SIGKILL)
        assert process.wait(240) == (0 if lines < 0 else -signal.SIGKILL)
    words = [line.decode().split() for line in said if line.endswith(b"\n")]
    kept = [int(number) for what, number in words if what == "kept"]
    return max(kept, default=0), [item for what, item in words if what == "took"]


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_a_consumer_goes_on_after_its_program_was_killed(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    directory = tmp_path / "kept.d"
    kept: dict[str, int] = {}
    first_times: dict[str, None] = {}
    for name in [str(n) for n in range(RUNS)]:
        kept[name], taken = run(program, directory, name, kind, rng.randint(1, 400))
        first_times.update(dict.fromkeys(taken))
        found = verify_stream(OsFileSystem(0), str(directory))
        assert not found.problems
    _, taken = run(program, directory, "end", kind, -1)
    first_times.update(dict.fromkeys(taken))
    order = [(int(name), int(n)) for name, n in (item.split("-") for item in first_times)]
    assert order == sorted(order)
    for name, count in kept.items():
        numbers = [n for one, n in order if one == int(name)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count, f"run {name}: {count} were kept, {len(numbers)} came"
    assert sum(kept.values()) > 100
    assert run(program, directory, "end", kind, -1) == (0, []), "all of it was acknowledged"
