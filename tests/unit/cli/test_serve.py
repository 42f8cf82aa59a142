"""`penstock serve` up to where the broker begins: Config, ready line, errors of listening."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli import serve
from penstock.cli.main import UnavailableError, exit_code, main, one_line, version_text
from penstock.config import Config, settings
from penstock.server.supervisor import ReadyFacts
from penstock.storage.files.durability import INTERVAL

pytestmark = pytest.mark.real


def config(directory: Path, path: str | None = None, /, **flags: object) -> Config:
    return serve.configured(flags, path, {}, str(directory))


def facts(host: str = "127.0.0.1", port: int = 5672) -> ReadyFacts:
    return ReadyFacts(host=host, port=port, data="d", memory_bytes=1, mode=3)


def test_a_file_beside_us_is_read(tmp_path: Path) -> None:
    assert config(tmp_path).port == 5672
    (tmp_path / "penstock.toml").write_text("port = 1234\nmemory = '0.5'")
    assert config(tmp_path).port == 1234
    assert config(tmp_path, port=0).port == 0
    (tmp_path / "other.toml").write_text("port = 4321")
    assert config(tmp_path, str(tmp_path / "other.toml")).port == 4321
    environment = {"PENSTOCK_CONFIG": str(tmp_path / "other.toml")}
    assert serve.configured({}, None, environment, str(tmp_path)).port == 4321


def test_memory_is_a_part_of_what_there_is(tmp_path: Path) -> None:
    whole, half = config(tmp_path, memory="max"), config(tmp_path, memory="0.5")
    assert abs(whole.memory_bytes - 2 * half.memory_bytes) <= 1


def test_a_file_that_is_missing_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "no.toml")]) == 66
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    assert main(["serve", "--config", str(tmp_path / "bad.toml")]) == 78
    (tmp_path / "typo.toml").write_text("prot = 5")
    assert main(["serve", "--config", str(tmp_path / "typo.toml")]) == 78
    assert "did you mean 'port'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--port", "x"], "--port: given 'x', expected a whole number"),
        (["--port", "70000"], "--port: given '70000'"),
        (["--memory", "lots"], "--memory: given 'lots'"),
        (["--durability", "none"], "disk, interval=<ms> or os"),
        (["--log-level", "loud"], "debug, info, warning or error"),
        (["--dta", "x"], "--data"),
        (["extra"], "extra"),
    ],
)
def test_a_bad_option_is_64(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 64
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "localhost"), ("0.0.0.0", "localhost"), ("::1", "localhost"),
     ("10.0.0.5", "10.0.0.5"), ("fe80::1", "[fe80::1]")],
)  # fmt: skip
def test_the_ready_line_has_a_url_to_copy(tmp_path: Path, host: str, shown: str) -> None:
    made = config(tmp_path, data="here", memory="64MiB")
    assert serve.ready_line(made, facts(host, 1234)) == (
        f"penstock {version_text()} is ready: amqp://guest:guest@{shown}:1234/  "
        "data here  memory 64 MiB  durability disk"
    )


def test_the_ready_line_has_the_url_of_http(tmp_path: Path) -> None:
    listens = ReadyFacts(
        host="::1", port=1, data="d", memory_bytes=1, mode=3, http_port=15672
    )  # fmt: skip
    assert "@localhost:1/  http://localhost:15672/  data" in serve.ready_line(
        config(tmp_path), listens
    )


def test_the_ready_line_names_guest_only_where_guest_can_log_in(tmp_path: Path) -> None:
    listens = replace(facts(), has_guest=False)
    assert "is ready: amqp://localhost:5672/  data" in serve.ready_line(config(tmp_path), listens)


def test_the_ready_line_tells_the_interval(tmp_path: Path) -> None:
    made = config(tmp_path, durability="interval=50")
    assert made.mode == INTERVAL
    assert serve.ready_line(made, facts()).endswith("durability interval=50")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (OSError(errno.EADDRINUSE, "in use"), 69, "127.0.0.1:80 is taken by another process"),
        (OSError(errno.EADDRNOTAVAIL, "no"), 69, "not an address of this machine"),
        (PermissionError(errno.EACCES, "no"), 77, "below 1024"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "d/LOCK"), 74, "d/LOCK: No space left"),
    ],
)
def test_an_error_of_listening_says_what_to_do(
    error: OSError, code: int, told: str, tmp_path: Path
) -> None:
    said = serve.explained(config(tmp_path, port=80), error)
    assert exit_code(said) == code
    assert told in one_line(said)
    if code == 69:
        assert isinstance(said, UnavailableError)


def test_a_port_of_http_that_is_taken_is_told_by_its_option(tmp_path: Path) -> None:
    error = OSError(errno.EADDRINUSE, "in use", "127.0.0.1:15672")
    said = serve.explained(config(tmp_path), error)
    assert exit_code(said) == 69
    assert "127.0.0.1:15672 is taken" in str(said)
    assert "--http-port 0 for a free one, or --http-port off" in str(said)
    assert "--port 0" in str(
        serve.explained(config(tmp_path), OSError(errno.EADDRINUSE, "", "x:5672"))
    )


def explained_as(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config_explain", *words]) == 0
    return capsys.readouterr().out


def test_an_option_is_explained_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    port = explained_as(capsys, "port")
    assert "values\twhole number from 0 to 65535, or off\n" in port
    assert "environment\tPENSTOCK_PORT\n" in port
    assert "flag\t--port\n" in port
    assert explained_as(capsys, "PENSTOCK_PORT") == port
    assert explained_as(capsys, "http-port") == explained_as(capsys, "http_port") != port
    assert "file\t[storage] slice_ms\n" in explained_as(capsys, "storage.slice_ms")
    rows = json.loads(explained_as(capsys, "--format", "json"))
    assert {row["option"] for row in rows} == {one.key for one in settings()}
    assert len(explained_as(capsys).splitlines()) == len(rows) + 1


def test_an_unknown_option_is_not_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", "storage.slice"]) == 64
    assert "did you mean 'storage.slice_ms'?" in capsys.readouterr().err


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[str, str]]:
    assert main(["config", "show", "--format", "json", *words]) == 0
    rows = json.loads(capsys.readouterr().out)
    return {row["option"]: (row["value"], row["origin"]) for row in rows}


def test_each_option_is_shown_with_where_it_is_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "penstock.toml"
    file.write_text(
        "durability = 'interval=50'\nmemory = '64MiB'\n[limits]\nuser_channels = 7\n"
        "[auth_http]\nuser_path = 'https://ann:secret@a.net/u'\n"
    )
    monkeypatch.setenv("PENSTOCK_PORT", "1234")
    found = shown(capsys)
    assert found.keys() == {one.key for one in settings()}
    assert found["port"] == ("1234", "PENSTOCK_PORT")
    assert found["memory"] == ("64 MiB", str(file))
    assert found["durability"] == ("interval", str(file))
    assert found["limits.user_channels"] == ("7", str(file))
    assert found["log_level"] == ("info", "default")
    assert found["auth_http.user_path"] == ("https://***@a.net/u", str(file))
    assert main(["config_show"]) == 0
    assert "port\t1234\tPENSTOCK_PORT\n" in capsys.readouterr().out


def test_a_configuration_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "other.toml"
    file.write_text("port = 1\n[limits]\nuser_channels = 7\n")
    assert main(["config_check", str(file)]) == 0
    assert capsys.readouterr().out == "the configuration is right, and sets 2 options\n"
    file.write_text("port = 5\nhttp_port = 5\n")
    assert main(["config", "check", str(file)]) == 78
    assert f"{file}: http_port: given 5, expected another" in capsys.readouterr().err
    file.write_text("auth_backends = ['http']\n")
    assert main(["config", "check", str(file)]) == 78
    assert f"option {file}: auth_http.user_path: given ''" in capsys.readouterr().err
