"""What is installed: the library alone, and what says which packages are missing.

`make packages` installs each extra into an environment of its own; here the packages of the extras
are hidden from a fresh interpreter, which takes no time.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_house import names_of

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

LIBRARY = """
import penstock, penstock.aio
with penstock.open("letters.d", memory="1 MiB") as box:
    box.queue("letters").put(b"Dear Ada")
    with box.queue("letters").get(timeout=5) as job:
        print(job.body.decode())
    box.stream("events").append(b"one")
try:
    penstock.open("amqp://localhost:1/")
except penstock.UnreachableError:
    print("no broker")
"""
COMMAND = "import sys; from penstock.__main__ import main; sys.exit(main())"


def run_without(
    extras: tuple[str, ...], program: str, *arguments: str, directory: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a program in an interpreter in which the packages of these extras cannot be imported."""
    names = sorted(set[str]().union(*(names_of(EXTRAS[one]) for one in extras)))
    hidden = f"import sys; sys.modules.update(dict.fromkeys({names}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + program, *arguments], capture_output=True, text=True,
        cwd=directory, env=os.environ, check=False,
    )  # fmt: skip


def test_the_library_needs_no_package_of_any_extra(tmp_path: Path) -> None:
    done = run_without(tuple(EXTRAS), LIBRARY, directory=tmp_path)
    assert (done.stdout, done.stderr) == ("Dear Ada\nno broker\n", "")


@pytest.mark.parametrize(
    ("extras", "said"),
    [
        (
            ("cli", "server"),
            "penstock: the library is installed without its commands: in a clone of Penstock, type "
            "pip install '.[server]', or '.[cli]' for the commands without the broker\n",
        ),
        (
            ("server",),
            "penstock: the broker needs the package starlette, which is not installed: in a clone "
            "of Penstock, type pip install '.[server]'\n",
        ),
    ],
)
def test_a_broker_without_its_packages_says_what_to_install(
    extras: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = run_without(extras, COMMAND, "serve", "--port", "0", directory=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (69, "", said)
    assert not list(tmp_path.iterdir())


def test_commands_about_stores_need_no_server(tmp_path: Path) -> None:
    run_without((), LIBRARY, directory=tmp_path)
    done = run_without(("server",), COMMAND, "store", "verify", "letters.d", directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
