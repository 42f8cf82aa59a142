"""The commands of the documentation: each that a page names exists, and takes what stands there.

Every line of an `sh` block that begins with `penstock`, and every `penstock ...` within a sentence,
is read as the command line reads it, up to where it would run. Those of users.md are run, in their
order, on a broker. The limits in security.md are those of the options, with their defaults.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.access.limits import Limits
from penstock.cli.main import VERBS, cli
from penstock.config import DEFAULTS
from penstock.storage.options import StorageOptions
from tests.helpers.live_broker import LiveBroker

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`penstock\s+([^`]+)`")


def lines_of(page: Path) -> list[str]:
    """The command lines in the blocks of a page."""
    text = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("penstock ")]


def read(words: list[str]) -> None:
    """As the command line reads these words; raises click.UsageError. Nothing is run."""
    command: click.Command = cli
    context = click.Context(cli, info_name="penstock")
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            return
        name, found, words = command.resolve_command(context, list(words))
        assert found is not None
        assert name is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.parse_args(context, list(words))


@pytest.mark.parametrize("page", [p for p in PAGES if lines_of(p)], ids=lambda page: page.stem)
def test_command_lines_of_a_page_are_understood(page: Path) -> None:
    for line in lines_of(page):
        read(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_sentences_exist(page: Path) -> None:
    for text in INLINE.findall(page.read_text(encoding="utf-8")):
        words = re.sub(r"[\[\]|]", " ", text).split()
        if words[0].startswith("-"):
            continue
        context = click.Context(cli, info_name="penstock")
        name, command, rest = cli.resolve_command(context, words)
        assert name in VERBS, text
        is_group = isinstance(command, click.Group)
        if is_group and rest and re.fullmatch(r"[a-z_-]+", rest[0]):
            assert isinstance(command, click.Group)
            assert rest[0] in command.commands, text


def test_the_docs_of_errors_name_commands_that_exist() -> None:
    """Texts of our own errors and help, in the source."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for text in re.findall(
            r"penstock ((?:release|list|store|pipeline)[a-z_ ]*)", file.read_text()
        ):
            words = text.split()
            both = "_".join(words[:2])
            assert words[0] in VERBS or both in VERBS, f"{file}: penstock {text}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("docs") / "data") as broker:
        yield broker


def test_the_commands_of_users_run_as_written(
    broker: LiveBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(broker.data))
    for line in lines_of(ROOT / "docs" / "guides" / "users.md"):
        words = shlex.split(line, comments=True)[1:]
        done = CliRunner().invoke(cli, words, input="secret word\nsecret word\n")
        assert done.exit_code == 0, (line, done.output, done.exception)
    assert [row["user"] for row in broker.control("list_permissions", "orders")] == ["ada"]


UNITS = {"s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROW = re.compile(r"^\| .* \| (?:`\[(\w+)\]` )?`(\w+)` \| ([^|]+) \| [^|]* \|$", re.MULTILINE)
NO_LIMITS = {  # where the broker is and how it works, and what only tells somebody
    "data", "data_permissions", "durability", "host", "http_hosts", "http_port", "lease_alert_s",
    "log_level", "port", "strict", "vhost_restart_strategy",
}  # fmt: skip


def number(text: object) -> object:
    """The number that a text of the page or of a default means; the text, if it is none."""
    found = re.fullmatch(r"(-?[\d.]+) ?(\w*)", str(text).replace(",", "").strip())
    return float(found[1]) * UNITS[found[2] or "s"] if found else text


def test_the_table_of_limits_has_each_option_with_its_default() -> None:
    page = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    told = {(table, name): number(value.strip("` ")) for table, name, value in ROW.findall(page)}
    limits = {("", name): value for name, value in DEFAULTS.items() if name not in NO_LIMITS}
    limits |= {("limits", name): value for name, value in asdict(Limits()).items()}
    limits["storage", "disk_free_limit"] = StorageOptions().disk_free_limit
    assert told == {key: number(value) for key, value in limits.items()}


def test_defaults_in_the_sentences_about_security_are_those_of_the_options() -> None:
    page = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    told = re.findall(r"([\d.,]+(?: [KMG]iB| s)?) \(`(\w+)`\)", page)
    assert {name for _, name in told} >= {"half_open_max", "http_connections_max", "vhost_retry"}
    for value, name in told:
        assert number(value) == number(DEFAULTS[name]), name
