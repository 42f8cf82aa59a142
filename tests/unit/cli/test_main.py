"""The command line's own part: the table of groups, the version, errors as exit codes."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import penstock
from penstock import errors
from penstock.cli import main as cli
from penstock.cli import perf
from penstock.client.load import HEAD
from penstock.errors import (
    CorruptionError,
    DescriptorsError,
    DiskFullError,
    LockedError,
    NotAStoreError,
    OptionError,
    PenstockError,
    UnreachableError,
    VersionError,
)


def raising(error: BaseException) -> click.Command:
    @click.command("raise")
    def command() -> None:
        raise error

    return command


def run_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Exit code of `penstock raise`, a command that raises the error."""
    command = raising(error)
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: command)
    monkeypatch.setattr(cli, "VERBS", {"raise": cli.Verb("never_imported", "")})
    return cli.main(["raise"])


def test_version_says_which_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__} ({penstock.build_kind()})\n"
    assert penstock.build_kind() in ("compiled", "pure")


def test_python_m_penstock_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"penstock {cli.version_text()}\n"


def test_the_installed_command_passes_the_exit_code_on() -> None:
    command = Path(sys.executable).parent / "penstock"
    done = subprocess.run([command, "--nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 64


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_groups_without_importing_them(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "VERBS", {"store": cli.Verb("no_such_module", "")})
    assert cli.main(arguments) == 0
    assert "store" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("stor", "Did you mean 'store'?"),
        ("zzz", "No such command"),
        ("--versoin", "--version"),
        ("release", "There are: release lease, release query."),
        ("release leases", "Did you mean 'release_lease'?"),
        ("list quues", "Did you mean 'list_queues'?"),
    ],
)
def test_a_wrong_word_is_64_with_the_nearest_right_one(
    wrong: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(wrong.split()) == 64
    assert told in capsys.readouterr().err


def test_every_group_is_a_click_command() -> None:
    context = click.Context(cli.cli)
    for name in cli.VERBS:
        assert isinstance(cli.cli.get_command(context, name), click.Command), name


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError("mode", "fast", "disk or os"), 64),
        (CorruptionError("1.wal", 64, "bad crc"), 65),
        (VersionError("VERSION", 1, 2), 65),
        (NotAStoreError("here", "no VERSION"), 66),
        (DescriptorsError("here"), 74),
        (DiskFullError("here", 1, 2), 74),
        (LockedError("LOCK", "pid 1"), 75),
        (PenstockError("something else"), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_is_one_line_and_its_exit_code(
    error: PenstockError,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_raising(monkeypatch, error) == code
    captured = capsys.readouterr()
    advice = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    assert captured.err == f"penstock: {error}{advice}\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOENT, 66), (errno.EACCES, 77), (errno.EIO, 74), (errno.ENOTDIR, 66)],
)
def test_an_error_of_the_system_names_its_file(
    number: int,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_raising(monkeypatch, OSError(number, os.strerror(number), "/file")) == code
    assert capsys.readouterr().err == f"penstock: /file: {os.strerror(number)}\n"


def test_an_interrupt_is_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_raising(monkeypatch, KeyboardInterrupt()) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_mistake_of_ours_is_70_with_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_raising(monkeypatch, ZeroDivisionError("ours")) == 70
    assert "ZeroDivisionError: ours" in capsys.readouterr().err


def test_an_error_of_several_lines_is_told_in_one() -> None:
    assert cli.one_line(PenstockError("a\n  b")) == "penstock: a b"
    assert cli.one_line(PenstockError()) == "penstock: PenstockError"


def test_every_error_that_we_name_has_an_exit_code_of_its_own_meaning() -> None:
    named = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    without = {kind for kind in named if issubclass(kind, PenstockError)} - cli.EXIT_CODES.keys()
    by_reply_code = {errors.AMQPError, errors.ChannelError, errors.AMQPConnectionError}
    assert without == {errors.StorageError} | by_reply_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ChannelError(404, "no queue 'q' in vhost '/'"), 66),
        (errors.ChannelError(406, "inequivalent"), 64),
        (errors.AMQPConnectionError(320, "bye"), 69),
        (cli.CommandRefusedError(404, "NOT_FOUND - no user 'ann'"), 67),
        (cli.CommandRefusedError(403, "not yours"), 77),
        (cli.CommandRefusedError(200, "what?"), 70),
        (cli.UnavailableError("nobody there"), 69),
    ],
)
def test_what_a_broker_says_has_the_exit_code_of_its_reply_code(
    error: PenstockError, code: int
) -> None:
    assert cli.exit_code(error) == code


@pytest.mark.parametrize("lines", [2, 100_000])
def test_who_reads_us_may_go(lines: int, tmp_path: Path) -> None:
    """As `penstock ... | head -1` does: no traceback, and no complaint at the very end."""
    program = (
        "import sys; from penstock.cli import main as m; import click\n"
        "@click.command('x')\n"
        "def x():\n"
        f"    for _ in range({lines}): print('a line')\n"
        "    sys.stdin.read()\n"
        "m.LazyGroup.get_command = lambda *_: x\n"
        "sys.exit(m.main(['store']))"
    )
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=err,
            stdin=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.close()
        process.stdin.close()
        assert process.wait(timeout=60) == 141
    assert (tmp_path / "err").read_bytes() == b""


def test_each_command_is_in_a_group_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    grouped = [name for names in cli.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(cli.VERBS)
    assert cli.main(["help"]) == 0
    out = capsys.readouterr().out
    assert out.index("Users and permissions:") < out.index("add_user") < out.index("Storage:")
    assert cli.main(["help", "list", "queues"]) == 0
    assert "Usage: penstock list_queues" in capsys.readouterr().out


def test_other_names_are_of_commands_that_there_are() -> None:
    assert not cli.ALIASES.keys() & cli.VERBS.keys()
    assert {words[0] for words in cli.ALIASES.values()} <= cli.VERBS.keys()


def test_no_colours_if_the_environment_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command("x")
    def x() -> None:
        click.secho("red", fg="red", color=click.get_current_context().find_root().color)

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: x)
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.main(["store"]) == 0
    assert capsys.readouterr().out == "red\n"


def modules_of_help(command: str) -> set[str]:
    """The modules that a new process has after the help of a command."""
    program = (
        f"import sys\nfrom penstock.cli.main import main\nmain(['{command}', '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_a_command_starts_without_what_it_does_not_need() -> None:
    """What keeps a start below a tenth of a second: no event loop, no drawing, no server."""
    loaded = modules_of_help("list_vhosts")
    assert not loaded & {"asyncio", "rich", "ssl", "penstock.server", "penstock.storage"}
    assert len({name for name in loaded if name.startswith("penstock")}) <= 16
    assert len(loaded) <= 175


@pytest.mark.parametrize("command", ["perf", "doctor", "top"])
def test_a_command_that_needs_more_loads_it_when_it_does(command: str) -> None:
    others = {"asyncio", "ssl", "rich.live", "penstock.client.load"}
    assert not modules_of_help(command) & others


def test_perf_says_how_large_a_message_with_a_latency_is() -> None:
    assert HEAD.size == perf.HEAD_BYTES


def test_a_note_follows_its_error_in_one_sentence() -> None:
    error = PenstockError("See the log.")
    error.add_note("is the password right?")
    assert cli.one_line(error) == "penstock: See the log; is the password right?"


def test_a_broker_that_is_not_reached_may_not_run_but_one_of_another_tls_does() -> None:
    asked = cli.one_line(UnreachableError("b:5672", "Connection refused"))
    assert asked.endswith("Connection refused: is the broker running? --url sets the broker")
    of_tls = UnreachableError("b:5671", "wrong version", is_of_tls=True)
    assert cli.one_line(of_tls) == f"penstock: {of_tls}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("import_definitions latin", 65), ("config_migrate latin", 65),
        ("config_check latin", 78), ("serve --config latin", 78),
        ("init --data d --password-file latin", 65),
    ],
)  # fmt: skip
def test_a_file_that_is_no_text_is_named(
    words: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin").write_bytes(b"a = \xe4")
    assert cli.main(words.split()) == code
    said = capsys.readouterr().err
    assert said == ("penstock: latin: not a text file, UTF-8: unexpected end of data at byte 4\n")


def test_a_configuration_that_is_no_text_is_named_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    (tmp_path / "penstock.toml").write_bytes(b"a = \xe4")
    assert cli.main(["status"]) == 78
    assert "penstock.toml: not a text file" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["change_password ann", "import_definitions"])
def test_stdin_that_is_no_text_is_named(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"\xe4\n"), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", given)
    assert cli.main(words.split()) in (64, 65)
    assert "stdin" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words",
    ["get q --wait", "await_startup --timeout", "stop --timeout", "move a b --rate", "top -d",
     "perf -i"],
)  # fmt: skip
def test_a_number_that_is_none_is_refused(
    words: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words.split(), number]) == 64
    assert number in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--url http://a:99999 status", 64, "option --url: given 'http://a:99999', expected http:"),
        ("--url http://ann:s/t@a status", 64, "given 'http://***@a', expected http://user:passw"),
        ("init --data d --password-file none", 66, "penstock: none: No such file"),
        ("init --data no/d", 66, "no/d: No such file or directory: there is no directory /"),
        ("config explain nope", 64, "unknown option 'nope': `penstock config explain` lists all"),
        ("config explain prt", 64, "unknown option 'prt': did you mean 'port'?"),
        ("perf -y 99999999999999999999", 64, "is not in the range 0<=x<=10000"),
        ("perf -s 99999999999999999999", 64, "is not in the range 0<=x<=134217728"),
        ("publish q x -P nope=1", 64, "unknown option 'nope', known are content_type, con"),
    ],
)
def test_a_wrong_word_is_answered_with_what_is_right(
    words: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == code
    assert said in capsys.readouterr().err
