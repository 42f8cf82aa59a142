"""`penstock publish`: where bodies come from, batches, properties."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.cli.main import CommandRefusedError
from penstock.cli.queues import batches
from tests.helpers.fake_control import FakeControl


class Piped(io.BytesIO):
    """A pipe from which each read gets one of these pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(b"".join(pieces))
        self._pieces = list(pieces)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def stdin(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Piped(pieces)))


def test_one_message_to_a_queue(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl()
    assert broker.run("publish", "jobs", "hello") == 0
    assert broker.asked == [
        (
            "publish",
            "/",
            {
                "exchange": "", "routing_key": "jobs", "properties": {"delivery_mode": 2},
                "bodies": [b"hello"],
            },
        )
    ]  # fmt: skip
    assert capsys.readouterr().out == "1 published\n"


def test_a_body_from_a_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "body").write_bytes(b"\xff\n")
    broker = FakeControl()
    assert broker.run("publish", "k", "-e", "x", "--file", str(tmp_path / "body")) == 0
    stdin(monkeypatch, b"all\nof it")
    assert broker.run("publish", "k", "--exchange", "x") == 0
    assert [args["bodies"] for _, _, args in broker.asked] == [[b"\xff\n"], [b"all\nof it"]]


def test_lines_go_in_batches_of_what_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(monkeypatch, b"a\nb\nc", b"d", b"e\n\nf")
    broker = FakeControl()
    assert broker.run("publish", "k", "--lines", "--format", "json") == 0
    assert [args["bodies"] for _, _, args in broker.asked] == [[b"a", b"b"], [b"cde", b""], [b"f"]]
    assert json.loads(capsys.readouterr().out) == {"published": 5}


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"\n", [b""]), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"\na", [b"", b"a"])],
)
def test_lines(data: bytes, lines: list[bytes]) -> None:
    for cut in range(len(data) + 1):
        pieces = [piece for piece in (data[:cut], data[cut:]) if piece]
        assert [line for batch in batches(Piped(pieces)) for line in batch] == lines


def test_properties_and_headers() -> None:
    broker = FakeControl()
    words = ["-P", "priority=5", "-P", "content-type=a=b", "-H", "n=1", "-H", "s=x", "-H", "l=[1]"]
    assert broker.run("publish", "k", "body", *words, "--transient") == 0
    assert broker.asked[0][2]["properties"] == {
        "priority": 5, "content_type": "a=b", "delivery_mode": 1,
        "headers": {"n": 1, "s": "x", "l": [1]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-P", "prioritty=5"], "did you mean 'priority'?"),
        (["-P", "priority=high"], "a whole number"),
        (["-P", "priority"], "expected NAME=VALUE"),
        (["-H", "=5"], "expected NAME=VALUE"),
        (["--lines"], "do not go together"),
        (["--file", "x"], "do not go together"),
    ],
)
def test_wrong_words_are_64(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = FakeControl()
    assert broker.run("publish", "k", "body", *words) == 64
    assert told in capsys.readouterr().err
    assert not broker.asked


def test_it_says_how_many_were_published_before_one_was_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*, bodies: list[bytes], **_: object) -> None:
        if b"c" in bodies:
            raise CommandRefusedError(312, "NO_ROUTE - no queue")

    stdin(monkeypatch, b"a\nb\n", b"c\n")
    assert FakeControl(publish=answer).run("publish", "k", "--lines") == 66
    captured = capsys.readouterr()
    assert captured.out == "2 published\n"
    assert "NO_ROUTE" in captured.err


def test_a_missing_file_is_66() -> None:
    assert FakeControl().run("publish", "k", "--file", "/no/such/file") == 66
