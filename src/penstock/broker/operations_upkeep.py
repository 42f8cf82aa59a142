"""Operations that take long: a checkpoint, a backup. They are jobs, done in steps between turns.

`checkpoint` and `backup` begin a job and answer at once with its number; `job` answers when it has
ended, or after wait_ms with is_done false, to be asked again. So no call is open for longer than a
minute, whatever the size of the vhost. Who goes away leaves the job to itself: it ends as it would
have.

Each tick of the vhost gives a job a slice of a few milliseconds. The last few jobs that have ended
are remembered, with their result or error.

Not here: how a checkpoint or a backup is made (penstock.storage).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.broker.operations_messages import WAIT_MS_MAX, operators
from penstock.broker.vhost import VHost
from penstock.errors import NOT_FOUND, RESOURCE_ERROR, AMQPError, ChannelError, PenstockError
from penstock.storage.backup import Backup
from penstock.storage.checkpointer import IDLE, SLICES
from penstock.storage.fresh_directory import FreshDirectory

JOBS_KEPT: Final = 16
SLICE_S: Final = 0.002
PAUSE_S: Final = 0.005  # while the disk is at it


class Job(ABC):
    """Work in steps. result, or error, once it is done."""

    def __init__(self, vhost: VHost) -> None:
        self.vhost = vhost
        self.is_done: bool = False
        self.result: dict[str, object] = {}
        self.error: AMQPError | None = None
        self.waiters: list[Callable[[], None]] = []

    @abstractmethod
    def step(self) -> float | None:
        """A little of it; in how many seconds to go on, None when it is done."""

    def run(self) -> None:
        """A slice, and the next one later. An error of the job is its end; the engine's own
        failure ends the vhost as well, and goes up."""
        clock = self.vhost.clock
        until = clock.monotonic() + SLICE_S
        pause: float | None = 0.0
        try:
            while pause == 0.0 and clock.monotonic() < until:
                pause = self.step()
        except Exception as error:
            pause = None
            self.failed(error)
            if self.vhost.engine.failed is not None:
                raise
        if pause is None:
            self.is_done = True
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()
        else:
            self.vhost.call_at(clock.monotonic() + pause, self.run)

    def failed(self, error: Exception) -> None:
        """What it failed with."""
        if isinstance(error, PenstockError | OSError):
            self.error = ChannelError(RESOURCE_ERROR, str(error))
        else:
            self.error = AMQPError(541, f"{type(error).__name__}: {error}")


class CheckpointJob(Job):
    """A whole checkpoint whose cut is after this moment."""

    def __init__(self, vhost: VHost) -> None:
        super().__init__(vhost)
        self._has_begun = False
        self._before = 0

    def step(self) -> float | None:
        engine = self.vhost.engine
        engine.check()
        checkpoints = engine.checkpoints
        if checkpoints.phase == SLICES:
            engine.upkeep.step_checkpoint(engine.clock.monotonic() + SLICE_S)
            return 0.0
        if checkpoints.phase != IDLE:
            return PAUSE_S
        if not self._has_begun:
            self._before = checkpoints.count
            engine.upkeep.begin_checkpoint()
            self._has_begun = checkpoints.phase != IDLE  # not within a large commit
            return PAUSE_S
        if checkpoints.count == self._before:
            raise engine.disk_error(checkpoints.bytes)
        self.result = {"number": checkpoints.number, "bytes": checkpoints.bytes}
        return None


class BackupJob(Job):
    """A backup of the vhost into a free directory, verified before the job is done."""

    def __init__(self, vhost: VHost, path: str) -> None:
        super().__init__(vhost)
        self._fresh = FreshDirectory(vhost.engine.fs, path, "a backup")
        self._part = Backup(vhost.engine, self._fresh)

    def step(self) -> float | None:
        self.vhost.engine.check()
        part = self._part
        if part.step():
            return PAUSE_S if part.is_waiting else 0.0
        self._fresh.finish()
        self.result = {
            "linked": part.linked, "copied": part.copied, "copied_bytes": part.copied_bytes,
        }  # fmt: skip
        return None

    def failed(self, error: Exception) -> None:
        super().failed(error)
        self._part.abandon()
        self._fresh.abandon()


def checkpoint(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
    """{job}: its number."""
    args.done()
    _begin(vhost, CheckpointJob(vhost), reply)


def backup(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
    """{job}: its number. ChannelError 406: `path` is no absolute one, or not free."""
    path = args.text("path")
    args.done()
    if not path.startswith("/") or "\0" in path:
        raise refused(f"backup: argument 'path': given {path!r}, expected an absolute path")
    try:
        job = BackupJob(vhost, path)
    except (PenstockError, OSError) as error:
        raise refused(f"backup: {error}") from error
    _begin(vhost, job, reply)


def wait_for_job(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
    """{is_done, result}: of the job `job`, within wait_ms. Its error is the error of this."""
    number = args.whole("job", None, 1, 1 << 62)
    wait_ms = args.whole("wait_ms", 0, 0, WAIT_MS_MAX)
    args.done()
    job = operators(vhost).jobs.get(number)
    if not isinstance(job, Job):
        raise ChannelError(NOT_FOUND, f"no job {number}")
    found = job
    has_replied = False

    def answer() -> None:
        nonlocal has_replied
        if not has_replied:
            has_replied = True
            answers = {"is_done": found.is_done, "result": found.result}
            reply(found.error if found.error is not None else answers)

    if job.is_done or not wait_ms:
        answer()
        return
    job.waiters.append(answer)
    vhost.call_at(vhost.clock.monotonic() + wait_ms / 1000, answer)


def _begin(vhost: VHost, job: Job, reply: Reply) -> None:
    known = operators(vhost)
    known.last_job += 1
    known.jobs[known.last_job] = job
    ended = [n for n, one in known.jobs.items() if isinstance(one, Job) and one.is_done]
    for number in ended[:-JOBS_KEPT]:
        del known.jobs[number]
    vhost.call_at(vhost.clock.monotonic(), job.run)
    reply({"job": known.last_job})
