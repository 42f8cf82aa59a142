"""The test suites of client libraries, run against a live broker: `make conformance`.

Each suite comes from the sdist of its library on PyPI, in the version pinned here, and is run as it
is; only what it needs of its authors' machines is put in its place (suite_stand_ins.py): a Docker
container becomes the broker that runs, fixtures that the sdist leaves out are added. Some suites
know only port 5672, so the broker is started there, and the run ends at once if the port is taken.

    python -m tests.conformance.suites [--only NAME,...] [--url URL] [--work DIR]

The table tells passed, failed and skipped, beside RabbitMQ 3.10's figures for the same tests. What
is not expected to pass stands in `Suite.known` with its reason; what later versions bring stands in
`Suite.later` and is counted, not hidden. Exit code 1 if anything else failed. Not here: our own
tests with these clients, which are the test files beside this one.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import time
import venv
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.suite_stand_ins import put_in_place
from tests.helpers.live_broker import Broker, ExternalBroker, LiveBroker

ROOT = Path(__file__).parent.parent.parent
PORT = 5672
LIMIT_S = 1200
TOOLS = (
    "aiomisc-pytest>=2,<3", "hatchling", "pytest<9.1", "pytest-freezer", "pytest-rerunfailures",
    "pytest-timeout", "python-dotenv", "pytz", "setuptools", "shortuuid", "uv_build>=0.12.19,<0.13",
    "wheel",
)  # fmt: skip
DOCKER = "steers a Docker container"
RACE = "a race in its own close, lost when close-ok comes at once; passes through any proxy"


@dataclass(frozen=True)
class Suite:
    """requirement: as pip takes it. paths, options: for pytest. rabbitmq: passed, failed there."""

    name: str
    requirement: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    rabbitmq: str = ""
    known: dict[str, str] = field(default_factory=dict)  # part of a test's name -> reason
    later: dict[str, str] = field(default_factory=dict)  # path that is not run -> what it needs


SUITES = (
    Suite(
        "py-amqp", "amqp==5.4.2", ("t/integration",), ("-k", "not ssl and not tls"),
        rabbitmq="48/0",
    ),
    Suite(
        "kombu", "kombu==5.7.0", ("t/integration/test_py_amqp.py",), ("--reruns", "1"),
        rabbitmq="51/0, one flaky",
    ),
    Suite(
        "amqpstorm", "AMQPStorm[management]==3.1.4", ("amqpstorm/tests/functional",),
        rabbitmq="149/2, with the management API",
        later={"amqpstorm/tests/functional/ssl": "TLS"},
        known={
            "test_api_cluster_name": "expects the name of its author's broker",
            "test_api_with_inaccessible": "asks an address in its author's network",
            "test_functional_alternative_virtual_host": "waits 1 s for a vhost to be deleted whose "
            "client does not answer connection.close, for which 3 s are waited",
        },
    ),
    Suite(
        "rabbitpy", "rabbitpy==3.0.2", ("tests/test_integration.py", "tests/integration"),
        rabbitmq="40/0",
    ),
    Suite(
        "aiormq", "aiormq==7.2.4", ("tests",), ("-k", "not amqps and not ssl"),
        rabbitmq="246/0, one flaky",
        known={
            "test_closing_waiter_cancellation": RACE,
            "test_connection_close_during_publish_drain": RACE,
        },
    ),
    Suite(
        "aio-pika", "aio-pika==10.2.1", ("tests",), ("-k", "not amqps and not ssl"),
        rabbitmq="861/4",
        known={
            "test_robust_recovery": DOCKER,
            "test_leak_unclosed_channel": RACE,
            "test_create_channels_during_reconnect": RACE,
        },
    ),
    Suite("dramatiq", "dramatiq[rabbitmq]==2.2.1", ("tests/test_rabbitmq.py",), rabbitmq="28/0"),
)  # fmt: skip


@dataclass
class Result:
    """What one suite did. failures: full names of the tests."""

    passed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    later: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Workshop:
    """One environment with all the libraries, and their unpacked sources."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "venv" / "bin"

    def run(self, *command: str, cwd: Path | None = None, limit_s: int = LIMIT_S) -> str:
        """Output of a command of the environment. Raises AssertionError when it fails."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=cwd or self.directory, text=True,
            capture_output=True, timeout=limit_s, check=False, env=self.environment(),
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def prepare(self, suites: tuple[Suite, ...]) -> None:
        mark = self.directory / "ready"
        wanted = "\n".join([*TOOLS, *(suite.requirement for suite in SUITES)])
        if not mark.exists() or mark.read_text() != wanted:
            self.directory.mkdir(parents=True, exist_ok=True)
            venv.create(self.directory / "venv", with_pip=True, clear=True)
            self.run("pip", "install", "-q", *wanted.splitlines())
            mark.write_text(wanted)
        for suite in suites:
            self.unpack(suite)

    def unpack(self, suite: Suite) -> None:
        """The sdist's files, fresh each time, with what stands in for its authors' machines."""
        sdists = self.directory / suite.name
        if not list(sdists.glob("*.tar.gz")):
            self.run(
                "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                "--no-build-isolation", "-d", str(sdists), suite.requirement,
            )  # fmt: skip
        (archive,) = sdists.glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(sdists, filter="data")

    def source(self, suite: Suite) -> Path:
        (found,) = (path for path in (self.directory / suite.name).iterdir() if path.is_dir())
        return found


def run_suite(shop: Workshop, suite: Suite, broker: Broker) -> Result:
    source = shop.source(suite)
    put_in_place(suite.name, source)
    report = shop.directory / f"{suite.name}.xml"
    report.unlink(missing_ok=True)
    ignored = [f"--ignore={path}" for path in suite.later]
    command = [
        str(shop.bin / "python"), "-m", "pytest", *suite.paths, *suite.options, *ignored,
        "-p", "no:cacheprovider", "-p", "suite_fixtures", "--timeout=120", "-q",
        "-o", "addopts=", "-o", "filterwarnings=", f"--junitxml={report}",
    ]  # fmt: skip
    began = time.monotonic()
    with (shop.directory / f"{suite.name}.log").open("w") as log:
        subprocess.run(
            command, cwd=source, stdout=log, stderr=log, timeout=LIMIT_S, check=False,
            env={**shop.environment(), **settings(broker), "PYTHONPATH": str(source)},
        )  # fmt: skip
    result = read_report(report, suite) if report.exists() else Result(failures=["no report"])
    result.seconds = time.monotonic() - began
    for path, needs in suite.later.items():
        tests = (source / path).rglob("*.py") if (source / path).is_dir() else [source / path]
        count = sum(test.read_text().count("    def test_") for test in tests)
        result.later[needs] = result.later.get(needs, 0) + count
    return result


def settings(broker: Broker) -> dict[str, str]:
    """Where the broker is, in the words of each suite."""
    url = broker.url_of("/")
    http_port = broker.http_port if isinstance(broker, LiveBroker) else 15672
    return {
        "AMQP_HTTP_URL": f"http://{broker.host}:{http_port}",
        "RABBITMQ_HOST": broker.host, "RABBITMQ_5672_TCP": str(broker.port), "RABBITMQ_URL": url,
        "RABBITMQ_USERNAME": broker.user, "RABBITMQ_PASSWORD": broker.password,
        "AMQP_HOST": broker.host, "AMQP_USERNAME": broker.user, "AMQP_PASSWORD": broker.password,
        "AMQP_URI": url, "AMQP_URL": url, "SUITE_HOST": broker.host, "SUITE_PORT": str(broker.port),
    }  # fmt: skip


def read_report(report: Path, suite: Suite) -> Result:
    result = Result()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            is_known = any(part in name for part in suite.known)
            (result.known if is_known else result.failures).append(name)
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1
    return result


def tell(suite: Suite, result: Result) -> None:
    print(
        f"{suite.name:10} {suite.requirement.rpartition('==')[2]:8} passed {result.passed:4}  "
        f"failed {len(result.failures):3}  skipped {result.skipped:3}  known "
        f"{len(result.known):3}  {result.seconds:5.0f} s   RabbitMQ 3.10: {suite.rabbitmq}",
        flush=True,
    )
    for needs, count in result.later.items():
        print(f"           not run: {count} tests of {needs}")
    for part, reason in suite.known.items():
        print(f"           known: {part}: {reason}")
    for name in result.failures:
        print(f"           FAILED {name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--only", help="names of suites, with commas between", default="")
    parser.add_argument("--url", help="run against this broker instead of a Penstock of its own")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "conformance")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name]
    suites = tuple(suite for suite in SUITES if not names or suite.name in names)
    shop = Workshop(arguments.work.resolve())
    shop.prepare(suites)
    failed = 0
    if arguments.url:
        results = [
            (suite, run_suite(shop, suite, ExternalBroker(arguments.url))) for suite in suites
        ]
        for suite, result in results:
            tell(suite, result)
            failed += len(result.failures)
        return 1 if failed else 0
    for suite in suites:
        data = shop.directory / f"data-{suite.name}-{os.getpid()}"
        broker = LiveBroker(data, has_http=True)
        broker.port = PORT
        with broker:
            result = run_suite(shop, suite, broker)
        tell(suite, result)
        failed += len(result.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
