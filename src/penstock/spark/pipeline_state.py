"""A pipeline's state directory: how far it is and how its last run went, read without Spark.

    state/flights/
        checkpoint/            Spark's: metadata {"id": the query}, offsets/<batch>, commits/<batch>
        pipeline.json          ours: the pipeline, and how its last run went
        lock                   held during a run

An offsets file is a line "v1", a line of Spark's own, and a line of JSON for each source: the
offset where the batch ends. A batch is done when commits/ has its number. A batch that is only in
offsets/ was planned, and the next run does it again. What the offsets mean: offsets.py.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import LockedError
from penstock.spark.file_sink import LocalFiles
from penstock.spark.pipeline_file import PipelineSpec

CHECKPOINT: Final = "checkpoint"
FACTS: Final = "pipeline.json"
LOCK: Final = "lock"


@dataclass
class RunFacts:
    """What a run has done. outcome: "running", "done", "stopped" or "failed". sinks: title -> rows,
    without rows that a replay found in files or tables already. Times are seconds since 1970."""

    started_s: float
    ended_s: float | None = None
    outcome: str = "running"
    error: str | None = None
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    failed: int = 0
    sinks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineState:
    """The state in one directory. planned, committed: the last batch in offsets/ and commits/, or
    None. offsets: of the last committed batch, one for each source. is_running: whether the lock is
    held."""

    directory: str
    name: str
    query_id: str | None
    planned: int | None
    committed: int | None
    offsets: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    is_running: bool


def is_remote(path: str) -> bool:
    """Return whether the path is not a directory of this machine."""
    return "://" in path


def write_facts(spec: PipelineSpec, run: RunFacts) -> None:
    """Write pipeline.json. A remote state directory has none."""
    if is_remote(spec.state):
        return
    facts = {
        "name": spec.name, "file": spec.place, "trigger": spec.trigger,
        "source": {"kind": spec.source.kind, "name": spec.source.name, "path": spec.source.path},
        "sinks": [sink.title for sink in spec.sinks],
        "dead_letter": spec.dead_letter,
        "run": asdict(run),
    }  # fmt: skip
    LocalFiles().write(f"{spec.state}/{FACTS}", json.dumps(facts, indent=1))


def read_state(directory: str) -> PipelineState | None:
    """Return the state in a directory, or None if it has no pipeline's state."""
    root = Path(directory)
    facts = _json(root / FACTS)
    checkpoint = root / CHECKPOINT if (root / CHECKPOINT).is_dir() else root
    metadata = _json(checkpoint / "metadata")
    if facts is None and metadata is None:
        return None
    committed = _last(checkpoint / "commits")
    return PipelineState(
        directory=str(root),
        name=str((facts or {}).get("name", root.name)),
        query_id=None if metadata is None else str(metadata.get("id")),
        planned=_last(checkpoint / "offsets"),
        committed=committed,
        offsets=() if committed is None else _offsets(checkpoint / "offsets" / str(committed)),
        facts=facts or {},
        is_running=is_locked(root / LOCK),
    )


def find_states(root: str) -> list[PipelineState]:
    """Return the states in a directory or directly below it, by name."""
    top = Path(root)
    found = [read_state(str(top))] if top.is_dir() else []
    if found == [None]:
        found = [read_state(str(path)) for path in sorted(top.iterdir()) if path.is_dir()]
    return [state for state in found if state is not None]


def _last(directory: Path) -> int | None:
    if not directory.is_dir():
        return None
    return max((int(p.name) for p in directory.iterdir() if p.name.isdecimal()), default=None)


def _offsets(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[2:]
    except OSError:
        return ()
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return tuple(found)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


# ---- the lock ------------------------------------------------------------------------------------


class StateLock:
    """Allows one run at a time. Raises LockedError if there is another. A remote directory has no
    lock."""

    def __init__(self, state: str) -> None:
        self._descriptor = -1
        if is_remote(state):
            return
        path = Path(state) / LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 40).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise LockedError(state, f"a run of this pipeline, process {holder}") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
