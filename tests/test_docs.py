"""The documentation: its links lead somewhere, and its blocks of code and commands work.

One broker serves all pages. A page's `python` blocks are one program, in their order, run in a
directory of its own with warnings as errors; then its `sh` blocks run in that directory, line by
line; then, if it uses the broker, the program once more, as somebody does who tries what he reads.
A command of `penstock` runs in this process, everything else in bash. `toml` is read by the code
that reads it in earnest, `json` is compared with what the broker answers. NOT_RUN lists the
commands that no test can run here, with the reason; their options are read all the same.

The addresses localhost:5672 and localhost:15672 and the directories of PATHS stand for those of
the test.
"""

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli.main import VERBS, cli
from penstock.config import LIMITS, TABLES, config_of, parse_file, settings
from tests.helpers.live_broker import LiveBroker
from tests.helpers.tls_files import TlsFiles
from tools import site

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GROUPS = ("start", "tutorials", "guides", "reference", "how-it-works")
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]
LANGUAGES = {"python", "py", "sh", "toml", "json", ""}
# What a page may import besides the standard library and us; skipped where one is missing.
OTHERS = ("opentelemetry", "pika", "pyarrow")
# The directories that pages name, and what they are below the directory of the test.
PATHS = {"/srv/penstock": "data", "/fast": "fast", "/big": "big", "/etc/penstock/tls": "tls"}
SPARK = "starts Spark; tests/spark runs pipelines"
NOT_RUN = {
    "pip install": "takes packages from an index; tools/ and CI install the wheel",
    "make ": "runs this test, or the demonstration of CI",
    "penstock tls self-signed": "the certificates of the broker of this test are there",
    "penstock serve": "the broker of this test is one",
    "penstock pipeline run": SPARK,
    "penstock pipeline check": SPARK,
    "penstock release_query": "the id is that of a query of the reader's",
    "spark-submit": "needs a cluster of Spark; tests/cluster has one",
    "cd examples/declarative": "is for the next line",
    "spark-pipelines": "starts Spark Connect; tests/cluster runs this example",
    "rabbitmqadmin": "is not a package of this project; tests/http runs it where it is installed",
    "duckdb": "is not a package of this project",
    "celery": "waits for tasks; test_celery_example.py runs the worker",
    "python examples/celery_tasks": "needs that worker",
    "python examples/tutorials": "test_tutorials.py runs them",
    "python examples/read_stream": "test_read_stream_examples.py runs them",
}

Block = tuple[str, str]


def name_of(page: Path) -> str:
    """How a page is called here and in the names of tests: guides/streams."""
    return str(page.relative_to(DOCS if DOCS in page.parents else ROOT).with_suffix(""))


def blocks(page: Path, *languages: str) -> list[Block]:
    """(language, text) of the fenced blocks of a page, indentation taken away."""
    found = re.findall(
        r"^( *)```(\w*)\n(.*?)^\1```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [
        (language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in found
        if not languages or language in languages
    ]


def program_of(page: Path) -> str:
    """The Python of a page."""
    return "\n\n".join(text for _, text in blocks(page, "python"))


def commands_of(page: Path) -> list[str]:
    """The command lines in the shell blocks of a page."""
    text = "".join(text for _, text in blocks(page, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def why_not(line: str) -> str | None:
    """Why no test runs this command line; None for one that is run."""
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)


def with_any(*languages: str) -> list[Path]:
    """The pages that have a block of one of the languages."""
    return [page for page in PAGES if blocks(page, *languages)]


# Links and the index.


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M
    ):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 1
        while anchor in found:
            anchor = f"{anchor.rstrip('-0123456789')}-{number}"
            number += 1
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors_of(there.read_text(encoding="utf-8")), target


def test_the_index_has_each_page_once() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = [
        link.partition("#")[0] for link in re.findall(r"^\* \[[^]]+\]\(([^)]+)\)", index, re.M)
    ]
    assert len(linked) == len(set(linked))
    pages = {
        str(page.relative_to(DOCS)) for group in GROUPS for page in (DOCS / group).glob("*.md")
    }
    assert pages <= set(linked)


# The site. `make site` builds it, which takes too long here.


def pages_in(navigation: site.Nav) -> Iterator[str]:
    """The pages of a navigation, all levels."""
    for entry in navigation:
        for inner in [entry] if isinstance(entry, str) else entry.values():
            yield from [inner] if isinstance(inner, str) else pages_in(inner)


def test_the_navigation_of_the_site_has_each_page_once() -> None:
    found = list(pages_in(site.nav()))
    assert sorted(found) == sorted(
        [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
        + [f"{site.OUTSIDE}/{name}" for name in site.TEXTS]
    )


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_a_page_is_to_the_site_what_it_is_to_github(page: Path) -> None:
    """Which takes a list without an empty line before it, and blocks indented by two spaces."""
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^ {1,3}```.*", text, re.MULTILINE)
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^[^\s*#|].*\n(?:\* |1\. ).*", plain, re.MULTILINE)


def test_links_to_files_outside_of_docs_lead_to_pages_of_the_site() -> None:
    text = "[a](../../examples/flights.toml) [b](durability.md#x) [c](../../CHANGELOG.md) [d](http://e)"
    assert site.moved(text, DOCS / "how-it-works" / "memory.md") == (
        "[a](../repository/examples/flights.toml.md) [b](durability.md#x)"
        " [c](../repository/CHANGELOG.md) [d](http://e)"
    )


def test_paths_of_pages_that_the_source_names_exist() -> None:
    for place in ("src", "bench", "tests", "examples", "Makefile", "pyproject.toml"):
        files = [ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*.*")
        for file in files:
            if file.suffix not in {".py", ".yml", ".toml", ""}:
                continue
            for named in re.findall(r"docs/[\w/-]+\.(?:md|png)", file.read_text(encoding="utf-8")):
                assert (ROOT / named).exists(), f"{file}: {named}"


# What stands in the blocks.


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """The broker of all pages. It has what the pipelines of the pages read and write."""
    directory = tmp_path_factory.mktemp("docs")
    for name in PATHS.values():
        (directory / name).mkdir()
    files = TlsFiles(directory / "tls")
    environment = files.environment()
    with LiveBroker(directory / "data", environment=environment, has_http=True) as broker:
        with penstock.open(broker.url) as box:
            box.stream("flights.events").append(b'{"month": 1, "carrier": "UA"}')
            box.queue("flights.events.dead").put(b"not JSON")
            box.queue("trips.late").put(b'{"day": 1, "delay": 59}')
        yield broker
        assert broker.stop() == 0


def of_test(text: str, live: LiveBroker, quoted: Callable[[str], str] = str) -> str:
    """The text with the addresses and directories of the test. quoted: how a path is written."""
    text = text.replace("localhost:15672", f"localhost:{live.http_port}")
    text = text.replace("localhost:5672", f"localhost:{live.port}")
    text = text.replace("localhost:5671", f"localhost:{live.tls_port}")
    text = text.replace('"localhost", 5671', f'"localhost", {live.tls_port}')
    for path, name in PATHS.items():
        text = re.sub(rf"(?<![\w.]){path}\b", quoted(str(live.data.parent / name)), text)
    return text


def run_program(program: str, directory: Path) -> str:
    """What the program prints; it must end well."""
    (directory / "page.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_command(line: str, directory: Path) -> None:
    """One command line, which must end well."""
    if line.startswith("penstock ") and " | " not in line:
        words = shlex.split(line, comments=True)[1:]
        done = CliRunner().invoke(cli, words, input="secret word\nsecret word\n")
        assert done.exit_code == 0, (line, done.output, done.exception)
        return
    bash = subprocess.run(
        ["bash", "-c", line], cwd=directory, capture_output=True, text=True, timeout=120
    )
    assert bash.returncode == 0, line + "\n" + bash.stdout + bash.stderr


def run_commands(page: Path, live: LiveBroker, directory: Path) -> None:
    """The shell blocks of a page. A broker that they stop is started again."""
    for line in commands_of(page):
        if why_not(line) is None:
            run_command(of_test(line, live, shlex.quote), directory)
    if "penstock stop" in commands_of(page):
        live.kill()
        live.start()
    if any(line.startswith("penstock change_password guest") for line in commands_of(page)):
        run_command("penstock change_password guest guest", directory)


@pytest.mark.parametrize("page", with_any("python", "sh"), ids=name_of)
def test_python_and_commands_of_a_page_run(
    page: Path, tmp_path: Path, live: LiveBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(page)
    for package in OTHERS:
        if f"import {package}" in program and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    (tmp_path / "penstock").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock "$@"\n')
    (tmp_path / "penstock").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PENSTOCK_DATA", str(live.data))
    monkeypatch.setenv("PENSTOCK_URL", live.url)
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.chdir(first)
    run_program(of_test(program, live), first)
    run_commands(page, live, first)
    if of_test(program, live) != program:
        again = tmp_path / "again"
        again.mkdir()
        run_program(of_test(program, live), again)


@pytest.mark.parametrize("page", with_any(), ids=name_of)
def test_each_block_is_in_a_language_that_is_tested(page: Path) -> None:
    fences = re.findall(r"^ *```(\w*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))
    assert {language for language, _ in blocks(page)} <= LANGUAGES


def test_each_reason_not_to_run_a_command_is_needed() -> None:
    lines = [line for page in PAGES for line in commands_of(page)]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.parametrize("page", with_any("python"), ids=name_of)
def test_each_block_of_a_page_imports_what_it_uses(page: Path) -> None:
    """So that a block can be copied alone; what else it goes on from, the page says."""
    imported: set[str] = set()
    for _, block in blocks(page, "python"):
        tree = ast.parse(block)
        here = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imported |= here
        assert not (used & imported) - here, block


@pytest.mark.parametrize("page", with_any("py"), ids=name_of)
def test_programs_for_spark_import_names_that_exist(page: Path) -> None:
    """They need a JVM: tests/spark runs what they do. Here they are compiled."""
    pytest.importorskip("pyspark")
    for _, block in blocks(page, "py"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("penstock"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


@pytest.mark.parametrize("page", with_any("toml"), ids=name_of)
def test_toml_of_a_page_is_taken(page: Path) -> None:
    from penstock.spark.pipeline_file import parse_pipeline

    for _, text in blocks(page, "toml"):
        tables = set(re.findall(r"^\[+(\w+)\]", text, re.MULTILINE))
        if tables <= set(TABLES):
            config = config_of(
                whole_bytes=1 << 30, flags={}, environment={}, file=parse_file("p.toml", text)
            )
            assert config.data
            continue
        if "source" not in tables:
            text = '[source]\nqueue = "q"\n[[sink]]\nqueue = "s"\n' + text
        assert parse_pipeline("p.toml", text, "p").sinks


def shape(value: object) -> object:
    """The keys and kinds of a JSON value; a list has those of its first item."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


ANSWERS = """
from urllib.error import HTTPError

documented = json.loads({commit!r})
documented["target"]["queue"], documented["tokens"] = "orders", [token]
assert ask("PUT", STAGING, documented)["status"] == "already done"
try:
    get(STREAM + "/frames?from=9999999&to=10000000")
except HTTPError as error:
    problem = json.load(error)
print(json.dumps([json.load(get(STREAM)), problem, token]))
"""


def test_json_of_the_pages_is_what_the_broker_answers(tmp_path: Path, live: LiveBroker) -> None:
    assert [name_of(page) for page in with_any("json")] == ["reference/http"]
    for package in OTHERS:
        pytest.importorskip(package)
    page = DOCS / "reference" / "http.md"
    info, problem, token, commit = (json.loads(text) for _, text in blocks(page, "json"))
    program = program_of(page) + ANSWERS.format(commit=json.dumps(commit))
    answers = json.loads(run_program(of_test(program, live), tmp_path).splitlines()[-1])
    answers[0]["readers"] = {}
    assert [shape(answer) for answer in answers] == [shape(info), shape(problem), shape(token)]


# The command line.


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and what follows it. Raises click.UsageError."""
    command: click.Command = cli
    context = click.Context(cli, info_name="penstock")
    while isinstance(command, click.Group) and words and re.match(r"[a-z]", words[0]):
        name, found, words = command.resolve_command(context, list(words))
        assert found is not None
        assert name is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    return command, words


@pytest.mark.parametrize("page", with_any("sh"), ids=name_of)
def test_command_lines_of_a_page_are_understood(page: Path) -> None:
    """Also those that are not run."""
    for line in commands_of(page):
        if line.startswith("penstock "):
            words = shlex.split(line.partition(" | ")[0], comments=True)[1:]
            command, rest = command_of(words)
            if not isinstance(command, click.Group):
                command.parse_args(click.Context(command), list(rest))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_exist(page: Path) -> None:
    for text in re.findall(r"`penstock\s+([^`]+)`", page.read_text(encoding="utf-8")):
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


def options_of(command: click.Command) -> set[str]:
    """The options of a command, and those that every command has."""
    return {
        "--help",
        *(name for one in command.params for name in one.opts if name.startswith("-")),
    }


SYNOPSIS = re.compile(r"(?:^`|^```\n)(penstock [^`]+)(?:^```|`)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_synopsis_has_the_options_that_there_are(page: Path) -> None:
    for text in SYNOPSIS.findall(page.read_text(encoding="utf-8")):
        if "[" not in text or "[A-Z" in text:
            continue
        words = re.sub(r"\s+", " ", text).split()[1:]
        command, _ = command_of([word for word in words if re.fullmatch(r"[a-z_-]+", word)])
        given = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.partition(" [")[2]))
        assert given <= options_of(command) | {"-p"}, text


def test_each_command_has_a_heading_with_all_of_its_options() -> None:
    pages = [
        DOCS / "reference" / "cli.md",
        DOCS / "guides" / "pipelines.md",
        DOCS / "guides" / "clusters.md",
    ]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    sections = re.split(r"^#+ ", text, flags=re.MULTILINE)
    shared = {
        "--data", "--url", "--format", "--help", "-p", "--vhost", "-v", "--verbose", "-q", "-s",
        "--no-table-headers", "--sort", "--limit", "--filter", "--online", "--offline",
        "--local", "--timeout",
    }  # fmt: skip
    for name in VERBS:
        command, _ = command_of([name])
        both = command.commands.items() if isinstance(command, click.Group) else [("", command)]
        for inner, one in both:
            title = f"penstock {name} {inner}".strip()
            about = [part for part in sections if part.partition("\n")[0] == title]
            assert about, title
            options = [option for option in one.params if isinstance(option, click.Option)]
            for option in options:
                known = set(option.opts) | set(option.secondary_opts)
                assert known & shared or any(n in about[0] for n in known), (
                    f"{title}: {option.opts}"
                )


def test_the_texts_of_errors_name_commands_that_exist() -> None:
    """Texts of our own errors and help, in the source."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for text in re.findall(
            r"penstock ((?:release|list|store|pipeline)[a-z_ ]*)", file.read_text()
        ):
            words = text.split()
            both = "_".join(words[:2])
            assert words[0] in VERBS or both in VERBS, f"{file}: penstock {text}"


def said_by_us() -> list[str]:
    """Each text in the source, with "..." for what is put in."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "..." for part in node.values
                ]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[a-z]", "...", node.value))
    return found


def test_texts_of_the_troubleshooting_page_are_texts_of_the_source() -> None:
    page = (DOCS / "reference" / "troubleshooting.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(told) > 25
    said = "\n".join(said_by_us())
    for text in told:
        parts = [part.strip(" '\";:?,()") for part in text.split("...")]
        long = [part for part in parts if len(part) > 3]
        assert long, text
        for part in long:
            assert part in said, f"{text}: {part!r}"


# Installation.


def test_each_line_with_pip_install_works_in_a_clone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = 0
    for page in PAGES:
        for line in re.findall(r"^pip install .*$", page.read_text(encoding="utf-8"), re.MULTILINE):
            match = re.fullmatch(r"pip install (?:\.|'\.\[([\w,]+)\]')(?: +#.*)?", line)
            assert match, f"{page.name}: {line}"
            assert set((match[1] or "server").split(",")) <= set(project["optional-dependencies"])
            found += 1
    assert found >= 8


def test_errors_do_not_name_penstock_as_a_package_of_an_index() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        assert "pip install 'penstock" not in file.read_text(encoding="utf-8"), file


# Figures.


def test_figures_of_the_comparison_are_those_of_the_benches() -> None:
    """Each number in a row with figures stands on the page that the benches write."""
    page = (DOCS / "reference" / "comparison.md").read_text(encoding="utf-8")
    measured = (DOCS / "reference" / "performance.md").read_text(encoding="utf-8")
    known = set(re.findall(r"[\d.,]*\d", measured))
    rows = re.findall(r"^\| [^|]* (\|.*\d.*\|)$", page.partition("## RabbitMQ")[2], re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        figures = re.findall(r"[\d.,]*\d", re.sub(r"`[^`]*`|Kafka 4.1", "", row))
        assert set(figures) <= known, row


UNITS = {"s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROW = re.compile(r"^\| .* \| (?:`\[(\w+)\]` )?`(\w+)` \| ([^|]+) \| [^|]* \|$", re.MULTILINE)
NO_LIMITS = {  # where the broker is and how it works, and what only tells somebody
    "audit_log", "audit_vhost", "auth_backends", "consumer_timeout_closes", "data",
    "data_permissions",
    "durability", "host", "http_hosts", "http_port", "http_proxy_protocol_from", "lease_alert_s",
    "load_definitions", "log_level", "loopback_users", "port", "prometheus_port",
    "proxy_protocol_from", "strict",
    "vhost_restart_strategy",
}  # fmt: skip


def number(text: object) -> object:
    """The number that a text of the page or of a default means; the text, if it is none."""
    found = re.fullmatch(r"(-?[\d.]+) ?(\w*)", str(text).replace(",", "").strip())
    return float(found[1]) * UNITS[found[2] or "s"] if found else text


def test_the_table_of_limits_has_each_option_with_its_default() -> None:
    page = (DOCS / "guides" / "security.md").read_text(encoding="utf-8")
    told = {(table, name): number(value.strip("` ")) for table, name, value in ROW.findall(page)}
    limits = {
        (one.table, one.option.name): number(one.default)
        for one in settings()
        if (not one.table and one.option.name not in NO_LIMITS)
        or one.table == LIMITS
        or one.key == "storage.disk_free_limit"
    }
    assert told == limits


def test_defaults_in_the_sentences_about_security_are_those_of_the_options() -> None:
    page = (DOCS / "guides" / "security.md").read_text(encoding="utf-8")
    told = re.findall(r"([\d.,]+(?: [KMG]iB| s)?) \(`(\w+)`\)", page)
    defaults = {one.option.name: one.default for one in settings()}
    assert {name for _, name in told} >= {"half_open_max", "http_connections_max", "vhost_retry"}
    for value, name in told:
        assert number(value) == number(defaults[name]), name
