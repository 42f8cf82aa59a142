"""The programs of examples/ that need nothing else run, twice in the same directory.

The blocks of code in the documentation are run by test_docs.py, and the other examples by `make
run` and tests/spark.
"""

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
