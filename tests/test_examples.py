"""The programs of examples/ that need nothing else run, twice in the same directory.

The blocks of code in the documentation are run by test_docs.py, and the other examples by `make
run` and tests/spark.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "examples").glob("embedded_*.py"))
# What a program must have printed at its end.
PRINTS = {
    "embedded_asyncio": "100 orders done; 100 confirmed by ",
    "embedded_persist": "60 readings evaluated; the process was killed once on the way\n",
    "embedded_pipeline": "6 the\n2 turns\n2 water\n2 wheel\n1 comes",
    "embedded_streams": "the board saw 60 events\nbilled 157 euros\n20 ordered, 20 paid",
    "embedded_worked_example": "fetch 1:\n    q4    [19, 20, 21, 22, 23, 24, 25]\n",
    "embedded_workers": "57 orders done, 3 dead letters\n",
}


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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_runs_twice(program: Path, tmp_path: Path) -> None:
    assert PRINTS[program.stem] in run(program, tmp_path)
    run(program, tmp_path)


def numbers(cell: str) -> str:
    """The list that a cell of the page means: 1, 2, 3 of a range from 1 to 3."""
    found: list[int] = []
    for part in filter(None, cell.split(", ")):
        ends = re.findall(r"\d+", part)
        found += range(int(ends[0]), int(ends[-1]) + 1)
    return str(found)


def test_the_page_of_the_worked_example_shows_what_its_program_prints(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-it-works" / "worked-example.md"
    rows = re.findall(r"^\| (?!step|-)(.+) \|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")][1:6] for row in rows]
    told = [
        dict(zip(("q4", "q3", "delta", "q2", "q1"), map(numbers, row), strict=True))
        for row in cells
    ]
    printed = run(ROOT / "examples" / "embedded_worked_example.py", tmp_path)
    states = [
        dict(re.findall(r"^    (\w+) +(.*)$", state, re.MULTILINE))
        for state in re.split(r"^\S.*:$", printed, flags=re.MULTILINE)[1:]
    ]
    assert len(states) == 14
    assert states == told
