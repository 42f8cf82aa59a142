"""The packages that are checked: one of each kind."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DIST = Path(os.environ.get("PENSTOCK_DIST", ROOT / "dist"))


def package(pattern: str) -> Path:
    """The one file of this pattern. `make packages` makes all of them."""
    found = list(DIST.glob(pattern))
    assert len(found) == 1, f"{DIST} has {len(found)} files {pattern}, expected 1: make packages"
    return found[0]


def run(*command: str | Path, code: int = 0, **options: object) -> str:
    """What a command writes, stdout and stderr. Fails if it ends with another exit code."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, **options,
    )  # type: ignore[call-overload]  # fmt: skip
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}"
    return str(done.stdout)
