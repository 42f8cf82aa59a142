"""Tools of RabbitMQ's HTTP API, against a broker that runs: part of `make conformance`.

    python -m tests.conformance.http_clients.run [--only NAME,...]

rabbit-hole, which is Go's client, and Terraform's provider come from the Go module proxy in the
version pinned here, and their own test suites are run as they are; they know only RabbitMQ's ports,
so the broker is started there, and the run ends at once if a port is taken. Java's client, hop, has
no suite in its registry: Hop.java calls its methods and looks at what they decode. The suites of
Telegraf's input and KEDA's scaler know recorded answers only: telegraf_test.go and keda_test.go,
put beside their source, ask the broker.

What does not pass stands in `Suite.known` with its reason. A suite whose tools are not installed is
left out, with a line. Exit code 1 if anything else fails, or if what is known passes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.live_broker import LiveBroker

HERE = Path(__file__).parent
PORT = 5672
HTTP_PORT = 15672
LIMIT_S = 1800
COPY = ("mvn", "-q", "-B", "dependency:copy", "-DoutputDirectory=jars")
JACKSON = "com.fasterxml.jackson.core:jackson"
JARS = (
    "com.rabbitmq:http-client:5.4.0", "com.rabbitmq:amqp-client:5.22.0",
    f"{JACKSON}-annotations:2.19.0", f"{JACKSON}-core:2.19.0", f"{JACKSON}-databind:2.19.0",
    "org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-nop:1.7.36",
)  # fmt: skip
TELEGRAF = "plugins/inputs/rabbitmq"
TELEGRAF_TEST = f"{TELEGRAF}/live_test.go"
KEDA = "pkg/scalers"
KEDA_TEST = f"{KEDA}/live_test.go"
NAMES_IT = "expects the reason `Not Found`; ours says what there is not"
NONE_RUNS = "there are no shovels and no federation"
LEFT = "counts the upstream that the test of a bad one leaves"
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}

Found = dict[str, bool]  # the name of a test -> whether it passed


def hop(_place: Path, output: str) -> Found:
    """What Hop.java printed: NAME: ok."""
    lines = [line.partition(": ") for line in output.splitlines() if ": " in line]
    return {name: rest == "ok" for name, _, rest in lines}


def go_test(_place: Path, output: str) -> Found:
    """Events of `go test -json`."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    ends = [one for one in events if "Test" in one and one["Action"] in ("pass", "fail")]
    return {one["Test"]: one["Action"] == "pass" for one in ends}


def ginkgo(place: Path, _output: str) -> Found:
    """A report of Ginkgo, in the form of JUnit."""
    found: Found = {}
    for case in ElementTree.parse(place / "report.xml").getroot().iter("testcase"):
        if case.find("skipped") is None:
            is_bad = case.find("failure") is not None or case.find("error") is not None
            found[str(case.get("name"))] = not is_bad
    return found


def nothing(_broker: LiveBroker) -> None:
    """The broker is right as it starts."""


def for_rabbit_hole(broker: LiveBroker) -> None:
    """What its bin/ci/before_build.sh does with rabbitmqctl."""
    broker.control("add_user", name="policymaker", password="policymaker", tags=["policymaker"])
    broker.control("set_permissions", "/", user="policymaker", **EVERYTHING)
    broker.control("add_vhost", name="rabbit/hole")
    broker.control("set_permissions", "rabbit/hole", user="guest", **EVERYTHING)
    broker.control("set_global_parameter", name="cluster_name", value="rabbitmq@localhost")


def with_jobs(broker: LiveBroker) -> None:
    """A queue with three messages."""
    broker.control("declare_queue", "/", queue="jobs")
    broker.control("publish", "/", routing_key="jobs", bodies=["1", "2", "3"])


@dataclass(frozen=True)
class Suite:
    """tools: programs that it needs. module: of Go, whose source is copied. added: files from here
    that are put into it, and where. made: commands before the last. read: makes Found of what the
    last left and printed. known: part of a test's name -> why it does not pass."""

    name: str
    tools: tuple[str, ...]
    command: tuple[str, ...]
    read: Callable[[Path, str], Found]
    module: str = ""
    added: tuple[tuple[str, str], ...] = ()
    made: tuple[tuple[str, ...], ...] = ()
    before: Callable[[LiveBroker], None] = nothing
    environment: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)


SUITES = (
    Suite(
        "hop", ("mvn", "javac", "java"),
        (
            "java", "-cp", "jars/*:.", "Hop", f"http://127.0.0.1:{HTTP_PORT}/api/",
            f"amqp://guest:guest@127.0.0.1:{PORT}",
        ),
        hop,
        made=(
            *((*COPY, f"-Dartifact={jar}") for jar in JARS), ("javac", "-cp", "jars/*", "Hop.java"),
        ),
    ),
    Suite(
        "rabbit-hole", ("go",),
        ("go", "test", "-timeout", "20m", "-ginkgo.junit-report=report.xml"), ginkgo,
        module="github.com/michaelklishin/rabbit-hole/v3@v3.1.0", before=for_rabbit_hole,
        environment={"GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT": "5s"},
        known={
            "DELETE /queues/{vhost}/{name} deletes a queue": NAMES_IT,
            "DELETE /vhosts/{name} deletes a vhost": NAMES_IT,
            "DELETE /exchanges/{vhost}/{exchange} deletes an exchange": NAMES_IT,
            "DELETE /queues/{vhost}/{queue} deletes a queue": NAMES_IT,
            "DELETE /queues/{vhost}/{queue} accepts IfEmpty option": NAMES_IT,
            "DELETE /queues/{vhost}/{queue} accepts IfUnused option": NAMES_IT,
            "DELETE /queues/{vhost}/{queue}/contents purges a queue": NAMES_IT,
            "when the upstream definition is bad": "upstreams are stored, and not checked",
            "when the upstream exists deletes the upstream": LEFT,
            "when the parameter does not exist creates the parameter": LEFT,
            "when there are links returns the list of links": NONE_RUNS,
            "GET /shovels/{vhost} reports status of Shovels": NONE_RUNS,
            "lists deprecated feature flags": "there is no deprecated feature",
            "returns all global parameters": "expects internal_cluster_id, which is left out",
        },
    ),
    Suite(
        "terraform", ("go", "terraform"),
        ("go", "test", "-json", "-timeout", "20m", "./rabbitmq"), go_test,
        module="github.com/cyrilgdn/terraform-provider-rabbitmq@v1.8.0",
        environment={
            "TF_ACC": "1", "CHECKPOINT_DISABLE": "1", "RABBITMQ_USERNAME": "guest",
            "RABBITMQ_PASSWORD": "guest", "RABBITMQ_ENDPOINT": f"http://127.0.0.1:{HTTP_PORT}",
            "TF_ACC_TERRAFORM_PATH": shutil.which("terraform") or "",
        },
    ),
    Suite(
        "telegraf", ("go",), ("go", "test", "-json", f"{TELEGRAF}/rabbitmq.go", TELEGRAF_TEST),
        go_test, module="github.com/influxdata/telegraf@v1.37.2",
        added=(("telegraf_test.go", TELEGRAF_TEST),), before=with_jobs,
        environment={"BROKER": f"http://127.0.0.1:{HTTP_PORT}"},
    ),
    Suite(
        "keda", ("go",),
        (
            "go", "test", "-json", f"{KEDA}/rabbitmq_scaler.go", f"{KEDA}/scaler.go", KEDA_TEST,
        ),
        go_test, module="github.com/kedacore/keda/v2@v2.16.1",
        added=(("keda_test.go", KEDA_TEST),), before=with_jobs,
        environment={"BROKER": f"http://guest:guest@127.0.0.1:{HTTP_PORT}/"},
    ),
)  # fmt: skip


def copied(suite: Suite, place: Path) -> None:
    """Put the suite's source where it is run."""
    if not suite.module:
        shutil.copytree(HERE, place)
        return
    command = ["go", "mod", "download", "-json", suite.module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(json.loads(done.stdout)["Dir"], place)
    for path in (place, *place.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only
    for name, to in suite.added:
        shutil.copy(HERE / name, place / to)


def run(suite: Suite, directory: Path) -> Found:
    """Make a suite and run it against a broker of its own. Raises AssertionError."""
    place = directory / suite.name
    copied(suite, place)
    environment = {**os.environ, "GOFLAGS": "-mod=mod", **suite.environment}

    def ran(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip

    for words in suite.made:
        done = ran(words)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    broker = LiveBroker(directory / f"data-{suite.name}", has_http=True)
    broker.port, broker.http_port = PORT, HTTP_PORT
    with broker:
        broker.control("await_startup")
        suite.before(broker)
        done = ran(suite.command)
    try:
        found = suite.read(place, done.stdout)
    except (OSError, ValueError) as error:
        raise AssertionError(f"{error}: {(done.stdout + done.stderr)[-2000:]}") from error
    assert found, (done.stdout + done.stderr)[-2000:]
    return found


def wrong_in(suite: Suite, found: Found) -> list[str]:
    """The tests that failed and are not known, and what is known and has not failed."""
    failed = [name for name, is_right in found.items() if not is_right]
    wrong = [name for name in failed if not any(part in name for part in suite.known)]
    fine = [part for part in suite.known if not any(part in name for name in failed)]
    return wrong + [f"{part}: known, and has not failed" for part in fine]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ",".join(suite.name for suite in SUITES)
    parser.add_argument("--only", default=names, help="names with commas between them")
    only = parser.parse_args().only.split(",")
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for suite in (suite for suite in SUITES if suite.name in only):
            missing = [tool for tool in suite.tools if shutil.which(tool) is None]
            if missing:
                print(f"{suite.name}: left out, {missing[0]} is not installed")
                continue
            try:
                found = run(suite, Path(directory))
            except AssertionError as error:
                print(f"{suite.name}: {error}", flush=True)
                failed += 1
                continue
            wrong = wrong_in(suite, found)
            passed = sum(found.values())
            print(f"{suite.name}: passed {passed}, known {len(suite.known)}", flush=True)
            for part, reason in suite.known.items():
                print(f"    known: {part}: {reason}")
            for name in wrong:
                print(f"    FAILED {name}", flush=True)
            failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
