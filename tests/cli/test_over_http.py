"""`penstock --url http://...`: commands for a broker elsewhere, over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.amqp_url import AmqpUrl
from penstock.cli.ask import URL_KEY
from penstock.cli.main import VERBS, main
from penstock.cli.rabbitmq import _here
from penstock.operation_table import ALL, MANAGEMENT, OPERATIONS
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("http") / "data", has_http=True) as broker:
        broker.control("add_user", name="mia", password="m/a", tags=["management"])
        broker.control("add_user", name="bob", password="bob")
        yield broker


def url_of(broker: LiveBroker, login: str = "guest:guest") -> str:
    return f"http://{login}@127.0.0.1:{broker.http_port}"


def test_commands_work_as_on_the_brokers_machine(
    broker: LiveBroker, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    url = url_of(broker)
    for words in (
        ["declare_queue", "jobs", "-a", "x-max-length=9"], ["publish", "jobs", "\udcff one"],
        ["set_policy", "p", "^x", '{"max-length": 5}'],
        ["add_vhost", "shop"], ["set_permissions", "-p", "shop", "guest", ".*", ".*", ".*"],
        ["declare_queue", "-p", "shop", "sold"],
        ["add_user", "ann", "secret"], ["set_permissions", "-p", "shop", "ann", ".*", ".*", ".*"],
    ):  # fmt: skip
        assert main(["--url", url, *words]) == 0, words
    capsysbinary.readouterr()
    for words in (
        ["list_queues", "name", "messages"], ["peek", "jobs"], ["list_queues", "-p", "shop"],
        ["list_vhosts"], ["list_users"], ["list_permissions", "-p", "shop"], ["list_policies"],
        ["environment"], ["list", "bindings"], ["export_definitions"],
    ):  # fmt: skip
        assert main(["--url", url, *words]) == 0, words
        there = capsysbinary.readouterr().out
        assert main([*words, "--data", str(broker.data)]) == 0
        assert capsysbinary.readouterr().out == there, words
    for words in (["config", "show"], ["health_check", "ports"]):
        assert main(["--url", url, *words]) == 0
    assert str(broker.data).encode() in capsysbinary.readouterr().out
    assert main(["why", "jobs", "--url", url]) == 0
    assert b"queue 'jobs'" in capsysbinary.readouterr().out
    assert main(["status", "--url", url, "--format", "json"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["is_healthy"]
    assert main(["--url", url, "delete_queue", "jobs", "--yes"]) == 0


def test_permissions_are_those_of_the_user(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    for login, said in (
        ("mia:wrong", "login failed"), ("nobody:x", "login failed"),
        ("mia:m%2Fa", "User not authorised to access virtual host"),
    ):  # fmt: skip
        assert main(["--url", url_of(broker, login), "list_queues"]) == 77
        assert said.lower() in capsys.readouterr().err.lower()
    assert main(["--url", url_of(broker, "mia:m%2Fa"), "list_users"]) == 77
    assert "it needs the tag administrator" in capsys.readouterr().err
    assert main(["--url", url_of(broker), "purge_queue", "none"]) == 66
    assert "no queue 'none'" in capsys.readouterr().err
    assert main(["--url", url_of(broker), "list_queues", "-p", "none"]) == 66
    assert "no vhost 'none'" in capsys.readouterr().err


def test_what_is_not_available_over_http_says_so(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    url = url_of(broker)
    for name, row in OPERATIONS.items():
        if row.audience not in (ALL, MANAGEMENT) and row.is_command:
            assert main(["--url", url, name, *["x"] * len(row.arguments)]) == 64
            assert f"{name} is not available over HTTP: run this" in capsys.readouterr().err
    for words in (["stop"], ["get", "q"], ["backup", "b"], ["config_set", "log_level", "info"]):
        assert main(["--url", url, *words]) == 64, words
        assert f"{words[0]} is not available over HTTP" in capsys.readouterr().err
    assert main(["--url", url, "list_user_permissions", "guest"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("/\t.*")
    for name in ("doctor", "serve"):
        assert name in VERBS
        assert main(["--url", url, name]) == 64
        assert "run it on the broker's machine" in capsys.readouterr().err
    assert main(["--url", url, "store", "path", "/"]) == 64
    assert "No such option '--url'" in capsys.readouterr().err
    assert main(["store", "path", "/", "--url", url]) == 64
    assert "run it on the broker's machine" in capsys.readouterr().err
    assert main(["list_queues", "--url", "amqp://guest:secret@x"]) == 64
    said = capsys.readouterr().err
    assert "expected http://user:password@host:15672" in said
    assert "secret" not in said


def test_messages_migrate_to_the_broker_of_the_url(broker: LiveBroker) -> None:
    with click.Context(click.Command("migrate")) as context:
        context.meta[URL_KEY] = f"http://guest:guest@localhost:{broker.http_port}"
        found = _here("./none", AmqpUrl(host="old", user="ann"))
    assert (found.host, found.port, found.user) == ("localhost", broker.port, "ann")


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("guest:no", "user 'guest': Login failed: wrong name or password, or guest from another"),
        ("bob:bob", "user 'bob': Not management user, a tag is missing: 'penstock set_user_tags'"),
        ("mia:m%2Fa", "refused for user 'mia': it needs the tag administrator"),
    ],
)
def test_a_user_who_may_not_is_told_why(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str], login: str, said: str
) -> None:
    assert main(["--url", url_of(broker, login), "list_users"]) == 77
    assert said in capsys.readouterr().err


def test_a_broker_that_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:1", "status"]) == 69
    said = capsys.readouterr().err
    assert "no broker answers at 127.0.0.1:1 (Connection refused): is it running" in said
    assert main(["perf", "--url", "amqp://127.0.0.1:1"]) == 69
    assert "Connection refused: is the broker running?" in capsys.readouterr().err
