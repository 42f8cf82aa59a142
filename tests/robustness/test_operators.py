"""What an operator's terminal and files are safe from: clients' names, bodies and calls."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import output
from penstock.cli.main import main
from penstock.client import connect
from penstock.codec.spec import QueueDeclare
from penstock.errors import ChannelError
from penstock.escaping import escaped
from tests.helpers.live_broker import LiveBroker

LONG_S = 240
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r\n"  # a title, a cleared screen, an override
NASTY = f"q{ESCAPE}\udcff"  # and a byte that is no UTF-8


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("operators") / "data") as broker:
        yield broker


@pytest.fixture
def nasty(broker: LiveBroker) -> Iterator[str]:
    """A queue of that name with a message of that body, by its AMQP client."""
    name = NASTY.replace("\r\n", "\t")  # line feeds in names are not for clients to give
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.ask(QueueDeclare(queue=name, durable=True)).result(LONG_S)
        channel.select_confirms()
        put = channel.publish("", name, ESCAPE.encode())
        assert put is not None
        assert put.result(LONG_S)
        yield name
        main(["delete_queue", "--data", str(broker.data), typed(name)])


def typed(name: str) -> str:
    """As an operator types it."""
    return escaped(name)


def is_harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_names_and_bodies_of_clients_change_no_terminal(
    broker: LiveBroker, nasty: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(output, "is_terminal", lambda: is_terminal)
    data = ["--data", str(broker.data)]
    for words in (
        ["list_queues"], ["list_queues", "--format", "json"], ["list_bindings"],
        ["peek", "--format", "json", typed(nasty)], ["purge_queue", typed("no" + nasty)],
    ):  # fmt: skip
        code = main([*words, *data])
        out, err = capfd.readouterr()
        assert code == (66 if "purge_queue" in words else 0), err
        assert is_harmless(out.replace("\t", "")), words
        assert is_harmless(err), words
    assert main(["peek", typed(nasty), *data]) == 0
    out, _ = capfd.readouterr()
    assert is_harmless(out) is is_terminal  # a pipe gets the bytes


def test_a_name_that_is_no_text_is_addressed_by_its_bytes(
    broker: LiveBroker, nasty: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(broker.data)]
    assert main(["list_queues", "name", "messages", *data]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    (name, count) = next(row for row in rows if row[0].startswith("q\\x1b"))
    assert count == "1"
    assert main(["publish", "--transient", name.replace("\\t", "\\x09"), "second", *data]) == 0
    capfd.readouterr()
    assert main(["purge_queue", name.replace("\\t", "\\x09"), *data]) == 0
    assert capfd.readouterr().out.startswith("2 messages purged")


def test_a_name_in_json_is_its_bytes_when_it_is_no_text(
    broker: LiveBroker, nasty: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["list_queues", "name", "--format", "json", "--data", str(broker.data)]) == 0
    names = [shown_name(row["name"]) for row in json.loads(capfd.readouterr().out)]
    assert nasty.encode("utf-8", "surrogateescape") in names


def shown_name(value: Any) -> bytes:
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()


# ---- operators' calls ----------------------------------------------------------------------------

OPERATORS_ONLY = {
    "backup": {"path": "/tmp/penstock-never"},
    "checkpoint": {},
    "get": {"queue": "q", "count": 1, "session": "s", "wait_ms": 0},
    "settle": {"queue": "q", "tags": [1], "session": "s", "requeue": False},
    "session_closed": {"session": "s"},
    "job": {"job": 1},
}


@pytest.mark.parametrize("op", OPERATORS_ONLY)
def test_what_writes_files_or_strands_messages_is_refused_to_administrators_of_amqp(
    broker: LiveBroker, op: str
) -> None:
    with connect(broker.url) as connection:
        channel = connection.channel()
        with pytest.raises(ChannelError, match="over the broker's control socket") as caught:
            channel.call(op, OPERATORS_ONLY[op]).result(LONG_S)
    assert caught.value.code == 403
    assert not Path("/tmp/penstock-never").exists()
