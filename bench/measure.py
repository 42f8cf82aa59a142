"""One part of the bench from its first scenario to its last, as run.py and its like want it.

Apart from runner.py, which processes under load import too: this needs Penstock itself.
"""

import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from report import facts
from runner import ROOT, Progress, Result, Runner


def measure(part: type[Runner], data: Path, *, is_quick: bool, only: Collection[str]) -> Result:
    """The facts, all figures or those of some scenarios, and how long it took. `data` is emptied
    before, and deleted afterwards."""
    if data.exists():
        shutil.rmtree(data)
    data.mkdir(parents=True)
    found: Result = {**facts(ROOT, data), "is_quick": is_quick}
    found["load"] = round(os.getloadavg()[0], 1)
    started = time.monotonic()
    progress = Progress()
    bench = part(data, is_quick=is_quick, say=progress)
    try:
        for name, scenario in bench.scenarios().items():
            if not only or name in only:
                scenario()
    finally:
        bench.end()
        progress.end()
        shutil.rmtree(data, ignore_errors=True)
    found["figures"] = bench.figures
    found["seconds"] = round(time.monotonic() - started, 1)
    return found
