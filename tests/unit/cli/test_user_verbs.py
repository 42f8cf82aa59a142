"""Users and permissions: what is asked of the broker, and where passwords come from."""

import io
from pathlib import Path

import pytest

from penstock.access.users import verify
from penstock.cli.main import UnavailableError
from penstock.storage.files.user_store import UserStore
from tests.helpers.fake_control import FakeControl, Terminal


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_user_comes_and_goes() -> None:
    broker = FakeControl()
    assert broker.run("add_user", "ann", "secret", "--tag", "monitoring") == 0
    assert broker.run("set_user_tags", "ann", "administrator", "management") == 0
    assert broker.run("set_permissions", "ann", "^a", "", ".*", "-p", "/x") == 0
    assert broker.run("clear_permissions", "ann", "--vhost", "/x") == 0
    assert broker.run("delete_user", "ann") == 0
    assert broker.asked == [
        ("add_user", None, {"name": "ann", "password": "secret", "tags": ["monitoring"]}),
        ("set_user_tags", None, {"name": "ann", "tags": ["administrator", "management"]}),
        ("set_permissions", "/x", {"user": "ann", "configure": "^a", "write": "", "read": ".*"}),
        ("clear_permissions", "/x", {"user": "ann"}),
        ("delete_user", None, {"name": "ann"}),
    ]


def test_topic_permissions_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl()
    assert broker.run("set_topic_permissions", "ann", "x", "^a", ".*", "-p", "/x") == 0
    assert broker.run("clear_topic_permissions", "ann", "x", "-p", "/x") == 0
    assert broker.run("clear_topic_permissions", "ann", "-p", "/x") == 0
    two = {"user": "ann", "exchange": "x", "write": "^a", "read": ".*"}
    assert broker.asked == [
        ("set_topic_permissions", "/x", two),
        ("clear_topic_permissions", "/x", {"user": "ann", "exchange": "x"}),
        ("clear_topic_permissions", "/x", {"user": "ann", "exchange": ""}),
    ]


def test_a_password_from_stdin_is_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--stdin"], []):  # as rabbitmqctl does if stdin is no terminal
        stdin(monkeypatch, " s e\r\nmore\n")
        broker = FakeControl()
        assert broker.run("change_password", "ann", *words) == 0
        assert broker.asked == [("change_password", None, {"name": "ann", "password": " s e"})]


def test_a_password_is_asked_for_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def hidden(prompt: str = "", stream: object = None) -> str:
        asked.append(prompt)
        return "secret"

    monkeypatch.setattr("click.termui.hidden_prompt_func", hidden)
    monkeypatch.setattr("sys.stdin", Terminal())
    broker = FakeControl()
    assert broker.run("change_password", "ann") == 0
    assert len(asked) == 2
    assert broker.asked == [("change_password", None, {"name": "ann", "password": "secret"})]
    captured = capsys.readouterr()
    assert "secret" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("words", "text", "told"),
    [
        (["x", "--stdin"], "y\n", "do not go together"),
        (["--stdin"], "", "stdin is empty"),
        (["--stdin"], "\n", "the password is empty"),
        ([""], "", "the password is empty"),
    ],
)
def test_no_password_is_64(
    words: list[str], text: str, told: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stdin(monkeypatch, text)
    broker = FakeControl()
    assert broker.run("add_user", "ann", *words) == 64
    assert told in capsys.readouterr().err
    assert not broker.asked


def test_limits_are_json_as_rabbitmqctl_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [{"user": "ann", "max-connections": 1, "max-channels": 2, "max-publish-rate": -1}]
    broker = FakeControl(list_user_limits=listed)
    assert broker.run("set_user_limits", "ann", '{"max-channels": 2}') == 0
    assert broker.run("clear_user_limits", "ann") == 0
    assert broker.run("set_vhost_limits", '{"max-queues": 5}', "-p", "/x") == 0
    assert broker.run("clear_vhost_limits", "max-queues", "-p", "/x") == 0
    assert broker.asked == [
        ("set_user_limits", None, {"user": "ann", "limits": {"max-channels": 2}}),
        ("clear_user_limits", None, {"user": "ann", "limit": "all"}),
        ("set_vhost_limits", "/x", {"limits": {"max-queues": 5}}),
        ("clear_vhost_limits", "/x", {"limit": "max-queues"}),
    ]
    assert broker.run("list_user_limits") == 0
    assert capsys.readouterr().out.splitlines()[-1].split("\t") == ["ann", "1", "2", "-1"]


@pytest.mark.parametrize("text", ["2", "max-channels=2", "[]", ""])
def test_limits_that_are_no_object_are_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert FakeControl().run("set_user_limits", "ann", text) == 64
    assert 'expected JSON, an object such as {"max-connections"' in capsys.readouterr().err


# --- init ---


def test_init_asks_a_broker_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(init={"password_set": True, "guest_deleted": True})
    assert broker.run("init") == 0
    ((op, vhost, args),) = broker.asked
    assert (op, vhost, args["name"], args["force"]) == ("init", None, "admin", False)
    password = args["password"]
    assert len(password) == 24
    said = capsys.readouterr().out
    assert said == f"user 'admin' with the password {password}\nuser 'guest' is deleted\n"
    file = tmp_path / "password"
    file.write_text("secret\nmore\n")
    assert broker.run("init", "--user", "ann", "--password-file", str(file)) == 0
    assert broker.asked[1][2] == {"name": "ann", "password": "secret", "force": True}
    assert "secret" not in capsys.readouterr().out


def test_init_makes_the_directory_of_a_broker_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = FakeControl(init=UnavailableError("no broker answers"))
    data = tmp_path / "data"
    stdin(monkeypatch, "secret\n")
    assert broker.run("init", "--stdin", "--data", str(data)) == 0
    assert broker.run("init", "--data", str(data)) == 0
    assert capsys.readouterr().out == (
        "user 'admin' with the given password\nuser 'guest' is deleted\n"
        "user 'admin' is there already, with the password that it has\n"
    )
    store = UserStore(str(data / "node.db"))
    hashed, tags = store.users()["admin"]
    assert verify(b"secret", hashed)
    assert tags == ("administrator",)
    assert store.permissions() == {("admin", "/"): (".*", ".*", ".*")}
    store.close()


def test_init_refuses_guest_and_an_empty_password(tmp_path: Path) -> None:
    broker = FakeControl(init=UnavailableError("no broker answers"))
    data = str(tmp_path / "data")
    assert broker.run("init", "--user", "guest", "--data", data) == 64
    empty = tmp_path / "empty"
    empty.write_text("\nx")
    assert broker.run("init", "--password-file", str(empty), "--data", data) == 64
    assert broker.run("init", "--password-file", str(tmp_path / "none"), "--data", data) == 66
    assert broker.run("init", "--password-file", str(empty), "--stdin", "--data", data) == 64
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("x")
    assert broker.run("init", "--data", str(tmp_path / "other")) != 0
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["mine"]
