"""`penstock list_...`: columns, formats, and what is asked of the broker."""

import json

import click
import pytest

from penstock.cli import output
from penstock.cli.main import CommandRefusedError
from penstock.operation_table import OPERATIONS
from tests.helpers.columns import COLUMNS
from tests.helpers.fake_control import FakeControl

QUEUES = [
    {"name": "jobs", "messages": 3, "consumers": 1, "arguments": {"x-max-length": 5}},
    {"name": "a\tb\n", "messages": 0, "consumers": 0, "arguments": {}},
]


def test_without_columns_there_are_a_few(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=QUEUES)
    assert broker.run("list_queues") == 0
    out = capsys.readouterr().out
    assert out == "name\tmessages\njobs\t3\na\\tb\\n\t0\n"
    shown = ["messages", "name"]
    assert broker.asked == [("list_queues", "/", {"columns": shown})]
    assert broker.data == ["./penstock-data"]


def test_columns_in_the_order_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=QUEUES[:1])
    assert broker.run("list_queues", "messages", "arguments", "durable", "-p", "/x") == 0
    out = capsys.readouterr().out
    assert out == 'messages\targuments\tdurable\n3\t{"x-max-length": 5}\t\n'
    asked = ["arguments", "durable", "messages"]
    assert broker.asked == [("list_queues", "/x", {"columns": asked})]


def test_json_has_everything_or_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=QUEUES)
    assert broker.run("list_queues", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == QUEUES
    assert broker.asked == [("list_queues", "/", {})]
    assert broker.run("list_queues", "name", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "jobs"}, {"name": "a\tb\n"}]


def test_an_unknown_column_suggests_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=QUEUES)
    assert broker.run("list_queues", "mesages") == 64
    error = capsys.readouterr().err
    assert "column: given 'mesages', expected one of name, messages, " in error
    assert error.endswith("; did you mean 'messages'?\n")
    assert broker.run("list_queues", "bogus") == 64
    assert "column: given 'bogus', expected one of name, messages, ack_in" in (
        capsys.readouterr().err
    )


def test_what_a_later_broker_tells_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=[{"name": "q", "moons": 2}])
    assert broker.run("list_queues", "moons") == 0
    assert capsys.readouterr().out == "moons\n2\n"


def test_nothing_to_list_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert FakeControl(list_queues=[]).run("list_queues") == 0
    assert capsys.readouterr().out == ""


def test_on_a_terminal_a_table_is_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert FakeControl(list_queues=[{"name": "[red]q", "messages": 3}]).run("list_queues") == 0
    out = capsys.readouterr().out
    assert "\t" not in out
    assert "[red]q" in out


def test_a_terminal_of_80_cuts_no_date_and_no_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        {"name": "n" * 50, "state": "down", "since": "2026-11-28T07:37:29.180+00:00",
         "why": "the disk failed while a segment of the log was being written"},
    ]  # fmt: skip
    assert FakeControl(list_vhosts=rows).run("list_vhosts") == 0
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "2026-11-28T07:37:29Z" in lines[1]
    assert " ".join(line[-24:].strip() for line in lines[1:]) == rows[0]["why"]


def test_a_wrong_filter_is_told_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    said = (
        "PRECONDITION_FAILED - list_queues: argument 'name': given '(', expected a regular "
        "expression of RE2: missing ): (?i)("
    )
    broker = FakeControl(list_queues=CommandRefusedError(406, said))
    assert broker.run("list_queues", "--filter", "(") == 64
    text = capsys.readouterr().err
    assert "option --filter: given '(', expected a regular expression of RE2: missing )" in text
    assert "argument" not in text


@pytest.mark.parametrize("form", ["table", "text", "tsv"])
def test_lines_with_tabs(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert FakeControl(list_queues=QUEUES).run("list_queues", "name", "--formatter", form) == 0
    assert capsys.readouterr().out == "name\njobs\na\\tb\\n\n"


def test_a_line_of_json_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert FakeControl(list_queues=QUEUES).run("list_queues", "--format", "jsonl") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == QUEUES
    assert FakeControl(list_queues=[]).run("list_queues", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_csv_has_no_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": '=cmd()', "messages": -1}, {"name": 'a,"b"\n', "messages": 2},
        {"name": "@x", "messages": None}, {"name": "-1", "messages": 0},
    ]  # fmt: skip
    assert (
        FakeControl(list_queues=rows).run("list_queues", "name", "messages", "--format", "csv") == 0
    )
    out = capsys.readouterr().out
    assert out == 'name,messages\n\'=cmd(),-1\n"a,""b""\\x0a",2\n\'@x,\n\'-1,0\n'


def test_a_pretty_table_is_drawn_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "jobs", "messages": 3}, {"name": "日本", "messages": 10}]
    broker = FakeControl(list_queues=rows)
    assert broker.run("list_queues", "name", "messages", "--formatter", "pretty_table") == 0
    assert capsys.readouterr().out.splitlines() == [
        "┌──────┬──────────┐",
        "│ name │ messages │",
        "├──────┼──────────┤",
        "│ jobs │        3 │",
        "│ 日本 │       10 │",
        "└──────┴──────────┘",
    ]


def test_on_a_terminal_long_names_are_cut_in_the_middle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"name": "a" * 30 + "b" * 30, "messages": 12_345}, {"name": "q", "messages": 7}]
    assert FakeControl(list_queues=rows).run("list_queues", "name", "messages") == 0
    title, first, second = capsys.readouterr().out.splitlines()
    assert "name" in title
    assert first == "a" * 15 + "…" + "b" * 14 + "     12345"
    assert second == "q" + " " * 38 + "7"
    assert len(first) == len(second) == 40


def test_what_rabbitmqctl_takes_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=QUEUES[:1], list_permissions=[])
    for words in (
        ["list_queues", "-q", "--no-table-headers", "name"], ["-s", "list", "queues", "name"],
        ["--silent", "list_queues", "--online", "--local", "name"],
        ["--formatter=tsv", "--no-table-headers", "list_queues", "--timeout", "60", "name"],
    ):  # fmt: skip
        assert broker.run(*words) == 0
        assert capsys.readouterr().out == "jobs\n"
    assert broker.run("-q", "-p", "/x", "list_queues", "name") == 0
    assert capsys.readouterr().out == "name\njobs\n"
    assert broker.asked[-1] == ("list_queues", "/x", {"columns": ["name"]})
    assert broker.run("list_permissions", "--user", "ann", "-p", "/x") == 0
    assert broker.asked[-1] == ("list_permissions", "/x", {"user": "ann"})


@pytest.mark.parametrize("words", [["list", "queues"], ["list-queues"], ["list_queues"]])
def test_two_words_or_hyphens_will_do(words: list[str]) -> None:
    broker = FakeControl(list_queues=[])
    assert broker.run(*words, "name") == 0
    assert broker.asked[0][0] == "list_queues"


@pytest.mark.parametrize("command", sorted(COLUMNS))
def test_each_listing_asks_its_own_operation(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, others = COLUMNS[command]
    row = {name: f"the {name}" for name in (*first, *others)}
    broker = FakeControl(**{command: [row]})
    arguments = OPERATIONS[command].arguments
    needed = [one.name for one in arguments if one.is_required]
    left_out = {
        one.name: one.value
        for one in arguments
        if one.is_option and not one.is_required and one.value is not None
    }
    assert broker.run(command, *needed, "--data", "there") == 0
    assert broker.asked[0][0] == command
    if any(one.name == "columns" for one in arguments):
        left_out["columns"] = sorted(first)
    assert broker.asked[0][2] == {name: name for name in needed} | left_out
    assert broker.data == ["there"]
    assert capsys.readouterr().out.splitlines()[1].split("\t") == [f"the {n}" for n in first]


def test_leases_and_batches(capsys: pytest.CaptureFixture[str]) -> None:
    lease = {"name": "jobs", "reader": "r", "first": 1, "head": 5, "bytes": 9, "is_old": False}
    batch = {
        "query": "x", "batch": 2, "target": {"queue": "jobs"}, "rows": 3, "is_done": True,
        "waits_for": "",
    }  # fmt: skip
    broker = FakeControl(list_leases=[lease], list_batches=[batch])
    assert broker.run("list", "leases") == 0
    assert broker.run("list", "batches") == 0
    assert capsys.readouterr().out == (
        "name\treader\tfirst\thead\tbytes\tis_old\njobs\tr\t1\t5\t9\tfalse\n"
        "query\tbatch\ttarget\trows\tis_done\twaits_for\n"
        'x\t2\t{"queue": "jobs"}\t3\ttrue\t\n'
    )


def test_a_vhost_sorts_cuts_and_filters(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(list_queues=[{"name": "shop.b", "messages": 12}, {"name": "shop.a"}])
    line = "list queues name --sort -messages --limit 2 --filter ^shop -s"
    assert broker.run(*line.split()) == 0
    assert capsys.readouterr().out == "shop.b\nshop.a\n"
    assert broker.asked[-1][2] == {
        "name": "^shop", "sort": "messages", "reverse": True, "limit": 2,
        "columns": ["messages", "name"],
    }  # fmt: skip
    assert broker.run("list_queues", "name", "--sort", "messages", "--format", "json") == 0
    assert broker.asked[-1][2] == {"sort": "messages", "columns": ["messages", "name"]}
    assert json.loads(capsys.readouterr().out) == [{"name": "shop.b"}, {"name": "shop.a"}]
    assert broker.run("list_queues", "--sort", "-mesages") == 64
    assert "did you mean 'messages'?" in capsys.readouterr().err


def test_what_the_node_lists_is_sorted_cut_and_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "shop.a", "connections": 5}, {"name": "other", "connections": 9},
        {"name": "Shop.b", "connections": 12}, {"name": "shop.c", "connections": None},
    ]  # fmt: skip
    broker = FakeControl(list_vhosts=rows)
    line = "list vhosts name --sort -connections --limit 2 --filter ^shop -s"
    assert broker.run(*line.split()) == 0
    assert capsys.readouterr().out == "Shop.b\nshop.a\n"
    assert broker.run("list_vhosts", "name", "--sort", "connections", "-s") == 0
    assert capsys.readouterr().out == "shop.c\nshop.a\nother\nShop.b\n"
    assert broker.run("list_vhosts", "--filter", "(") == 64
    assert "--filter: given '(', expected a regular expression" in capsys.readouterr().err
