"""The examples run: all Python of README and docs, and the programs of examples/ that need nothing.

The blocks of one page are one program, in their order, run in a directory of their own, with
warnings as errors. What a comment says is printed is for the reader; what must hold is asserted
there. All pages that speak to the broker at localhost:5672 are given one broker at another port,
one page after the other and each of them twice, as somebody does who tries what he reads.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.live_broker import LiveBroker

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = sorted((ROOT / "examples").glob("embedded_*.py"))
ADDRESS = "localhost:5672"
HTTP_ADDRESS = "localhost:15672"
# What a page may import besides the standard library and us; skipped where one is missing.
OTHERS = ("pika", "pyarrow")
# What a program must have printed at its end.
PRINTS = {
    "embedded_asyncio": "100 orders done; 100 confirmed by ",
    "embedded_persist": "60 readings evaluated; the process was killed once on the way\n",
    "embedded_pipeline": "6 the\n2 turns\n2 water\n2 wheel\n1 comes",
    "embedded_streams": "the board saw 60 events\nbilled 157 euros\n20 ordered, 20 paid",
    "embedded_workers": "57 orders done, 3 dead letters\n",
}


def blocks(page: Path) -> list[str]:
    """The Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def run(program: Path, directory: Path) -> str:
    """What the program prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One broker for all pages that want one."""
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", has_http=True) as broker:
        yield broker
        assert broker.stop() == 0


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = "\n\n".join(blocks(page))
    for package in OTHERS:
        if f"import {package}" in text and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    has_broker = ADDRESS in text
    if has_broker:
        broker: LiveBroker = request.getfixturevalue("live")
        text = text.replace(HTTP_ADDRESS, f"localhost:{broker.http_port}")
        text = text.replace(ADDRESS, f"localhost:{broker.port}")
    for name in ("first", "again") if has_broker else ("first",):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "page.py").write_text(text)
        run(directory / "page.py", directory)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_each_block_of_a_page_imports_what_it_uses(page: Path) -> None:
    """So that a block can be copied alone; what else it goes on from, the page says."""
    imported: set[str] = set()
    for block in blocks(page):
        tree = ast.parse(block)
        here = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imported |= here
        assert not (used & imported) - here, block


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_runs_twice(program: Path, tmp_path: Path) -> None:
    assert PRINTS[program.stem] in run(program, tmp_path)
    run(program, tmp_path)
