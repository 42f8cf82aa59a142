"""What is found out about a pipeline before Spark is started, on a real broker with HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import connect
from penstock.codec.spec import QueueDeclare
from penstock.spark import pipeline_check
from penstock.spark.pipeline_check import Finding, needs
from penstock.spark.pipeline_file import parse_pipeline
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real

FILE = """
[source]
queue = "flights"
url = "{url}"
http_url = "{http_url}"
[transform]
{transform}
[[sink]]
{sink}
"""
LAKE = 'parquet = "lake"'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("needs") / "data", has_http=True) as broker:
        with connect(broker.url) as connection:
            declare = QueueDeclare(
                queue="flights", durable=True, arguments={"x-queue-type": "stream"}
            )
            connection.channel().ask(declare).result(30)
        yield broker


class Desk:
    """Findings about FILE with changes."""

    def __init__(self, broker: LiveBroker, directory: Path) -> None:
        self.url = broker.url
        self.http_url = f"http://127.0.0.1:{broker.http_port}"
        self.directory = directory

    def __call__(self, *, sink: str = LAKE, transform: str = "", **changed: str) -> list[Finding]:
        values = {"url": self.url, "http_url": self.http_url, **changed}
        text = FILE.format(transform=transform, sink=sink, **values)
        if "queue" in changed:
            text = text.replace('queue = "flights"', f'queue = "{changed["queue"]}"')
        spec = parse_pipeline(str(self.directory / "flights.toml"), text, "flights")
        machine = ("the package ", "packages: ", "Java: ", "Spark needs Java")
        return [one for one in needs(spec) if not one.text.startswith(machine)]


@pytest.fixture
def found(broker: LiveBroker, tmp_path: Path) -> Desk:
    return Desk(broker, tmp_path)


def wrong(findings: list[Finding]) -> list[tuple[int, str]]:
    return [(one.code, one.text) for one in findings if one.code]


def test_all_is_there(found: Desk) -> None:
    findings = found()
    assert wrong(findings) == []
    assert [one.text.split(":")[0] for one in findings] == ["broker", "source", "HTTP"]


def test_a_source_that_is_not_there_is_suggested(found: Desk) -> None:
    ((code, text),) = wrong(found(queue="fligths"))
    assert code == 64
    assert "[source]: queue: NOT_FOUND - no queue 'fligths'" in text
    assert text.endswith("did you mean 'flights'?")


def test_everything_that_is_wrong_is_told_at_once(found: Desk) -> None:
    problems = wrong(
        found(
            queue="fligths", http_url="http://127.0.0.1:1", sink='exchange = "no.exchange"',
            transform='python = "rows:double"',
        )
    )  # fmt: skip
    assert [code for code, _ in problems] == [64, 64, 69]
    exchange, source, http = (text for _, text in problems)
    assert "exchange: 'no.exchange' does not exist" in exchange
    assert "fligths" in source
    assert "http_url: the broker does not answer at http://127.0.0.1:1" in http
    assert "Connection refused" in http


def test_a_password_that_is_wrong_is_no_bug_of_ours(found: Desk) -> None:
    url = found.url.replace("guest:guest", "guest:wrong-secret")
    problems = wrong(found(url=url))
    assert [code for code, _ in problems] == [77, 77]
    assert "wrong-secret" not in str(problems)


def test_no_python_of_the_pipeline_is_run(found: Desk) -> None:
    module = found.directory / "rows.py"
    module.write_text(
        "import pathlib\n"
        f"pathlib.Path({str(found.directory / 'ran')!r}).touch()\n"
        "def double(rows):\n    return rows\n"
    )
    findings = found(transform='python = "rows:double"')
    assert wrong(findings) == []
    assert "does not run it" in findings[0].text
    ((code, text),) = wrong(found(transform='python = "rows:duoble"'))
    assert code == 64
    assert text.endswith("has no 'duoble', did you mean 'double'?")
    module.write_text("def double(rows:\n")
    assert wrong(found(transform='python = "rows:double"'))[0][0] == 64
    assert not (found.directory / "ran").exists()


def test_packages_of_a_sink(found: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pipeline_check.importlib.util.find_spec
    monkeypatch.setattr(
        pipeline_check.importlib.util, "find_spec",
        lambda name, *more: None if name == "deltalake" else real(name, *more),
    )  # fmt: skip
    text = FILE.format(transform="", sink='delta = "lake"', url=found.url, http_url=found.http_url)
    findings = list(needs(parse_pipeline("f.toml", text, "flights")))
    missing = [one for one in findings if one.text.startswith("the package deltalake")]
    assert [(one.code, one.is_for_spark) for one in missing] == [(69, False)]
    assert "[lake]" in missing[0].text
