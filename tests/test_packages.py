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
import yaml

from penstock.errors import install_advice
from tests.test_house import names_of

ROOT = Path(__file__).parent.parent
FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = FILE["project"]
TOOLS = FILE["tool"]
EXTRAS = PROJECT["optional-dependencies"]

LIBRARY = (ROOT / "tests" / "packages" / "library.py").read_text()
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
    done = run_without(tuple(EXTRAS), LIBRARY, "letters.d", directory=tmp_path)
    assert (done.stdout, done.stderr) == ("Dear Ada\nno broker\n", "")


@pytest.mark.parametrize(
    ("extras", "said"),
    [
        (
            ("cli", "server"),
            "penstock: the library is installed without its commands: "
            f"{install_advice('server')}, or with [cli] for the commands without the broker\n",
        ),
        (
            ("server",),
            "penstock: the broker needs the package starlette, which is not installed: "
            f"{install_advice('server')}\n",
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
    run_without((), LIBRARY, "letters.d", directory=tmp_path)
    done = run_without(("server",), COMMAND, "store", "verify", "letters.d", directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_release_makes_a_wheel_for_each_python_that_is_promised() -> None:
    wanted = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    builds = TOOLS["cibuildwheel"]["build"].split()
    assert builds == [f"cp{version.replace('.', '')}-*" for version in sorted(wanted)]
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert set(release["jobs"]) == {"wheels", "packages", "publish"}
    assert release["permissions"] == {"contents": "read"}
    assert set(release["jobs"]["publish"]["needs"]) == {"wheels", "packages"}
    steps = [step.get("run", "") for step in release["jobs"]["packages"]["steps"]]
    assert "make packages sbom" in steps
    assert any("verify-tag" in step for step in steps)
