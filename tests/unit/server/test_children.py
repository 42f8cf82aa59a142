"""Children of the supervisor: executed and copied ones are the same to whoever starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has copies"),
]

# What a child says of itself, and how it ends.
CHILD = """
import json, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor

FILES = "/proc/self/fd/"

def run_process(arguments):
    link = int(arguments[0])
    asked = os.read(link, 100).decode()
    if asked == "say":
        os.write(link, json.dumps({
            "files": [int(one) for one in os.listdir(FILES) if os.path.exists(FILES + one)],
            "link": link,
            "stdin": sys.stdin.read(), "parent": os.getppid(), "threads": threading.active_count(),
            "path": sys.path,
        }).encode())
    elif asked == "write":
        pool = ThreadPoolExecutor(1)
        for _ in range(10_000):
            pool.submit(os.sched_yield)
        pool.submit(os.write, link, b"written")
    elif asked == "raise":
        raise ValueError("as asked")
    elif asked == "wait":
        os.write(link, b"waits")
        signal.pause()
    return 7

if __name__ == "__main__":
    sys.exit(run_process(sys.argv[1:]))
"""
# Starts one child for each word, and says what became of it.
PARENT = """
import asyncio, json, os, signal, socket, sys
from penstock.server import children
from penstock.server.children import PYTHON, Template, executed

children.IMPORTED = "json"
template = Template.begun()
assert template is not None
open("/dev/null")
kept = os.open("/dev/null", os.O_RDONLY)
os.set_inheritable(kept, True)

async def main():
    start = executed if sys.argv[1] == "executed" else template.start
    found = []
    for word in sys.argv[2:]:
        if word == "stop of the template":
            os.kill(template.pid, signal.SIGSTOP)
            template._sock.settimeout(0.01)
            ours, theirs = socket.socketpair()
            try:
                start((*PYTHON, "a_child"), theirs.fileno(), {})
            except TimeoutError:
                found.append([0, "timed out", 0])
            continue
        if word == "end of the template":
            os.kill(template.pid, signal.SIGKILL)
            continue
        ours, theirs = socket.socketpair()
        child = start((*PYTHON, "a_child"), theirs.fileno(), {"MALLOC_ARENA_MAX": "2"})
        theirs.close()
        ours.send(word.encode())
        said = ours.recv(10_000).decode()
        if word == "wait":
            child.kill()
        found.append([child.pid, said, await child.wait()])
        child.kill()
        assert child.status == found[-1][2]
    print(json.dumps([os.getpid(), template.pid, found]))

asyncio.run(main())
"""
BOTH = pytest.mark.parametrize("way", ["executed", "copied"])


def run(directory: Path, way: str, *words: str) -> tuple[int, int, list[list[object]], str]:
    """The parent's pid, the template's, pid, words and exit status of each child, and errors."""
    (directory / "a_child.py").write_text(CHILD)
    (directory / "elsewhere").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, way, *words], capture_output=True, text=True, check=False,
        timeout=120, input="not for children", cwd=directory / "elsewhere",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *sys.path])},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    parent, template, found = json.loads(ended.stdout)
    return parent, template, found, ended.stderr


@BOTH
def test_a_child_has_its_link_and_nothing_else(tmp_path: Path, way: str) -> None:
    parent, _, ((_, said, status),), _ = run(tmp_path, way, "say")
    told = json.loads(str(said))
    assert set(told["files"]) == {0, 1, 2, told["link"]}
    assert told["stdin"] == ""
    assert told["parent"] == parent
    assert told["threads"] == 1
    assert str(tmp_path / "elsewhere") not in told["path"]
    assert "" not in told["path"]
    assert status == 7


@BOTH
def test_its_end_is_told(tmp_path: Path, way: str) -> None:
    _, _, found, errors = run(tmp_path, way, "raise", "wait", "say")
    assert [status for _, _, status in found] == [1, -9, 7]
    assert "ValueError: as asked" in errors


@BOTH
def test_what_its_threads_have_to_do_is_done_at_its_end(tmp_path: Path, way: str) -> None:
    _, _, ((_, said, status),), _ = run(tmp_path, way, "write")
    assert (said, status) == ("written", 7)


def test_without_the_template_it_is_executed(tmp_path: Path) -> None:
    _, _, found, _ = run(tmp_path, "copied", "say", "end of the template", "say", "say")
    links = [json.loads(str(said))["link"] for _, said, _ in found]
    assert links[0] == 3
    assert 3 not in links[1:]
    assert [status for _, _, status in found] == [7, 7, 7]


def test_nothing_is_executed_beside_a_copy_that_may_have_been_made(tmp_path: Path) -> None:
    _, _, found, _ = run(tmp_path, "copied", "stop of the template", "say")
    assert found[0] == [0, "timed out", 0]
    assert json.loads(str(found[1][1]))["link"] != 3, "the next one is executed"
