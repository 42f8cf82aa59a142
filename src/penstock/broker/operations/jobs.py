"""Operations that take long: checkpoint and backup. They are jobs, done in steps between turns.

`checkpoint` and `backup` begin a job and reply at once with its number. `job` replies when the job
has ended, or after wait_ms with is_done false, to be called again. So no call is open for longer
than a minute, whatever the size of the vhost. A job goes on when its caller has left.

Each tick of the vhost gives a job a slice of a few milliseconds. The last jobs that have ended are
remembered, with their result or error.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from penstock.broker.operations.call import Call, Functions
from penstock.broker.operations.messages import operators
from penstock.broker.refusals import precondition_failed
from penstock.broker.vhost import VHost
from penstock.errors import NOT_FOUND, RESOURCE_ERROR, AMQPError, ChannelError, PenstockError
from penstock.storage.files.data_directory import FreshDirectory
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.tools.backup import Backup

JOBS_KEPT: Final = 16
SLICE_S: Final = 0.002
PAUSE_S: Final = 0.005  # while the disk is at it


class SteppedJob(ABC):
    """Work in steps. result, or error, is set when it is done."""

    def __init__(self, vhost: VHost) -> None:
        self.vhost = vhost
        self.is_done: bool = False
        self.result: dict[str, object] = {}
        self.error: AMQPError | None = None
        self.waiters: list[Callable[[], None]] = []

    @abstractmethod
    def step(self) -> float | None:
        """Do a little; return in how many seconds to continue, None when it is done."""

    def run(self) -> None:
        """Do a slice, and schedule the next one. An error ends the job; a failure of the engine is
        raised as well, and ends the vhost."""
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
            self.vhost.timers.call_at(clock.monotonic() + pause, self.run)

    def failed(self, error: Exception) -> None:
        """Set the error of the job."""
        if isinstance(error, PenstockError | OSError):
            self.error = ChannelError(RESOURCE_ERROR, str(error))
        else:
            self.error = AMQPError(541, f"{type(error).__name__}: {error}")


class CheckpointJob(SteppedJob):
    """A whole checkpoint whose cut is after this moment."""

    def __init__(self, vhost: VHost) -> None:
        super().__init__(vhost)
        self._has_begun = False
        self._before = 0

    def step(self) -> float | None:
        engine = self.vhost.engine
        engine.journal.check()
        if engine.checkpoints.phase == SLICES:
            engine.upkeep.step_checkpoint(engine.clock.monotonic() + SLICE_S)
            return 0.0
        if engine.checkpoints.phase != IDLE:
            return PAUSE_S
        if not self._has_begun:
            self._before = engine.checkpoints.count
            engine.upkeep.begin_checkpoint()
            self._has_begun = engine.checkpoints.phase != IDLE  # not within a large commit
            return PAUSE_S
        if engine.checkpoints.count == self._before:
            raise engine.disk_error(engine.checkpoints.bytes)
        self.result = {"number": engine.checkpoints.number, "bytes": engine.checkpoints.bytes}
        return None


class BackupJob(SteppedJob):
    """A backup of the vhost into a free directory, verified before the job is done."""

    def __init__(self, vhost: VHost, path: str) -> None:
        super().__init__(vhost)
        self._fresh = FreshDirectory(vhost.engine.fs, path, "a backup")
        self._part = Backup(vhost.engine, self._fresh)

    def step(self) -> float | None:
        self.vhost.engine.journal.check()
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


def _backup(call: Call) -> None:
    try:
        job = BackupJob(call.vhost, call.args.text("path"))
    except (PenstockError, OSError) as error:
        raise precondition_failed(f"backup: {error}") from error
    _begin(call, job)


def _begin(call: Call, job: SteppedJob) -> None:
    vhost = call.vhost
    known = operators(vhost)
    known.last_job += 1
    known.jobs[known.last_job] = job
    ended = [n for n, one in known.jobs.items() if isinstance(one, SteppedJob) and one.is_done]
    for number in ended[:-JOBS_KEPT]:
        del known.jobs[number]
    vhost.timers.call_at(vhost.clock.monotonic(), job.run)
    call.reply({"job": known.last_job})


def _wait_for_job(call: Call) -> None:
    vhost, reply = call.vhost, call.reply
    number, wait_ms = call.args.whole("job"), call.args.whole("wait_ms")
    job = operators(vhost).jobs.get(number)
    if not isinstance(job, SteppedJob):
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
    vhost.timers.call_at(vhost.clock.monotonic() + wait_ms / 1000, answer)


FUNCTIONS: Final[Functions] = {
    "checkpoint": lambda call: _begin(call, CheckpointJob(call.vhost)),
    "backup": _backup,
    "job": _wait_for_job,
}
