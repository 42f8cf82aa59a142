"""What is known about a pipeline without Spark: its state directory, and its queues at the broker.

The state directory holds how far the pipeline is and how its last run went:

    state/flights/
        checkpoint/            Spark's: metadata {"id": the query}, offsets/<batch>, commits/<batch>
        pipeline.json          ours: the pipeline, and how its last run went
        lock                   held during a run

An offsets file is a line "v1", a line of Spark's own, and a line of JSON for each source: the
offset where the batch ends. A batch is done when commits/ has its number. A batch that is only in
offsets/ was planned, and the next run does it again. What the offsets mean: offsets.py.

**Questions to a broker** (does a queue exist, how far is a stream) come from the driver's process,
over AMQP, with penstock.client. The rows themselves go through the source and the sink. A missing
queue that a pipeline writes to is declared durable, without arguments; an existing one stays as it
is, be it a stream or a queue with limits.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.client import ClientConnection, connect
from penstock.codec.spec import ExchangeDeclare, QueueDeclare, QueueDeclareOk
from penstock.errors import ChannelError, LockedError
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


ANSWER_S = 30.0
NOT_FOUND = 404
NAMES_MAX = 1000  # of one answer
CLASSIC = "classic"

Heads = dict[int, int]  # partition -> the offset after its last record


@contextmanager
def broker_at(url: str | None) -> Iterator[ClientConnection]:
    """Return a connection for a few questions. Raises UnreachableError and the broker's own
    errors."""
    with closing(connect(url)) as connection:
        yield connection


def has_queue(connection: ClientConnection, name: str) -> bool:
    """Return whether a queue or stream exists."""
    return messages_in(connection, name) is not None


def messages_in(connection: ClientConnection, name: str) -> int | None:
    """Return how many messages are ready in a queue, or None if it does not exist."""
    method = QueueDeclare(queue=name, passive=True)
    answer = _asked(connection, method)
    return answer.message_count if isinstance(answer, QueueDeclareOk) else None


def has_exchange(connection: ClientConnection, name: str) -> bool:
    """Return whether an exchange exists."""
    return _asked(connection, ExchangeDeclare(exchange=name, passive=True)) is not None


def ensure_queue(connection: ClientConnection, name: str) -> bool:
    """Declare a queue if it is missing. Return whether it was."""
    if has_queue(connection, name):
        return False
    _asked(connection, QueueDeclare(queue=name, durable=True))
    return True


def described(connection: ClientConnection, name: str) -> dict[str, Any]:
    """Return the broker's description of a queue or stream: name, type ("classic", "stream"),
    ready, leases. Raises ChannelError if it does not exist, or this user may not see it."""
    with closing(connection.channel()) as channel:
        found: Any = channel.call("describe_queue", {"queue": name}).result(ANSWER_S)
    return dict(found)


def names_at(connection: ClientConnection) -> list[str]:
    """Return the names of queues and streams that this user may use, as many as one answer
    holds."""
    channel = connection.channel()
    found: list[str] = []
    try:
        for op in ("box.queues", "box.streams"):
            answer: Any = channel.call(op, {"after": "", "n": NAMES_MAX}).result(ANSWER_S)
            found += [str(name) for name in answer]
    finally:
        channel.close()
    return found


def left_of(connection: ClientConnection, name: str, reader: str, done: int) -> int:
    """Return how many messages or records are left after the first `done`. reader: the name under
    which the pipeline leases. Raises ChannelError."""
    found = described(connection, name)
    if found["type"] != CLASSIC:
        return max(0, sum(heads_of(connection, name).values()) - done)
    leased = [int(one["head"]) - done for one in found["leases"] if one["reader"] == reader]
    return int(found["ready"]) + max(0, sum(leased))


def heads_of(connection: ClientConnection, stream: str) -> Heads:
    """Return the heads of a stream's partitions. Raises ChannelError if it is not a stream, or not
    visible."""
    with closing(connection.channel()) as channel:
        found: Any = channel.call(
            "describe_stream", {"queue": stream, "without_readers": True}
        ).result(ANSWER_S)
    return {int(one["partition"]): int(one["head"]) for one in found["partitions"]}


def _asked(connection: ClientConnection, method: Any) -> Any:
    """Return the broker's answer, or None if there is nothing of that name."""
    channel = connection.channel()
    try:
        return channel.ask(method).result(ANSWER_S)
    except ChannelError as error:
        if error.code == NOT_FOUND and method.passive:
            return None
        raise
    finally:
        channel.close()
