"""`make test`: runs all lanes of the tests side by side and ends with one verdict.

    python tests/lanes.py --make make [--durations]     from the root
    python tests/lanes.py --sparks 4.1 4.2              `make test-sparks`

Many tests wait: for brokers, for Spark, for time to pass. So the lanes run at the same time; each
writes build/test-<lane>.log. Every SHOW_S seconds a line shows how far each lane is. At the end
come the failures in full, a line for each lane with its time and the processor's, the names of the
tests that failed, and the verdict; the exit status is 0 if everything passed and 1 if not. A lane
without a summary of pytest has failed.

If nothing but at most ALONE_MAX tests failed, each of them runs once more, alone, and writes
build/test-<lane>-alone-<n>.log. Those that pass then are named before the verdict and do not change
it: all lanes beside it keep the machine so busy that a test may fail that expects something to
happen soon. That is a mistake of the test, to be mended, but none of what it tests. A test that
fails twice has failed.

With --durations the SLOWEST tests of all lanes are listed before the verdict.

Most lanes keep their files in memory, if there is room (in_memory): what waits for a disk that all
lanes share is most of their time otherwise. Lane `crash` has the real disk. The lanes that wait the
most come first where two want a processor: the others are NICE.

All but `lint` run in a copy of the tree (copied_tree). A clone may have any name and be anywhere,
and its user's temporary directory too, so the copy and the lanes' files are in directories that
have a space and "penstock" in their names (AWKWARD): what depends on its path fails. The copy's
environments are links to those of the tree; an installed package is then found in the copy, and
`uncompiled` has the source of the copy.

    lint         format, style, types, imports
    unit         the unit tests, compiled, but for those of the queues
    queues       those of the queues, which are half of them
    uncompiled   the unit tests of packages with compiled modules again, uncompiled: of a test with
                 parameters only CASES (tests/helpers/few_cases.py), none that starts processes or
                 is `large`, fewer examples of hypothesis, and no checks of invariants after each
                 operation: `unit` has all of that; and the lengths of paths. It needs no compiled
                 environment, so it begins while that is made
    brokers      tests that start brokers, mostly waiting for them
    spark, long  tests that start Spark; `long`, with clusters, starts after `lint`
    crash        crash images, faults and mutants
    browser      the dashboard in Chromium
    main         everything else

`make test-sparks` has a lane for each other Spark instead, one after the other, with an environment
of its own and the tests ON_EACH_SPARK.
"""

import argparse
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

SHOW_S: Final = 30.0
SLOWEST: Final = 30
ALONE_MAX: Final = 5  # more tests than these do not fail by chance
POLL_S: Final = 0.5
LOGS: Final = Path("build")
OPTIONS: Final = ("-m", "pytest", "-p", "no:cacheprovider", f"--durations={SLOWEST}")
PYTEST: Final = (".venv/bin/python", *OPTIONS)
NICE: Final = ("nice", "-n", "5")
CASES: Final = "--cases=2"
PURE: Final = (
    *NICE, "env", "PENSTOCK_CHECK=0", "HYPOTHESIS_PROFILE=few", ".venv-pure/bin/python", *OPTIONS,
    CASES,
)  # fmt: skip
LINKED: Final = (".venv", ".venv-pure", ".hypothesis")  # the copy uses those of the tree
AWKWARD: Final = "a penstock "  # how names of directories begin
IN_MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 4 << 30  # what the files of all lanes may take, and as much again is left
AVAILABLE: Final = re.compile(r"^MemAvailable: +(\d+) kB$", re.MULTILINE)
UNIT: Final = "tests/unit"
QUEUES: Final = "tests/unit/queues"
PATHS: Final = ("tests/test_paths.py", "tests/test_words.py")
COMPILED: Final = (
    "access", "broker", "codec", "embedded", "protocol", "queues", "routing", "server", "storage",
)  # fmt: skip
BROKERS: Final = (
    "tests/cli", "tests/conformance", "tests/http", "tests/memory", "tests/robustness",
    "tests/server",
)  # fmt: skip
SPARK: Final = "tests/spark"
ON_EACH_SPARK: Final = tuple(
    f"{SPARK}/test_{name}.py"
    for name in (
        "spark_versions", "source_batch", "source_stream", "source_broker", "source_traps",
        "classic_source", "sink", "sink_batches", "pipeline",
    )
)  # fmt: skip
CRASH: Final = "tests/crash"
BROWSER: Final = "tests/browser"
LONG: Final = ("tests/cluster", "tests/crash_spark", "tests/test_flights_lake.py")

PERCENT: Final = re.compile(r"\[ *(\d+)%\]")
SUMMARY: Final = re.compile(
    r"^=+ (.*\b(?:passed|failed|error|errors|skipped)\b.* in [\d.]+s.*?) =*$"
)
FAILED: Final = re.compile(r"\b(\d+) (?:failed|errors?)\b")
SOME_FAILED: Final = 1  # exit status of pytest: it ran all tests, and some failed
PLAIN: Final = re.compile(r"^(.*\b(?:passed|failed|errors?|skipped)\b.* in [\d.]+s.*)$")
DURATION: Final = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)
NAMED: Final = re.compile(r"^(FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
MARKS: Final = re.compile(r"^(?:\S+ )?([.sxXFE]+) *(?:\[ *\d+%\])?$", re.MULTILINE)
SHORT: Final = " short test summary info "
FAILURES: Final = re.compile(r"^=+ (?:FAILURES|ERRORS) =+$", re.MULTILINE)


@dataclass
class Lane:
    """command: what it runs. after: the lane whose end it waits for. temporary: where its temporary
    files are, "" for the usual place. directory: where it runs, and has its source if that is not
    installed. In `text`, what it wrote. cpu_s: what it and its descendants took of the processor,
    those that were waited for. alone: for each test that failed, how it went alone."""

    name: str
    command: Sequence[str]
    after: str = ""
    temporary: str = ""
    directory: str = "."
    process: "subprocess.Popen[bytes] | None" = None
    started_s: float = 0.0
    seconds: float = 0.0
    cpu_s: float = 0.0
    status: int | None = None
    alone: "dict[str, Lane]" = field(default_factory=dict)
    text: str = field(default="", repr=False)

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return LOGS / f"test-{self.name}.log"

    def start(self) -> None:
        """Run it."""
        self.started_s = time.monotonic()
        environment = dict(os.environ)
        if self.temporary:
            environment |= dict.fromkeys(("TMPDIR", "SPARK_LOCAL_DIRS"), self.temporary)
        if self.has_source:
            environment["PYTHONPATH"] = os.path.abspath(os.path.join(self.directory, "src"))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment, cwd=self.directory,
            )  # fmt: skip

    def look(self) -> bool:
        """Whether it has ended, just now or before."""
        if self.process is None:
            return False
        self.text = self.log.read_text(encoding="utf-8", errors="replace")
        if self.status is None:
            self.seconds = time.monotonic() - self.started_s
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
        return self.status is not None

    @property
    def progress(self) -> str:
        """Such as "unit 45 %", with how many have failed so far."""
        if self.process is None:
            return f"{self.name} waits"
        if self.status is not None:
            return f"{self.name} {'ok' if self.is_good else 'FAILED'}"
        found = PERCENT.findall(self.text[-4000:])
        failed = sum(marks.count("F") + marks.count("E") for marks in MARKS.findall(self.text))
        more = f" ({failed} failed)" if failed else ""
        share = f" {found[-1] if found else '0'} %" if self.is_pytest else " runs"
        return f"{self.name}{share}{more}"

    @property
    def summary(self) -> str:
        """The last line of pytest, without its frame; "" if there is none."""
        for line in reversed(self.text.splitlines()):
            found = SUMMARY.match(line) or PLAIN.match(line)
            if found:
                return found[1]
        return ""

    @property
    def is_good(self) -> bool:
        """Whether all of it passed."""
        return self.status == 0 and (bool(self.summary) or not self.is_pytest)

    @property
    def is_good_alone(self) -> bool:
        """Whether all of its tests passed, some of them only alone."""
        return bool(self.alone) and all(one.is_passed for one in self.alone.values())

    @property
    def is_passed(self) -> bool:
        """Whether all of it passed, and not because it was skipped."""
        return self.is_good and "passed" in self.summary and "skipped" not in self.summary

    @property
    def has_source(self) -> bool:
        """Whether it runs the source of its directory, not an installed package."""
        return ".venv-pure/bin/python" in self.command

    @property
    def is_pytest(self) -> bool:
        """Whether a summary of pytest is expected."""
        return "pytest" in self.command

    @property
    def durations(self) -> list[tuple[float, str]]:
        """Seconds and names of its slowest tests."""
        return [(float(seconds), name) for seconds, name in DURATION.findall(self.text)]

    @property
    def failures(self) -> list[str]:
        """Names of tests that failed, or could not be run, as pytest's summary lists them."""
        _, _, summary = self.text.rpartition(SHORT)
        return list(dict.fromkeys(name for _, name in NAMED.findall(summary)))

    @property
    def is_to_run_again(self) -> bool:
        """Whether it ran to its end, and the names of all that failed are known."""
        count = sum(int(number) for number in FAILED.findall(self.summary))
        _, _, summary = self.text.rpartition(SHORT)
        return self.status == SOME_FAILED and count == len(NAMED.findall(summary)) > 0


def lanes(
    make: Sequence[str] = ("make",), quick: str = "", disk: str = "", tree: str = "."
) -> list[Lane]:
    """Return those of `make test`. The first needs no compiled environment. make: the command.
    quick, disk: where temporary files are, in memory if there is room, and on the disk. tree: where
    the tests are."""
    rest = [f"--ignore={path}" for path in (UNIT, QUEUES, SPARK, CRASH, BROWSER, *BROKERS, *LONG)]
    pure = [f"{UNIT}/{package}" for package in COMPILED]
    return [
        Lane("uncompiled", (*PURE, "-m", "not real and not large", *pure, *PATHS), "", quick, tree),
        Lane("spark", (*PYTEST, SPARK), "", quick, tree),
        Lane("brokers", (*PYTEST, *BROKERS), "", quick, tree),
        Lane("unit", (*NICE, *PYTEST, UNIT, f"--ignore={QUEUES}"), "", quick, tree),
        Lane("queues", (*NICE, *PYTEST, QUEUES), "", quick, tree),
        Lane("crash", (*NICE, *PYTEST, CRASH), "", disk, tree),
        Lane("browser", (*NICE, *PYTEST, BROWSER), "", quick, tree),
        Lane("main", (*NICE, *PYTEST, "tests", *rest), "", quick, tree),
        Lane("lint", (*make, "lint")),
        Lane("long", (*PYTEST, *LONG), "lint", quick, tree),
    ]


def spark_lanes(versions: Sequence[str], quick: str = "", tree: str = ".") -> list[Lane]:
    """Return those of `make test-sparks`, each of which waits for the one before. quick, tree: as
    above."""
    found: list[Lane] = []
    for version in versions:
        command = (f".venv-spark-{version}/bin/python", *OPTIONS, *ON_EACH_SPARK)
        after = found[-1].name if found else ""
        found.append(Lane(f"spark-{version}", command, after, quick, tree))
    return found


def in_memory(where: Path = IN_MEMORY) -> Path | None:
    """Return the directory in memory for the files of tests; None if there is no room there, or
    too little memory available."""
    try:
        available = AVAILABLE.search(Path("/proc/meminfo").read_text())
        least_bytes = min(
            shutil.disk_usage(where).free, int(available[1]) << 10 if available else 0
        )
    except OSError:
        return None
    return where if least_bytes >= 2 * ROOM_BYTES else None


def copied_tree(directory: Path, root: Path = Path()) -> Path:
    """Copy the tree for the tests to run in, without what .gitignore names; return the copy, which
    is `directory`/penstock. Environments that are still to be made are linked too."""
    ignored = (root / ".gitignore").read_text().splitlines()
    names = [".git", *(line.rstrip("/").rpartition("/")[2] for line in ignored if line)]
    tree = directory / "penstock"
    shutil.copytree(root, tree, symlinks=True, ignore=shutil.ignore_patterns(*names))
    (root / ".hypothesis").mkdir(exist_ok=True)
    environments = {path.name for path in root.glob(".venv-*")}  # one for each Spark, too
    for name in environments.union(LINKED):
        (tree / name).symlink_to((root / name).absolute())
    return tree


def run(all_lanes: list[Lane], say: Callable[[str], None], show_s: float = SHOW_S) -> None:
    """Start each when it may, and wait for all of them, showing how far they are."""
    due = 0.0
    try:
        while True:
            ended = {lane.name for lane in all_lanes if lane.look()}
            for lane in all_lanes:
                if lane.process is None and (not lane.after or lane.after in ended):
                    lane.start()
            if time.monotonic() >= due or len(ended) == len(all_lanes):
                say("  ".join(lane.progress for lane in all_lanes))
                due = time.monotonic() + show_s
            if len(ended) == len(all_lanes):
                return
            time.sleep(min(POLL_S, show_s))
    finally:
        for lane in all_lanes:
            if lane.process is not None and lane.process.poll() is None:
                lane.process.terminate()
                lane.process.wait()


def run_again(all_lanes: list[Lane], say: Callable[[str], None], show_s: float = SHOW_S) -> None:
    """Run each test that failed once more, alone, if that can change the verdict."""
    bad = [lane for lane in all_lanes if not lane.is_good]
    count = sum(len(lane.failures) for lane in bad)
    if count > ALONE_MAX or not all(lane.is_to_run_again for lane in bad):
        return
    for lane in bad:
        options = [word for word in lane.command if not word.startswith(("tests", "--ignore="))]
        for name in lane.failures:
            lane.alone[name] = replace(
                lane, name=f"{lane.name}-alone-{len(lane.alone) + 1}", command=[*options, name],
                after="", process=None, status=None, alone={},
            )  # fmt: skip
            say(f"\nonce more, alone: {name}")
            run([lane.alone[name]], say, show_s)


def slowest(all_lanes: list[Lane]) -> list[str]:
    """Return a line for each of the slowest tests of all lanes, the slowest first. The time of a
    test is that of its set-up, call and end together."""
    together = Counter[tuple[str, str]]()
    for lane in all_lanes:
        for seconds, name in lane.durations:
            together[lane.name, name] += seconds
    found = sorted(((seconds, *which) for which, seconds in together.items()), reverse=True)
    return [f"{seconds:7.1f} s  {lane:<11} {name}" for seconds, lane, name in found[:SLOWEST]]


def verdict(all_lanes: list[Lane], say: Callable[[str], None], target: str = "make test") -> int:
    """Print failures in full, a line for each lane, the names of what failed and one last line;
    return the exit status. target: what was asked of make."""
    for lane in all_lanes:
        for one in () if lane.is_good else (lane, *lane.alone.values()):
            found = FAILURES.search(one.text)
            shown = one.text[found.start() :] if found else one.text[-20_000:]
            say(f"\n--- {one.name}: {one.log} ---\n{shown.rstrip()}")
    say("")
    for lane in all_lanes:
        word = "ok    " if lane.is_good else "alone " if lane.is_good_alone else "FAILED"
        what = lane.summary
        if not what:
            what = f"exit status {lane.status}"
            what = f"no summary, {what}" if lane.is_pytest else what
        took = f"{lane.seconds:6.0f} s  {lane.cpu_s:6.0f} s of CPU"
        say(f"{word}  {lane.name:<11} {took}  {what}")
    bad = [lane for lane in all_lanes if not (lane.is_good or lane.is_good_alone)]
    names, only_alone = list[str](), list[str]()
    for lane in all_lanes:
        for name in () if lane.is_good else lane.failures:
            passed = name in lane.alone and lane.alone[name].is_passed
            (only_alone if passed else names).append(f"{lane.name}: {name}")
    for name in only_alone:
        say(f"failed beside the others, passed alone: {name}")
    for name in names:
        say(f"        {name}")
    if bad:
        say(f"{target}: FAILED: {len(names)} tests, lanes {', '.join(lane.name for lane in bad)}")
        return 1
    more = f" (passed only alone: {len(only_alone)})" if only_alone else ""
    say(f"{target}: PASSED, all of {len(all_lanes)} lanes{more}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--make", default="make", help="the command that makes environments")
    parser.add_argument("--sparks", nargs="+", default=[], help="test these Sparks instead")
    parser.add_argument("--durations", action="store_true", help="list the slowest tests")
    given = parser.parse_args()
    # A shell that starts this in the background has it ignore Ctrl-C, and so would the tests of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LOGS.mkdir(exist_ok=True)

    def say(line: str) -> None:
        print(line, flush=True)

    make = (*shlex.split(given.make), "--no-print-directory")
    directory = functools.partial(
        tempfile.TemporaryDirectory, prefix=AWKWARD, ignore_cleanup_errors=True
    )
    with directory(dir=in_memory()) as quick, directory() as disk:
        tree = str(copied_tree(Path(quick)))
        if given.sparks:
            sparks = spark_lanes(given.sparks, quick, tree)
            return finish(sparks, "make test-sparks", has_durations=given.durations, say=say)
        known = lanes(make, quick, disk, tree)
        return run_all(make, known, has_durations=given.durations, say=say)


def run_all(
    make: Sequence[str], known: list[Lane], *, has_durations: bool, say: Callable[[str], None]
) -> int:
    """Make the compiled environment beside the first lane, then run the others; return the exit
    status."""
    known[0].start()
    status = 1
    try:
        status = subprocess.call([*make, ".venv/ready"])
    finally:
        if status and known[0].process is not None:
            known[0].process.terminate()
            known[0].process.wait()
    if status:
        say("make test: FAILED: the compiled environment could not be made")
        return 1
    return finish(known, "make test", has_durations=has_durations, say=say)


def finish(
    known: list[Lane], target: str, *, has_durations: bool, say: Callable[[str], None]
) -> int:
    """Run these lanes to their end, print the verdict, and return the exit status."""
    run(known, say)
    run_again(known, say)
    if has_durations:
        say("\nthe slowest tests:")
        for line in slowest(known):
            say(line)
    return verdict(known, say, target)


if __name__ == "__main__":
    sys.exit(main())
