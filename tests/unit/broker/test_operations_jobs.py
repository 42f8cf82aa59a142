"""Checkpoints and backups as jobs: begun, waited for, remembered, failed."""

import errno

import pytest

from penstock.broker.operations.jobs import JOBS_KEPT
from penstock.storage.tools.verify import verify
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    made = OperationRig()
    made.result("declare_queue", queue="q")
    made.put("q", *[b"%d" % n for n in range(20)])
    return made


def done(rig: OperationRig, job: int) -> dict[str, object]:
    """The result of the job, after as many ticks as it takes."""
    for _ in range(10_000):
        rig.tick(0.01)
        found = rig.result("job", job=job)
        if found["is_done"]:
            return dict(found["result"])
    raise AssertionError("it never ends")


def test_a_checkpoint(rig: OperationRig) -> None:
    before = rig.vhost.engine.checkpoints.number
    job = rig.result("checkpoint")["job"]
    asked = rig.ask("job", job=job, wait_ms=60_000)
    assert not asked.has_come
    assert done(rig, job)["number"] == rig.vhost.engine.checkpoints.number
    assert rig.vhost.engine.checkpoints.number > before
    assert asked.result["is_done"] is True


def test_one_that_is_asked_for_during_another_has_a_cut_of_its_own(rig: OperationRig) -> None:
    first = rig.result("checkpoint")["job"]
    rig.tick(0.01)
    second = rig.result("checkpoint")["job"]
    a, b = done(rig, first)["number"], done(rig, second)["number"]
    assert isinstance(a, int)
    assert isinstance(b, int)
    assert a <= b


def test_a_wait_that_is_too_short_says_so(rig: OperationRig) -> None:
    job = rig.result("checkpoint")["job"]
    assert rig.ask("job", job=job).result == {"is_done": False, "result": {}}


def test_a_backup_can_be_opened(rig: OperationRig) -> None:
    job = rig.result("backup", path="/copy")["job"]
    rig.put("q", b"later")
    found = done(rig, job)
    assert set(found) == {"linked", "copied", "copied_bytes"}
    assert rig.fs.exists("/copy/VERSION")
    report = verify(rig.fs, "/copy")
    assert report.is_fine
    assert [(queue.name, queue.count) for queue in report.queues] in ([("q", 20)], [("q", 21)])


def test_a_backup_to_a_place_that_is_not_free(rig: OperationRig) -> None:
    error = rig.refusal("backup", path="/data")
    assert error.code == 406
    assert "expected a free path" in error.text
    assert rig.refusal("backup", path="copy").code == 406


def test_a_job_that_fails_says_why(rig: OperationRig) -> None:
    job = rig.result("backup", path="/copy")["job"]
    rig.fs.fail(errno.ENOSPC, kinds=["create"], path="/copy/vhosts")
    error = None
    for _ in range(1000):
        rig.tick(0.01)
        (answer,) = rig.ask("job", job=job).replies
        if isinstance(answer, BaseException):
            error = answer
            break
    assert error is not None
    assert getattr(error, "code", 0) == 506


def test_the_last_few_jobs_are_remembered(rig: OperationRig) -> None:
    jobs = []
    for _ in range(JOBS_KEPT + 3):
        job = rig.result("checkpoint")["job"]
        done(rig, job)
        jobs.append(job)
    assert rig.result("job", job=jobs[-1])["is_done"]
    assert rig.refusal("job", job=jobs[0]).code == 404
