import io
import logging

import pytest

from penstock.clock import ManualClock
from penstock.operation_table import TAIL_LINES
from penstock.server.log_lines import (
    ALL_BURST,
    BURST,
    TAIL_CHARACTERS,
    ClientLines,
    Lines,
    LogHandler,
    LogTail,
    client_line,
    event_logger,
)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("checkpoint", "INFO"),
        ("disk_full", "WARNING"),
        ("corruption", "ERROR"),
        ("dead_letter_cycle", "WARNING"),
    ],
)
def test_events_that_somebody_must_look_at_stand_out(
    kind: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        event_logger(logging.getLogger("penstock.test"))(kind, "something, 100 %")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (level, f"{kind}: something, 100 %")
    ]


class World:
    """A logger with our handler, on a clock of its own; what it wrote."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(Lines("vhost 'a%b\n'"))
        handler.addFilter(ClientLines(self.clock))
        self.logger = logging.Logger("test")
        self.logger.addHandler(handler)

    def lines(self) -> list[str]:
        """What was written since this was asked before, without the times."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [line if line[0] == " " else line[24:] for line in text.splitlines()]


def test_no_client_forges_a_line_or_writes_to_a_terminal() -> None:
    world = World()
    name = "q\n2026-11-21 16:30:00,123 ERROR node: forged\x1b[2J\udcff"
    world.logger.warning("queue '%s'", name)
    assert world.lines() == [
        "WARNING vhost 'a%b\\x0a': queue 'q\\x0a2026-11-21 16:30:00,123 ERROR node: forged"
        "\\x1b[2J\\xff'"
    ]
    try:
        raise ValueError(name)
    except ValueError:
        world.logger.exception("failed")
    first, *others = world.lines()
    assert first == "ERROR vhost 'a%b\\x0a': failed"
    assert others
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_one_address_writes_few_lines_and_the_others_are_still_seen() -> None:
    world = World()
    for n in range(1000):
        client_line(world.logger, "10.0.0.1", "refused %d", n)
    assert len(world.lines()) == BURST
    client_line(world.logger, "10.0.0.2", "refused")
    world.logger.warning("ours")
    assert [line.split(": ")[1] for line in world.lines()] == ["refused", "ours"]
    world.clock.advance(1.0)
    for _ in range(10):
        client_line(world.logger, "10.0.0.1", "again")
    count = 1000 - BURST
    assert world.lines() == [
        f"WARNING vhost 'a%b\\x0a': again ({count} lines about 10.0.0.1 were left out before this "
        "one)"
    ]


def test_many_addresses_together_write_few_lines_too() -> None:
    world = World()
    for n in range(5000):
        client_line(world.logger, f"address {n}", "refused")
    assert len(world.lines()) == ALL_BURST
    world.clock.advance(0.1)
    client_line(world.logger, "another", "refused")
    assert "4800 lines about clients were left out" in world.lines()[0]


def test_the_last_lines_of_all_processes_are_kept() -> None:
    log = LogTail()
    for number in range(1, TAIL_LINES + 11):
        log.add("vhost", "/", 1_700_000_000_000 + number, "info", f"line {number}")
    log.add("http", None, 1_700_000_002_000, "error", "x" * (TAIL_CHARACTERS + 1))
    rows = log.rows(TAIL_LINES, "debug", None)
    assert len(rows) == TAIL_LINES
    assert rows[0]["text"] == "line 12"
    assert rows[0]["time"] == "2023-11-14T22:13:20.012+00:00"
    assert (rows[-1]["process"], rows[-1]["number"]) == ("http", TAIL_LINES + 11)
    assert len(str(rows[-1]["text"])) == TAIL_CHARACTERS
    assert [row["number"] for row in log.rows(2, "debug", None)] == [1010, 1011]
    assert [row["number"] for row in log.rows(9, "warning", None)] == [1011]
    assert log.rows(9, "debug", 1011) == []
    assert len(log.rows(9, "debug", 5000)) == 9  # the number is of an earlier start


def test_each_line_that_is_written_is_given_on() -> None:
    taken: list[tuple[str, str]] = []
    handler = LogHandler("vhost '/'", lambda _ms, level, text: taken.append((level, text)))
    handler.setStream(io.StringIO())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("queue '%s'", "a\nb")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    assert taken[0] == ("warning", "queue 'a\\x0ab'")
    level, text = taken[1]
    assert (level, text.split("\n")[0]) == ("error", "failed")
    assert text.split("\n")[-1] == "    ValueError: no"
