"""The rules of this code base that a program can check.

Each test names the rule it keeps. A file is as long as its decision takes; a function fits a
screen, and one that has a reason to be longer stands in the list below, with the reason.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import click

import penstock
from penstock.cli import main as cli_main
from tests.crash.batch_mutants import BATCH_MUTANTS
from tests.crash.lease_mutants import LEASE_MUTANTS
from tests.crash.mutants import MUTANTS
from tests.crash.queue_mutants import QUEUE_MUTANTS
from tests.crash.stream_mutants import STREAM_MUTANTS

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "penstock"
FUNCTION_LINES_MAX = 70
IMPORTED_AS = {
    "google-re2": "re2",
    "pyjwt": "jwt",
    "opentelemetry-api": "opentelemetry",
}  # where it is not the package's name

# "path from the root::name" -> why it may be longer
LONG_FUNCTIONS: dict[str, str] = {}

# Words that tell of work left undone, and words of one machine. Written in pieces, for this file
# is searched too.
UNDONE = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error")
ELSEWHERE = ("/wo" + "rk/", "sha" + "red/", "/ro" + "ot/", "STOR" + "AGE.md", "DES" + "IGN.md")

SOURCES = sorted(SRC.rglob("*.py"))
# Of src/penstock: what needs an extra, or uses something of it where it is installed.
WITH_EXTRA = {
    "spark", "arrow_batches.py", "page_frames.py", "http/ranges.py", "cli/tls.py",
    "access/tokens.py", "embedded/tracing.py",
}  # fmt: skip
# What is written by people, here and not in an environment or a cache.
PYTHON = sorted(
    [ROOT / "setup.py", *SOURCES]
    + [p for d in ("tests", "bench", "examples", "tools") for p in (ROOT / d).rglob("*.py")]
)
WRITTEN = sorted(
    PYTHON
    + list(ROOT.glob("*.md"))
    + list((ROOT / "docs").rglob("*.md"))
    + [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run", ROOT / ".gitignore"]
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@dataclass
class Outline:
    """What the statements of a file say; its expressions are not looked at. functions: (name,
    lines) of each function and method, its docstring and decorators left out. classes: (name,
    line). run, typed: full names of the modules that it imports anywhere, when it runs and for the
    checker of types alone."""

    head: str
    functions: list[tuple[str, int]] = field(default_factory=list)
    classes: list[tuple[str, int]] = field(default_factory=list)
    run: set[str] = field(default_factory=set)
    typed: set[str] = field(default_factory=set)

    def add(self, statements: Iterable[ast.AST], imports: set[str]) -> None:
        for node in statements:
            if isinstance(node, ast.Import):
                imports.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports.add(node.module)
            elif isinstance(node, ast.ClassDef):
                self.classes.append((node.name, node.lineno))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                first = node.body[0]
                if ast.get_docstring(node) is not None:
                    lines -= (first.end_lineno or first.lineno) - first.lineno + 1
                self.functions.append((node.name, lines))
            is_typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            self.add(getattr(node, "body", ()), self.typed if is_typed else imports)
            for part in ("orelse", "handlers", "finalbody", "cases"):
                self.add(getattr(node, part, ()), imports)


@cache
def outline(path: Path) -> Outline:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Outline(ast.get_docstring(tree) or "")
    found.add(tree.body, found.run)
    return found


def imported(path: Path) -> set[str]:
    """Top-level names of all packages that the file imports when it runs, anywhere in it."""
    return {name.split(".")[0] for name in outline(path).run}


def hot_modules() -> list[str]:
    """HOT_MODULES of setup.py, the one list of what is compiled."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOT_MODULES":
            return list(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no HOT_MODULES")


def commands(group: click.Command, name: str) -> Iterator[str]:
    """The full names of a command and of all below it."""
    yield name
    if isinstance(group, click.Group):
        context = click.Context(group)
        for below in group.list_commands(context):
            command = group.get_command(context, below)
            assert command is not None
            yield from commands(command, f"{name} {below}")


def with_words(paths: Iterable[Path], words: Iterable[str]) -> list[str]:
    """ "file: word" for each of the words that stands in one of the files."""
    texts = {path: path.read_text() for path in paths}
    return [f"{name_of(p)}: {word}" for p, text in texts.items() for word in words if word in text]


# --- how long, how opened ---


def test_a_function_fits_a_screen() -> None:
    long = [
        f"{name_of(path)}::{name}: {lines} lines"
        for path in SOURCES
        for name, lines in outline(path).functions
        if lines > FUNCTION_LINES_MAX and f"{name_of(path)}::{name}" not in LONG_FUNCTIONS
    ]
    assert not long


def test_every_exception_to_the_length_is_still_needed() -> None:
    for name in LONG_FUNCTIONS:
        file, _, function = name.partition("::")
        lines = [n for f, n in outline(ROOT / file).functions if f == function]
        assert max(lines, default=0) > FUNCTION_LINES_MAX, name


def test_a_module_opens_with_what_it_is() -> None:
    heads = {name_of(path): outline(path).head.splitlines() for path in SOURCES}
    assert not [name for name, head in heads.items() if len([x for x in head if x.strip()]) < 3]


def test_no_class_name_stands_twice() -> None:
    """The name alone says which class is meant. `penstock.aio` has twins with `Async` in front."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for name, line in outline(path).classes:
            places.setdefault(name, []).append(f"{name_of(path)}:{line}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_nothing_is_left_undone() -> None:
    assert not with_words(SOURCES, UNDONE)


def test_only_the_clock_asks_the_system_for_the_calendar() -> None:
    """It makes no steps (decision 46). A client stamps messages with the time of its machine."""
    calls = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(")
    asking = {
        path.relative_to(SRC).as_posix()
        for path in SOURCES
        if calls.search(path.read_text(encoding="utf-8"))
    }
    assert asking == {"clock.py", "client/driver.py", "client/queue.py", "client/stream.py"}


def test_nothing_names_a_place_outside_the_project() -> None:
    assert not with_words(WRITTEN, ELSEWHERE)


# --- what goes with what ---


def test_readme_says_how_to_run_and_test() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make run" in text
    assert "make test" in text


def test_ci_calls_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert "make test" in script.read_text().splitlines()
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"


def test_each_hot_module_exists_and_is_of_this_build() -> None:
    kinds = set()
    for module in hot_modules():
        assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").exists(), module
        spec = find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None
        kinds.add("compiled" if spec.origin.endswith(tuple(EXTENSION_SUFFIXES)) else "pure")
    assert kinds == {penstock.build_kind()}


def test_each_command_has_a_heading_in_the_docs() -> None:
    headings = {
        line.lstrip("# ").strip("`")
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("#")
    }
    assert not set(commands(cli_main.cli, "penstock")) - headings


def test_a_command_s_help_begins_with_its_line_in_the_list_of_commands() -> None:
    context = click.Context(cli_main.cli)
    for name, verb in cli_main.VERBS.items():
        command = cli_main.cli.get_command(context, name)
        assert command is not None
        assert " ".join((command.help or "").split("\n\n")[0].split()) == verb.help


def test_each_package_and_module_has_its_layer() -> None:
    contracts = {
        contract["containers"][0]: {
            name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")
        }
        for contract in pyproject()["tool"]["importlinter"]["contracts"]  # type: ignore[index]
        if contract["type"] == "layers"
    }
    storage = [path.parent for path in (SRC / "storage").glob("*/__init__.py")]
    for directory in (SRC, SRC / "storage", *storage):
        package = ".".join(("penstock", *directory.relative_to(SRC).parts))
        there = {path.stem for path in directory.iterdir() if path.suffix == ".py"}
        there |= {path.parent.name for path in directory.glob("*/__init__.py")}
        assert there - {"__init__", "__main__"} == contracts[package], package


def test_what_is_imported_is_what_is_declared() -> None:
    """For Spark, Arrow, lakes and certificates there are extras; nobody else imports them."""
    project = pyproject()["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    library = names_of(project["dependencies"])
    declared = library | names_of(extras["cli"]) | names_of(extras["server"])
    of_extras = [
        names_of(extras[one]) for one in ("spark", "java", "lake", "tls", "oauth2", "otel")
    ]
    extra = set[str]().union(*of_extras)
    ours = set(sys.stdlib_module_names) | {"penstock"}
    found = {path: imported(path) - ours for path in SOURCES}
    places = {path: path.relative_to(SRC) for path in SOURCES}
    # What the library does not import, and what is in it only for a broker.
    of_servers = {"cli", "http", "access", "server", "operation_json.py"}
    for path, at in places.items():
        if not ({at.parts[0], at.as_posix()} & (WITH_EXTRA | of_servers)):
            assert found[path] <= library, path
    of_spark = {p for p, at in places.items() if {at.parts[0], at.as_posix()} & WITH_EXTRA}
    assert set[str]().union(*(found[path] for path in SOURCES if path not in of_spark)) == declared
    assert set[str]().union(*(found[path] for path in of_spark)) <= declared | extra


def test_versions_with_known_holes_are_out_of_bounds() -> None:
    """The lower bounds that security asks for, and pins that keep all bounds."""
    project = pyproject()["project"]
    assert isinstance(project, dict)
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    bounds = [text for one in lists for text in one if not text.startswith("penstock")]
    server = set(project["optional-dependencies"]["server"])
    assert {"starlette>=1.3.1,<2", "h11>=0.16,<1"} <= server
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    by_name = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for text in bounds:
        assert re.search(r"[=><]", text), f"{text} has no bound"
        name = re.split(r"[\[=><]", text, maxsplit=1)[0].lower()
        pinned = version_of(by_name[name])
        for sign, version in re.findall(r"(>=|<|==)([\d.]+)", text):
            limit = version_of(version)
            is_kept = {">=": pinned >= limit, "<": pinned < limit, "==": pinned == limit}
            assert is_kept[sign], f"{text}: pinned to {by_name[name]}"


def version_of(text: str) -> list[int]:
    """Its numbers, as far as they are plain."""
    return [int(part) for part in re.findall(r"\d+", text)]


def names_of(requirements: list[str]) -> set[str]:
    names = [re.split("[<=>[]", text, maxsplit=1)[0] for text in requirements]
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names if name != "penstock"}


def test_what_is_compiled_needs_no_package_of_an_extra_to_be_compiled() -> None:
    """The compiler follows imports, in an environment that has itself only: a package that it does
    not find is an error there, unless pyproject.toml says otherwise."""
    waiting, seen, others = hot_modules(), set[str](), set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module.split(".")[0] != "penstock":
            others.add(module.split(".")[0])
            continue
        path = ROOT.joinpath("src", *module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        waiting += [*outline(file).run, *outline(file).typed]
    tool = pyproject()["tool"]
    assert isinstance(tool, dict)
    may_be_missing = {
        name.removesuffix(".*")
        for one in tool["mypy"]["overrides"] if one.get("ignore_missing_imports")
        for name in one["module"]
    }  # fmt: skip
    of_compiler = {"librt", "mypy_extensions"}
    assert others - sys.stdlib_module_names <= may_be_missing | of_compiler


def test_each_dependency_says_why() -> None:
    project = pyproject()["project"]
    assert isinstance(project, dict)
    text = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (requirement for one in lists for requirement in one):
        name = requirement.replace(">", "=").replace("[", "=").split("=")[0]
        assert f"**{name}**" in text or name == "penstock", name


def test_no_compiled_class_declares_an_attribute_of_its_base_again() -> None:
    """mypyc's traverse visits such an attribute twice. The garbage collector then takes two
    references for what is one, and clears an object that somebody else still has."""
    bases: dict[str, list[str]] = {}
    own: dict[str, set[str]] = {}
    for module in hot_modules():
        tree = ast.parse((ROOT / "src" / f"{module.replace('.', '/')}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(one).split("[")[0] for one in node.bases]
                own[node.name] = set(declared(node))

    def inherited(name: str) -> set[str]:
        found = [own.get(base, set()) | inherited(base) for base in bases.get(name, ())]
        return set[str]().union(*found)

    again = {name: names & inherited(name) for name, names in own.items()}
    assert not {name: names for name, names in again.items() if names}


def declared(node: ast.ClassDef) -> Iterator[str]:
    """The attributes that a class declares with a type: in its body, and of self."""
    for one in ast.walk(node):
        if not isinstance(one, ast.AnnAssign) or "ClassVar" in ast.unparse(one.annotation):
            continue
        if isinstance(one.target, ast.Name) and one in node.body and one.value is None:
            yield one.target.id
        if isinstance(one.target, ast.Attribute) and ast.unparse(one.target.value) == "self":
            yield one.target.attr


def test_the_compiler_is_the_checker() -> None:
    """The mypy that checks types and the one that compiles are the same version."""
    project = pyproject()["project"]
    assert isinstance(project, dict)
    (checker,) = [r for r in project["optional-dependencies"]["check"] if r.startswith("mypy")]
    assert f'COMPILER_REQUIREMENT = "{checker}"' in (ROOT / "setup.py").read_text()
    assert project["version"] == penstock.__version__


# --- what importing costs ---

HEAVY = ("rich", "click", "sqlite3", "asyncio", "socket", "ssl", "multiprocessing")


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in a fresh interpreter after the statement."""
    program = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_penstock_loads_nothing_heavy() -> None:
    assert not loaded_by("import penstock; penstock.build_kind()") & set(HEAVY)


def test_the_version_is_told_without_what_it_does_not_need() -> None:
    statement = "from penstock.cli.main import main; main(['--version'])"
    assert not loaded_by(statement) & (set(HEAVY) - {"click"})


def test_the_text_of_each_mutant_stands_in_the_source_once() -> None:
    """The crash tests of a mutant run seldom; a change of its text is noticed here at once."""
    sources = [path.read_text() for path in sorted(SRC.rglob("*.py"))]
    groups = (MUTANTS, QUEUE_MUTANTS, STREAM_MUTANTS, LEASE_MUTANTS, BATCH_MUTANTS)
    found = {
        mutant.name: sum(source.count(mutant.old) for source in sources)
        for group in groups
        for mutant in group
    }
    assert {name: n for name, n in found.items() if n != 1} == {}


# --- what reaches where ---


def test_no_part_of_the_engine_names_the_engine() -> None:
    """Transactions, leases, batches, streams, checkpoints and upkeep take the journal."""
    above = {"backup.py", "salvage.py"}
    found = {
        path.name
        for path in (SRC / "storage").rglob("*.py")
        if "penstock.storage.engine" in outline(path).run | outline(path).typed
    }
    assert found == above


def test_nobody_reaches_past_the_engine() -> None:
    """Its owners use its calls, and of its parts only these: what the log has appended and settled,
    its room and a sync; the journal's checks, groups and work in threads; new messages; slices of a
    checkpoint, and what a purge has taken."""
    faces = {
        "log": "settled|last_lsn|syncs|request_sync|recent_sync_s|has_room|has_unwritten",
        "journal": "check|check_publish|disk_full|stop|one_record|gathering|submit|has_pending"
        "|pin_files|unpin_files|cut_waits|is_committing",
        "placement": "new_message|share_of|is_in_store",
        "upkeep": "begin_checkpoint|step_checkpoint|release",
    }
    narrow = "|".join(rf"{part}(?!\.(?:{calls})\b)" for part, calls in faces.items())
    parts = re.compile(rf"(?:engine|new)\.(_\w+|state|transient|{narrow})\b")
    found = [
        f"{name_of(path)}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text().splitlines()
        if parts.search(line) and "import" not in line
    ]
    assert found == []
