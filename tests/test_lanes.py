"""The verdict of `make test`: from lanes that pass, fail, break off, and one that waits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import lanes
from tests.lanes import Lane, run, run_again, slowest, verdict
from tests.test_house import hot_modules

PASSES = "print('tests/a.py ....  [100%]'); print('=== 4 passed in 0.01s ===')"
FAILS = """
print('tests/b.py .F..  [ 50%]')
print('=================== FAILURES ===================')
print('the traceback')
print('=========== short test summary info ===========')
print('FAILED tests/b.py::test_x - AssertionError')
print('ERROR tests/c.py')
print('====== 1 failed, 3 passed, 1 error in 0.02s ======')
raise SystemExit(1)
"""
MAKEFILE, CONSTRAINTS = Path("Makefile"), Path("constraints.txt")
PYPROJECT = Path("pyproject.toml")
BREAKS_OFF = "print('tests/d.py ..'); raise SystemExit(0)"


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOGS", tmp_path)
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # of the lanes here: they start sooner


def lane(name: str, program: str, after: str = "") -> Lane:
    return Lane(name, (sys.executable, "-c", program, "pytest"), after)


def told(all_lanes: list[Lane]) -> tuple[int, list[str]]:
    """Exit status and lines of the verdict."""
    lines: list[str] = []
    run(all_lanes, lines.append, show_s=0.01)
    last = lines[-1:]
    run_again(all_lanes, lines.append, show_s=0.01)
    shown: list[str] = []
    return verdict(all_lanes, shown.append), [*last, *"\n".join(shown).splitlines()]


def test_all_passed() -> None:
    first = lane("first", PASSES)
    second = lane("second", PASSES, after="first")
    status, lines = told([second, first])
    assert status == 0
    assert lines[0] == "second ok  first ok"
    assert lines[-1] == "make test: PASSED, all of 2 lanes"
    assert second.started_s >= first.started_s + first.seconds - 1.0


def test_what_failed_is_named_at_the_end() -> None:
    status, lines = told([lane("good", PASSES), lane("bad", FAILS)])
    assert status == 1
    assert lines[0] == "good ok  bad FAILED"
    assert "the traceback" in lines
    summary = lines[-5:]
    assert summary[0].startswith("ok      good ")
    assert summary[1].startswith("FAILED  bad ")
    assert summary[1].endswith("1 failed, 3 passed, 1 error in 0.02s")
    assert summary[2:] == [
        "        bad: tests/b.py::test_x",
        "        bad: tests/c.py",
        "make test: FAILED: 2 tests, lanes bad",
    ]


SPACES = """
print('tests/e.py .F')
print('=================== FAILURES ===================')
print('ERROR of the log, in the middle of a traceback')
print('=========== short test summary info ===========')
print('FAILED tests/e.py::test_y[[sink]] 2: value: it is int] - assert 1 - 2 == 3')
print('ERROR tests/e.py::test_z[a b]')
print('====== 1 failed, 1 passed, 1 error in 0.02s ======')
raise SystemExit(1)
"""


def test_names_with_spaces_are_whole_and_only_the_summary_names_what_failed() -> None:
    _, lines = told([lane("bad", SPACES)])
    assert lines[-3:] == [
        "        bad: tests/e.py::test_y[[sink]] 2: value: it is int]",
        "        bad: tests/e.py::test_z[a b]",
        "make test: FAILED: 2 tests, lanes bad",
    ]


def whole(name: str, source: str, *options: str) -> Lane:
    """A lane of pytest itself, over one file of tests with this source."""
    file = lanes.LOGS / "tests" / f"test_{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(source)
    only = ("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=.", "-ra")
    command = (sys.executable, "-m", "pytest", *only, *options, f"tests/test_{name}.py")
    return Lane(name, command, directory=str(lanes.LOGS))


BESIDE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("word", ["a b", "c"])
def test_it(word):
    there = Path(f"{word}.txt")
    is_first = not there.exists()
    there.touch()
    assert word == "c" or not is_first, "the first time"

def test_another():
    pass
"""


def test_what_fails_beside_the_others_and_passes_alone_is_named_and_changes_no_verdict() -> None:
    status, lines = told([lane("good", PASSES), whole("beside", BESIDE)])
    assert status == 0
    assert lines[0] == "good ok  beside FAILED"
    assert any("the first time" in line for line in lines)
    assert any(line.startswith("--- beside-alone-1: ") for line in lines)
    assert any("1 passed in" in line for line in lines)
    assert re.fullmatch(
        r"alone   beside  +\d+ s +\d+ s of CPU  1 failed, 2 passed in .*", lines[-3]
    )
    assert lines[-2:] == [
        "failed beside the others, passed alone: beside: tests/test_beside.py::test_it[a b]",
        "make test: PASSED, all of 2 lanes (passed only alone: 1)",
    ]
    assert "1 failed" in (lanes.LOGS / "test-beside.log").read_text()
    assert "1 passed in" in (lanes.LOGS / "test-beside-alone-1.log").read_text()


def test_what_fails_twice_has_failed() -> None:
    never = "def test_no():\n    raise ValueError('never')\n"
    known = [whole("beside", BESIDE), whole("never", never)]
    status, lines = told(known)
    assert status == 1
    assert lines[-3:] == [
        "failed beside the others, passed alone: beside: tests/test_beside.py::test_it[a b]",
        "        never: tests/test_never.py::test_no",
        "make test: FAILED: 1 tests, lanes never",
    ]
    assert len(known[1].alone) == 1


def test_what_is_skipped_alone_has_failed() -> None:
    skips = BESIDE.replace("assert word ==", "is_first or pytest.skip('x')\n    assert word ==")
    status, lines = told([whole("skips", skips)])
    assert status == 1
    assert lines[-1] == "make test: FAILED: 1 tests, lanes skips"


MANY = """
import pytest

@pytest.mark.parametrize("n", range(6))
def test_it(n):
    assert False
"""


@pytest.mark.parametrize(
    ("source", "count"),
    [(MANY, 6), ("import nothing_of_this_name", 1), (f"{BESIDE}\nimport os\nos._exit(1)", 0)],
)
def test_more_than_a_few_or_a_lane_that_did_not_end_is_failed_at_once(
    source: str, count: int
) -> None:
    """Of an error of collection, pytest runs no test at all."""
    known = [whole("bad", source), whole("beside", BESIDE)]
    status, lines = told(known)
    assert status == 1
    assert lines[-1] == f"make test: FAILED: {count + 1} tests, lanes bad, beside"
    assert not any(one.alone for one in known)


def test_the_processors_time_of_a_lane_and_of_its_children_is_told() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); {PASSES}"
    one = lane("one", child)
    _, lines = told([one])
    assert one.cpu_s >= 0.3
    assert f" {one.cpu_s:.0f} s of CPU  4 passed" in lines[-2]


def test_progress_counts_failures_and_errors_on_every_line() -> None:
    one = lane("one", PASSES)
    assert one.progress == "one waits"
    one.process = subprocess.Popen([sys.executable, "-c", ""])
    one.process.wait()
    one.text = "collected 9 items\n\ntests/a.py ..F.\nE.F [ 40%]\ntests/b.py .s\ntests/c.py FE"
    assert one.progress == "one 40 % (5 failed)"


def test_the_slowest_tests_of_all_lanes_are_listed() -> None:
    """Each once, with set-up, call and end together."""
    first, second = lane("first", PASSES), lane("second", PASSES)
    first.text = "".join(f"{n}.00s call     tests/a.py::test_{n}\n" for n in range(1, 31))
    second.text = (
        "20.00s setup    tests/b.py::test_x[a b]\n"
        "12.50s call     tests/b.py::test_x[a b]\n"
        "0.02s teardown tests/b.py::test_x[a b]\n"
    )
    listed = slowest([first, second])
    assert len(listed) == lanes.SLOWEST
    assert listed[0] == "   32.5 s  second      tests/b.py::test_x[a b]"
    assert listed[1] == "   30.0 s  first       tests/a.py::test_30"
    assert listed[-1] == "    2.0 s  first       tests/a.py::test_2"


def test_a_lane_that_breaks_off_has_failed() -> None:
    status, lines = told([lane("cut", BREAKS_OFF)])
    assert status == 1
    assert any("no summary, exit status 0" in line for line in lines)
    assert lines[-1] == "make test: FAILED: 0 tests, lanes cut"


def test_lint_needs_no_summary() -> None:
    good = Lane("lint", (sys.executable, "-c", "print('All checks passed!')"))
    bad = Lane("lint", (sys.executable, "-c", "raise SystemExit(2)"))
    assert told([good])[0] == 0
    status, lines = told([bad])
    assert status == 1
    assert any("FAILED  lint" in line and "exit status 2" in line for line in lines)


def test_the_slowest_tests_of_all_lanes() -> None:
    quick = "print('0.50s call     tests/a.py::test_x[a b]'); print('9.00s setup    tests/a.py::y')"
    slow = "print('3.25s teardown tests/b.py::test_z')"
    known = [lane("a", f"{quick}; {PASSES}"), lane("b", f"{slow}; {PASSES}")]
    run(known, [].append, show_s=0.01)
    assert [line.split() for line in lanes.slowest(known)] == [
        ["9.0", "s", "a", "tests/a.py::y"],
        ["3.2", "s", "b", "tests/b.py::test_z"],
        ["0.5", "s", "a", "tests/a.py::test_x[a", "b]"],
    ]


def test_the_uncompiled_lane_has_every_package_with_compiled_modules() -> None:
    packages = {name.split(".")[1] for name in hot_modules() if name.count(".") > 1}
    assert packages == set(lanes.COMPILED)


def test_a_lane_has_its_temporary_files_where_it_is_told(tmp_path: Path) -> None:
    shows = f"import tempfile; print(tempfile.gettempdir()); {PASSES}"
    there = Lane("there", (sys.executable, "-c", shows, "pytest"), temporary=str(tmp_path))
    run([there], [].append, show_s=0.01)
    assert str(tmp_path) in there.text.splitlines()


def test_without_room_in_memory_the_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lanes.in_memory(tmp_path / "missing") is None
    monkeypatch.setattr(lanes, "ROOM_BYTES", 1 << 60)
    assert lanes.in_memory(tmp_path) is None
    monkeypatch.setattr(lanes, "ROOM_BYTES", 0)
    assert lanes.in_memory(tmp_path) == tmp_path


def test_the_lanes_of_other_sparks_exist_and_follow_one_another() -> None:
    found = lanes.spark_lanes(["4.1", "4.2"])
    assert [(one.name, one.after) for one in found] == [
        ("spark-4.1", ""),
        ("spark-4.2", "spark-4.1"),
    ]
    assert found[1].command[0] == ".venv-spark-4.2/bin/python"
    assert all(Path(name).is_file() for name in lanes.ON_EACH_SPARK)


def test_each_spark_that_users_may_have_is_tested() -> None:
    """By `make test` the one of constraints.txt, by `make test-sparks` the others."""
    releases = dict(re.findall(r"^SPARK_([\d.]+) := (\S+)$", MAKEFILE.read_text(), re.MULTILINE))
    versions = re.search(r"^SPARKS \?= (.*)$", MAKEFILE.read_text(), re.MULTILINE)
    assert versions is not None
    assert versions[1].split() == list(releases)
    newest = re.search(r"^pyspark==(\d+)\.(\d+)", CONSTRAINTS.read_text(), re.MULTILINE)
    bounds = re.search(r'"pyspark>=(\d+)\.(\d+),<\1\.(\d+)"', PYPROJECT.read_text())
    assert newest is not None
    assert bounds is not None
    major, least, beyond = (int(number) for number in bounds.groups())
    allowed = [f"{major}.{minor}" for minor in range(least, beyond)]
    assert [*releases, ".".join(newest.groups())] == allowed
    assert all(release.startswith(f"{version}.") for version, release in releases.items())
    page = Path("docs/reference/spark-versions.md").read_text()
    assert f"| | Spark {' | '.join(allowed)} |" in page


def test_every_directory_of_tests_is_in_a_lane() -> None:
    """What `main` leaves out is in another lane."""
    (main,) = [one for one in lanes.lanes() if one.name == "main"]
    left_out = {word.removeprefix("--ignore=") for word in main.command if "--ignore" in word}
    seen = {
        word for one in lanes.lanes() if one.name not in ("main", "uncompiled")
        for word in one.command if word.startswith("tests/")
    }  # fmt: skip
    assert left_out == seen


def test_lanes_run_in_a_copy_of_the_tree_with_a_space_and_penstock_in_its_path(
    tmp_path: Path,
) -> None:
    """What git ignores is not copied; environments are linked, also those that are made later."""
    root, place = tmp_path / "tree", tmp_path / f"{lanes.AWKWARD}1"
    for directory in (root / "tests" / "__pycache__", root / "build", root / ".git"):
        directory.mkdir(parents=True)
    for file in ("tests/a.py", "tests/__pycache__/a.pyc", "build/log", ".git/index"):
        (root / file).touch()
    (root / ".gitignore").write_text("__pycache__/\n/build/\n/.venv*/\n/.hypothesis/\n")
    tree = lanes.copied_tree(place, root)
    assert tree == place / "penstock"
    assert " " in tree.parent.name
    copied = {str(path.relative_to(tree)) for path in tree.rglob("*")}
    assert copied == {".gitignore", *lanes.LINKED, "tests", "tests/a.py"}
    assert (tree / ".venv").readlink() == root / ".venv"

    shows = lane("shows", f"import os; print(os.getcwd()); {PASSES}")
    shows.directory = str(tree)
    run([shows], [].append, show_s=0.01)
    assert str(tree) in shows.text.splitlines()


def test_all_lanes_but_lint_have_awkward_places() -> None:
    known = lanes.lanes(("make",), "a penstock 1", "a penstock 2", "a penstock 1/penstock")
    places = {one.name: (one.temporary, one.directory) for one in known}
    assert places.pop("lint") == ("", ".")
    assert places.pop("crash") == ("a penstock 2", "a penstock 1/penstock")
    assert set(places.values()) == {("a penstock 1", "a penstock 1/penstock")}
    assert [one.name for one in known if one.has_source] == ["uncompiled"]


def test_the_uncompiled_lane_has_the_source_of_its_directory(tmp_path: Path) -> None:
    shows = f"import os; print(os.environ['PYTHONPATH']); {PASSES}"
    pure = Lane("pure", (sys.executable, "-c", shows, "pytest", ".venv-pure/bin/python"))
    pure.directory = str(tmp_path)
    run([pure], [].append, show_s=0.01)
    assert str(tmp_path / "src") in pure.text.splitlines()
