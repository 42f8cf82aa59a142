"""Words: where in the code each word that a user knows is handled, and which test checks it.

    python tools/words.py            write docs/reference/words.md
    python tools/words.py --check    print what is wrong, exit code 1 if anything is
    python tools/words.py --repair   follow functions and tests that moved to another file, in
                                     tools/words.toml and in pages that cite code; print the rest

The words come from the tables in the code: AMQP methods, arguments, exchange types, options, calls
of the library, commands, HTTP routes, operations, columns. Where a table also has the function,
it is taken from there; for the rest, and for the tests, tools/words.toml is kept by hand:

    ["Kind"]
    "word" = "tests/unit/x.py::test_y"                            the table has the function
    "word" = ["broker/x.py:Class.method", "tests/unit/x.py::test_y"]

Paths of code are relative to src/penstock. Pages cite code in the same form, in backquotes:
`broker/x.py:Class.method`. tests/test_words.py fails if a word has no row, if a function or a test
does not exist, or if the file of a test does not contain the word; each message says which cell is
wrong and where that name exists now.
"""

import argparse
import difflib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "penstock"
MAP = ROOT / "tools" / "words.toml"
PAGE = ROOT / "docs" / "reference" / "words.md"
CITED = re.compile(r"`((?:src/penstock/)?[\w/]+\.py):([A-Za-z_][\w.]*)`")
FILED = re.compile(r"`([\w/]+\.py)`")
TESTED = re.compile(r"`(tests/[\w/]+\.py)(?:::([\w:]+))?`")
# Words that their tests call otherwise: kind and word -> what a test contains instead.
ALSO = {
    ("Queue argument", "x-retry-delay-min"): "retry_delay_ms(",
    ("Queue argument", "x-retry-delay-max"): "retry_delay_ms(",
    ("Queue argument", "x-paging-policy"): 'policy="ratio"',
    ("Queue argument", "x-delay"): "delay_ms",
    ("Queue argument", "x-queue-mode"): "set_queue_mode(",
    ("Queue argument", "x-max-age"): "max_age",
    ("Queue argument", "x-alert-depth-down"): "depth_down",
    ("Queue argument", "x-alert-repeat-gap"): "repeat_gap_s=",
    ("Header or property", "x-delay"): "delay_ms",
    ("Header or property", "reply_to"): "reply-to",
    ("Broker option", "http_connections_max"): "most, most_of_address)",
    ("Broker option", "http_address_connections_max"): "most, most_of_address)",
    ("Broker option", "http_user_requests_max"): "user_requests_max",
    ("Broker option", "vhost_restart_strategy"): "PENSTOCK_VHOST_RESTART_STRATEGY",
    ("Broker option", "vhost_refusal"): "refus",
    ("Limit", "[limits] user_connections"): "max-connections",
    ("Limit", "[limits] vhost_connections"): "max-connections",
    ("Limit", "max-exchanges"): "vhost_exchanges",
    ("Limit", "max-bindings"): "vhost_bindings",
    ("Other argument or flag", "amq.penstock.alert"): "ALERTS",
    ("Operation", "box.streams"): ".streams()",
    ("Operation", "box.stream_info"): ".info()",
    ("Spark source option", "endingOffsetsByTimestamp"): "ending",
}
CITING = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/how-it-works/*.md", "docs/decisions/*.md")
NEAR_MAX = 4


@dataclass(frozen=True)
class Word:
    """One word of a user. forms: texts of which a test of it contains one. code: "file:function",
    if a table of the code says it."""

    text: str
    forms: tuple[str, ...]
    code: str = ""


@dataclass(frozen=True)
class Row:
    """A word with its two cells."""

    kind: str
    word: Word
    code: str
    test: str


# ---- what the code has ---------------------------------------------------------------------------


_DEFINED: Final = re.compile(r"^( *)(?:async def|def|class) (\w+)|^(\w+)(?::.*)? = ", re.MULTILINE)


@cache
def names_of(path: Path) -> frozenset[str]:
    """The functions, classes, methods ("Class.method") and module constants of a file, by how its
    lines begin: parsing a thousand files takes most of a minute."""
    names: set[str] = set()
    around: list[tuple[int, str]] = []
    for found in _DEFINED.finditer(path.read_text(encoding="utf-8")):
        if found[3] is not None:
            names.add(found[3])
            continue
        indent = len(found[1])
        while around and around[-1][0] >= indent:
            around.pop()
        name = f"{around[-1][1]}.{found[2]}" if around else found[2]
        around.append((indent, name))
        names.add(name)
    return frozenset(names)


@cache
def source_names() -> dict[str, frozenset[str]]:
    """File below src/penstock -> its names."""
    return {p.relative_to(SRC).as_posix(): names_of(p) for p in sorted(SRC.rglob("*.py"))}


@cache
def test_names() -> dict[str, frozenset[str]]:
    """Test file below the root -> its names."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {p.relative_to(ROOT).as_posix(): names_of(p) for p in files}


def candidates(file: str, name: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    """Where a name that `file` does not have may be now, as "file:name", the likeliest first."""
    same = [f"{path}:{name}" for path, names in known.items() if name in names]
    if same:
        return same
    last = name.rpartition(".")[2]
    ends = [
        f"{path}:{one}"
        for path, names in known.items()
        for one in sorted(names)
        if one == last or one.endswith(f".{last}")
    ]
    here = [one for one in ends if one.startswith(f"{file}:")]
    if here or 0 < len(ends) <= NEAR_MAX:
        return here or ends
    package = file.partition("/")[0] + "/"
    near = difflib.get_close_matches(name, known.get(file, ()), n=NEAR_MAX)
    within = [one for one in ends if one.startswith(package)]
    return within[:NEAR_MAX] or [f"{file}:{one}" for one in near]


def code_mistake(cell: str) -> str:
    """Say what is wrong with "file:function"; "" if nothing is."""
    file, _, name = cell.removeprefix("src/penstock/").partition(":")
    known = source_names()
    if name in known.get(file, ()):
        return ""
    found = candidates(file, name, known)
    why = f"{file} has no {name}" if file in known else f"there is no file src/penstock/{file}"
    return f"{why}; " + (f"now: {', '.join(found)}" if found else "nothing has this name now")


def test_mistake(cell: str) -> str:
    """Say what is wrong with "file::test"; "" if nothing is."""
    file, _, test = cell.partition("::")
    name = test.replace("::", ".")
    known = test_names()
    if file in known and (not name or name in known[file]):
        return ""
    if not name:
        return f"there is no file {file}"
    found = [one.replace(".py:", ".py::") for one in candidates(file, name, known)]
    why = f"{file} has no {test}" if file in known else f"there is no file {file}"
    return f"{why}; " + (f"now: {', '.join(found)}" if found else "no test has this name now")


def place(function: Any) -> str:
    """Return "file:function" of a function, a method or a click command's callback."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    module, name = function.__module__, function.__qualname__
    parts = module.split(".")[1:]
    path = "/".join(parts) + ".py"
    if path not in source_names():
        path = "/".join((*parts, "__init__.py"))
    return f"{path}:{name.replace('.<locals>', '')}"


# ---- the words, from the tables in the code ------------------------------------------------------


def of(where: str, name: str) -> Any:
    """Return the table, class or function of this name, from the file below `where` that has it."""
    found = [file for file, names in source_names().items() if name in names]
    found = [file for file in found if file.startswith(where)]
    above = [file for file in found if file.count("/") == where.count("/")]
    found = above if len(above) == 1 else found
    if len(found) != 1:
        raise SystemExit(f"tools/words.py: {name} stands in {found or 'no file'} below {where!r}")
    module = "penstock." + found[0].removesuffix(".py").replace("/", ".")
    return getattr(import_module(module.removesuffix(".__init__")), name)


def plain(names: Iterable[str]) -> list[Word]:
    """Words whose tests contain them as they are."""
    return [Word(name, (name,)) for name in names]


def amqp_methods() -> list[Word]:
    from penstock.codec import spec
    from penstock.codec.method import Method

    handlers = {**of("broker/", "BASIC_METHODS"), **of("broker/", "TOPOLOGY_METHODS")}
    found = []
    for name, method in vars(spec).items():
        if isinstance(method, type) and issubclass(method, Method) and method is not Method:
            handler = handlers.get(method.INDEX)
            forms = (name, method.NAME, method.NAME.replace(".", "_").replace("-", "_"))
            found.append(Word(method.NAME, forms, place(handler) if handler else ""))
    return found


def queue_arguments() -> list[Word]:
    return [
        Word(name, (name, re.sub("^x-(alert-)?", "", name).replace("-", "_") + "="))
        for name in of("broker/", "ARGUMENTS")
    ]


def exchange_types() -> list[Word]:
    return plain(of("routing/", "TYPES"))


def other_arguments() -> list[Word]:
    return plain((
        "alternate-exchange", "x-delayed-type", "hash-header", "hash-property",
        "x-recent-history-length", "x-match", "x-priority", "x-stream-offset",
        "x-stream-reader", "x-stream-partition", "x-stream-filter",
        "x-stream-match-unfiltered", "mandatory", "prefetch_count", "exclusive",
        "auto_delete", "no_ack", "amq.rabbitmq.reply-to", "amq.penstock.alert", "heartbeat",
        "frame_max", "channel_max", "PLAIN", "AMQPLAIN", "capabilities",
    ))  # fmt: skip


def headers() -> list[Word]:
    return plain((
        "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
        "x-delay", "x-recent-history-no-store", "x-deduplication-header",
        "x-delivery-count", "CC", "BCC",
        "x-stream-timestamp", "x-stream-gap", "x-stream-filter-value",
        "expiration", "user_id", "reply_to", "delivery_mode", "priority",
    ))  # fmt: skip


def broker_options() -> list[Word]:
    return plain(one.name for one in of("config", "OPTIONS"))


def limits() -> list[Word]:
    names = [f"[limits] {one.name}" for one in of("access/", "LIMIT_OPTIONS")]
    found = [Word(name, (name.partition(" ")[2],)) for name in names]
    return found + plain(dict.fromkeys((*of("access/", "OF_USERS"), *of("access/", "OF_VHOSTS"))))


def storage_options() -> list[Word]:
    rows = of("storage/", "STORAGE_OPTIONS")
    return [Word(f"[storage] {one.name}", (one.name,)) for one in rows]


def library_calls() -> list[Word]:
    import penstock
    from penstock import Box, Job, Queue, Stream

    found = [
        Word(f"penstock.{name}", (f"{name}(",), place(getattr(penstock, name)))
        for name in ("open", "open_stream", "persist")
    ]
    for kind in (Box, Queue, Job, Stream, of("embedded/", "Reader")):
        for name, member in inspect.getmembers(kind):
            inner = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and inspect.isfunction(inner):
                forms = (f".{name}",)
                found.append(Word(f"{kind.__name__}.{name}", forms, place(inner)))
    return found


def library_options() -> list[Word]:
    return [
        Word(f"{call}({name}=)", (f"{name}=", f'"{name}"'))
        for call, given in (("queue", "QueueGiven"), ("stream", "StreamGiven"))
        for name in of("embedded/", given).__annotations__
    ]


def commands() -> list[Word]:
    import click

    def below(group: click.Group, name: str) -> Iterator[Word]:
        context = click.Context(group)
        for one in group.list_commands(context):
            command = group.get_command(context, one)
            assert command is not None
            if isinstance(command, click.Group):
                yield from below(command, f"{name} {one}")
            else:
                assert command.callback is not None
                yield Word(f"{name} {one}", (f'"{one}', f" {one}"), place(command.callback))

    return list(below(of("cli/", "cli"), "penstock"))


def http_routes() -> list[Word]:
    """Return those that are not rows of http.endpoint_table: these are tested row by row, and
    docs/reference/http.md is made from them."""
    api, start = of("http/", "Api"), of("http/", "API")
    found = [
        Word("GET /health", ("/health",), place(api._health)),
        Word("GET /health/ready", ("/health/ready",), place(api._health)),
        Word("GET /health/live", ("/health/live",), place(api._live)),
    ]
    for word, name in (
        ("streams", "StreamEndpoints"), ("leases", "LeaseEndpoints"),
        ("staging", "StagingEndpoints"),
    ):  # fmt: skip
        kind = of("http/", name)
        for address, methods, endpoint in kind.routes(object.__new__(kind)):
            last = address.rpartition("/")[2]
            form = last if "{" not in last else word
            found.append(Word(f"{methods[0]} {start}/{word}/{address}", (form,), place(endpoint)))
    return found


def operations() -> list[Word]:
    from penstock.broker.operations import FUNCTIONS

    return [Word(name, (f'"{name}"',), place(one)) for name, one in FUNCTIONS.items()]


def columns() -> list[Word]:
    return [
        Word(f"{command} {name}", (f'"{name}"', f"{name}=", f" {name}"))
        for command, row in of("operation_table", "OPERATIONS").items()
        for name in (row.answer if row.shown else ())
    ]


def status_fields() -> list[Word]:
    return plain(of("operation_table", "OPERATIONS")["status"].answer)


def spark_source_options() -> list[Word]:
    return plain(one.name for one in of("spark/", "SOURCE_OPTIONS"))


def spark_sink_options() -> list[Word]:
    return plain(one.name for one in of("spark/", "SINK_OPTIONS"))


def pipeline_keys() -> list[Word]:
    """The keys of a pipeline's file."""
    found = []
    whole = place(of("spark/", "parse_pipeline"))
    for table, keys in of("spark/", "TABLES").items():
        own = f"{whole.partition(':')[0]}:_{table}"
        code = whole if code_mistake(own) else own
        found.append(Word(f"[{table}]", (f"[{table}]", f'"{table}"'), whole))
        for key in (one.name for one in keys):
            forms = (f"{key} =", f"{key}=", f'"{key}"')
            found.append(Word(f"[{table}] {key}", forms, code))
    return found


KINDS: Mapping[str, Callable[[], list[Word]]] = {
    "AMQP method": amqp_methods,
    "Queue argument": queue_arguments,
    "Other argument or flag": other_arguments,
    "Header or property": headers,
    "Exchange type": exchange_types,
    "Broker option": broker_options,
    "Limit": limits,
    "Storage option": storage_options,
    "Library call": library_calls,
    "Library option": library_options,
    "Command": commands,
    "HTTP route": http_routes,
    "Operation": operations,
    "Column": columns,
    "Status field": status_fields,
    "Spark source option": spark_source_options,
    "Spark sink option": spark_sink_options,
    "Pipeline key": pipeline_keys,
}


# ---- the table -----------------------------------------------------------------------------------


def kept() -> dict[str, dict[str, Any]]:
    """The rows of tools/words.toml."""
    return tomllib.loads(MAP.read_text(encoding="utf-8"))


def rows() -> list[Row]:
    """Every word with its cells, "" for one that nobody gave."""
    known = kept()
    found = []
    for kind, words in KINDS.items():
        given = known.get(kind, {})
        for found_word in words():
            word = found_word
            cells = given.get(word.text, "")
            code, test = cells if isinstance(cells, list) else (word.code, cells)
            also = ALSO.get((kind, word.text))
            word = replace(word, forms=(*word.forms, also)) if also else word
            found.append(Row(kind, word, code, test))
    return found


def mistakes() -> list[str]:
    """What is wrong with the table, one line for each cell."""
    found = []
    table = rows()
    for row in table:
        start = f"tools/words.toml, {row.kind}, {row.word.text}"
        if not row.test and not row.code:
            found.append(f"{start}: no row; add: {_line(row.word)}")
            continue
        wrong = code_mistake(row.code) if row.code else "no function is given"
        if wrong:
            found.append(f"{start}: code: {wrong}")
        wrong = test_mistake(row.test) if row.test else f"no row; add: {_line(row.word)}"
        if not wrong and not is_in_test(row):
            file = row.test.partition("::")[0]
            wrong = f"{file} does not contain {' or '.join(map(repr, row.word.forms))}"
        if wrong:
            found.append(f"{start}: test: {wrong}")
    words = {(row.kind, row.word.text) for row in table}
    found += [
        f"tools/words.toml, {kind}, {word}: the code has no such word any more; delete the row"
        for kind, given in kept().items()
        for word in given
        if (kind, word) not in words
    ]
    return found


def _line(word: Word) -> str:
    test = '"tests/FILE.py::TEST"'
    cells = test if word.code else f'["FILE.py:FUNCTION", {test}]'
    return f'"{word.text}" = {cells}'


def is_in_test(row: Row) -> bool:
    """Whether the file of the row's test contains the word."""
    text = (ROOT / row.test.partition("::")[0]).read_text(encoding="utf-8")
    return any(form in text for form in row.word.forms)


def citing_pages() -> list[Path]:
    """The pages whose citations of code are checked."""
    return sorted({path for pattern in CITING for path in ROOT.glob(pattern)})


def is_file(name: str) -> bool:
    """Whether a file of the repository has this name, or this path from its package."""
    name = name.removeprefix("src/penstock/")
    known = {*source_names(), *test_names(), *(p.name for p in ROOT.glob("*.py"))}
    known |= {
        p.relative_to(ROOT).as_posix() for d in ("tools", "bench") for p in (ROOT / d).glob("*.py")
    }
    return any(path == name or path.endswith(f"/{name}") for path in known)


def page_mistakes(page: Path) -> list[str]:
    """What is wrong with the code and the tests that a page cites, one line for each."""
    found = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        start = f"{page.relative_to(ROOT).as_posix()}:{number}"
        for file, name in CITED.findall(line):
            if not file.startswith(("tests/", "tools/", "bench/", "examples/")):
                wrong = code_mistake(f"{file}:{name}")
                found += [f"{start}: `{file}:{name}`: {wrong}"] if wrong else []
        for file in FILED.findall(line):
            if not file.startswith("tests/") and not is_file(file):
                found.append(f"{start}: `{file}`: there is no such file")
        for file in re.findall(r"(?<=[ `(])tests/[\w/]+\.py", line):
            found += [f"{start}: there is no file {file}"] if file not in test_names() else []
        for file, test in TESTED.findall(line):
            wrong = test_mistake(f"{file}::{test}" if test else file)
            found += [f"{start}: {wrong}"] if wrong else []
    return found


def page() -> str:
    """The text of docs/reference/words.md."""
    lines = [
        "# Words: where each one is handled, and what tests it",
        "",
        "Find a word that you know from AMQP, from the configuration, from a command or from the",
        "library. The row names the function that acts on it, below `src/penstock`, and a test.",
        "[ARCHITECTURE.md](../../ARCHITECTURE.md) explains how the parts work together.",
        "",
        "`python tools/words.py` writes this page from the tables in the code and from",
        "`tools/words.toml`; `tests/test_words.py` fails if a row is missing or wrong.",
    ]
    kind = ""
    for row in rows():
        if row.kind != kind:
            kind = row.kind
            lines += [
                "",
                f"## {_plural(kind)}",
                "",
                "| word | code | test |",
                "| --- | --- | --- |",
            ]
        word = row.word.text.replace("|", "\\|")
        lines.append(f"| `{word}` | `{row.code}` | `{row.test}` |")
    return "\n".join(lines) + "\n"


def _plural(kind: str) -> str:
    return {
        "Header or property": "Headers and properties",
        "Other argument or flag": "Other arguments, flags and special names",
    }.get(kind, f"{kind}s")


# ---- commands ------------------------------------------------------------------------------------


def repair(path: Path) -> list[str]:
    """Follow what moved to exactly one other place. Returns a line for each replaced cell."""
    text, done = path.read_text(encoding="utf-8"), []
    for file, name in sorted(set(re.findall(r"([\w/]+\.py):([A-Za-z_][\w.]*)", text))):
        if file.startswith("tests/") or not code_mistake(f"{file}:{name}"):
            continue
        found = candidates(file, name, source_names())
        if len(found) == 1:
            old, new = f"{file}:{name}", found[0]
            text = re.sub(rf"(?<![\w/]){re.escape(old)}(?![\w.])", new, text)
            done.append(f"{path.name}: {old} -> {new}")
    for file, test in sorted(set(re.findall(r"(tests/[\w/]+\.py)::([\w:]+)", text))):
        found = candidates(file, test.replace("::", "."), test_names())
        if test_mistake(f"{file}::{test}") and len(found) == 1:
            old, new = f"{file}::{test}", found[0].replace(".py:", ".py::", 1)
            text = re.sub(rf"{re.escape(old)}(?!\w)", new, text)
            done.append(f"{path.name}: {old} -> {new}")
    path.write_text(text, encoding="utf-8")
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="print what is wrong")
    parser.add_argument("--repair", action="store_true", help="follow what moved")
    asked = parser.parse_args()
    if asked.repair:
        for path in (MAP, *citing_pages()):
            print(*repair(path), sep="\n", end="\n")
    wrong = mistakes() + [line for one in citing_pages() for line in page_mistakes(one)]
    print(*wrong, sep="\n")
    if not asked.check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
