"""Each error says what, where and why in one line, and keeps its arguments."""

import errno
import importlib.metadata
import inspect

import pytest

from penstock import errors
from penstock.errors import (
    VERSION_ADVICE,
    AMQPConnectionError,
    AMQPError,
    BatchConflictError,
    BoxClosedError,
    ChannelError,
    ConnectionLostError,
    CorruptionError,
    DescriptorsError,
    DiskFullError,
    ForkedError,
    LockedError,
    MissingCapabilityError,
    MissingPackageError,
    NetworkFileSystemError,
    NotAStoreError,
    NotLeasableError,
    OptionError,
    PathNotFreeError,
    PenstockError,
    QueueEmptyError,
    QueueFullError,
    QueueLeasedError,
    ReaderTakenError,
    SettledError,
    StoppedError,
    StorageError,
    StreamGapError,
    SyncFailedError,
    TransactionError,
    TransactionTooLargeError,
    UnknownLeaseError,
    UnknownQueueError,
    UnreachableError,
    VersionError,
    install_advice,
)

SAMPLES: list[tuple[PenstockError, list[str]]] = [
    (CorruptionError(path="d/1.wal", position=64, reason="bad crc"), ["d/1.wal", "64", "bad crc"]),
    (LockedError(path="d/LOCK", holder="pid 7"), ["d/LOCK", "pid 7"]),
    (VersionError(path="d/VERSION", expected=1, found=9), ["d/VERSION", "1", "9"]),
    (NotAStoreError(path="d", reason="no VERSION"), ["d", "no VERSION"]),
    (PathNotFreeError(path="d", reason="it is a file"), ["d", "it is a file"]),
    (NetworkFileSystemError(path="d", kind="nfs4"), ["d", "nfs4"]),
    (DiskFullError(path="d", free_bytes=10, needed_bytes=20), ["d", "10", "20"]),
    (DescriptorsError(path="d/1.wal"), ["d/1.wal", "ulimit -n"]),
    (SyncFailedError(path="d/1.wal", cause=OSError(errno.EIO, "I/O")), ["d/1.wal", "I/O"]),
    (StoppedError(reason="sync failed"), ["sync failed"]),
    (TransactionTooLargeError(size_bytes=300, limit_bytes=256), ["300", "256"]),
    (UnknownQueueError("orders"), ["orders"]),
    (UnknownLeaseError("orders", "job"), ["orders", "job"]),
    (QueueLeasedError("orders", 7, ["job"]), ["orders", "7", "job", "force"]),
    (NotLeasableError("orders", "it is not durable"), ["orders", "not durable"]),
    (MissingPackageError("pyspark is missing"), ["pyspark"]),
    (BatchConflictError("batch 3 is another one"), ["batch 3"]),
    (ReaderTakenError("reader 'r' belongs to another query"), ["'r'"]),
    (AMQPError(541, "a mistake"), ["INTERNAL_ERROR", "a mistake"]),
    (ChannelError(404, "no queue 'q'", 50, 10), ["NOT_FOUND", "'q'"]),
    (AMQPConnectionError(501, "frame of 9 bytes"), ["FRAME_ERROR", "9"]),
    (UnknownQueueError(17), ["17"]),
    (QueueFullError(queue="jobs", limit="messages", given=11, allowed=10), ["jobs", "11", "10"]),
    (QueueEmptyError(queue="jobs", timeout_s=0.5), ["jobs", "0.5 s"]),
    (SettledError(queue="jobs", tag=9), ["jobs", "9"]),
    (StreamGapError("events", 2, 10, 17), ["events", "partition 2", "7 records", "10", "17"]),
    (ForkedError(path="jobs.d", opened_by=7, used_by=8), ["jobs.d", "7", "8"]),
    (BoxClosedError(path="jobs.d", what="stream"), ["stream", "jobs.d", "closed"]),
    (TransactionError("they do not nest"), ["nest"]),
    (ConnectionLostError(url="amqp://h", reason="reset"), ["amqp://h", "reset"]),
    (UnreachableError(url="amqp://h", reason="refused"), ["amqp://h", "refused"]),
    (MissingCapabilityError(url="amqp://h", product="RabbitMQ"), ["amqp://h", "RabbitMQ"]),
    (OptionError(name="interval", given=-1, expected="0 or more"), ["interval", "-1", "0 or more"]),
]


def test_there_is_a_sample_of_every_error() -> None:
    bases = {PenstockError, StorageError}
    every = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)}
    assert {type(error) for error, _ in SAMPLES} | bases == every


@pytest.mark.parametrize(("error", "told"), SAMPLES, ids=lambda v: type(v).__name__)
def test_an_error_tells_its_arguments_in_one_line(error: PenstockError, told: list[str]) -> None:
    assert "\n" not in str(error)
    assert [word for word in told if word not in str(error)] == []


@pytest.mark.parametrize(("error", "_told"), SAMPLES, ids=lambda v: type(v).__name__)
def test_an_error_keeps_its_arguments(error: PenstockError, _told: list[str]) -> None:
    names = list(inspect.signature(type(error)).parameters)
    assert [name for name in names if not hasattr(error, name)] == []


@pytest.mark.parametrize(("error", "_told"), SAMPLES, ids=lambda v: type(v).__name__)
def test_what_is_about_files_is_a_storage_error(error: PenstockError, _told: list[str]) -> None:
    others = (
        AMQPError, BatchConflictError, ConnectionLostError, ForkedError, MissingCapabilityError,
        MissingPackageError, NotLeasableError, OptionError, QueueEmptyError, QueueFullError,
        QueueLeasedError, ReaderTakenError, SettledError, StreamGapError, TransactionError,
        UnreachableError,
    )  # fmt: skip
    assert isinstance(error, StorageError) is not isinstance(error, others)


def test_corruption_is_told_with_path_and_byte() -> None:
    assert str(CorruptionError("a/b.rdq", 4096, "bad crc")) == "a/b.rdq: at byte 4096: bad crc"


def test_a_newer_store_is_told_with_what_to_do() -> None:
    error = VersionError("d/VERSION", 1, 2)
    assert str(error) == "d/VERSION: expected version 1, found 2: a newer Penstock wrote it"
    assert error.__notes__ == [VERSION_ADVICE]


def test_an_unknown_option_suggests_the_nearest() -> None:
    error = OptionError("segment_byte", 4, ["segment_bytes", "sync_mode"])
    assert str(error) == "unknown option 'segment_byte', did you mean 'segment_bytes'?"


def test_an_unknown_option_like_no_other_suggests_none() -> None:
    assert str(OptionError("colour", 4, ["segment_bytes"])) == (
        "unknown option 'colour', known are segment_bytes"
    )
    many = str(OptionError("colour", 4, [f"segment_{n}" for n in range(100)]))
    assert many.endswith("...")
    assert len(many) < 400


def test_every_reply_code_has_its_name() -> None:
    codes = {name: value for name, value in vars(errors).items() if isinstance(value, int)}
    assert len(codes) == len(errors.REPLY_NAMES) == 20
    for name, code in codes.items():
        assert errors.REPLY_NAMES[code] in (name, f"REPLY_{name}")


def test_a_missing_package_is_installed_from_where_penstock_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    origin: str | None = '{"url": "file:///a/penstock.whl"}'

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return origin

    def none(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed())
    advice = install_advice("tls")
    assert advice == "type pip install 'penstock[tls] @ file:///a/penstock.whl'"
    origin = None
    in_a_clone = "in a clone of Penstock, type pip install '.[tls]'"
    assert install_advice("tls") == in_a_clone
    monkeypatch.setattr(importlib.metadata, "distribution", none)
    assert install_advice("tls") == in_a_clone
