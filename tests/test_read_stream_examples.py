"""The examples that read a stream over HTTP as Arrow: pandas, Polars, DuckDB."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from tests.helpers.live_broker import LiveBroker

ROOT = Path(__file__).parent.parent
PRINTS = {
    "pandas": "300 records, the last at 20",
    "polars": "300 records, offsets 0 to 299",
    "duckdb": "300 records",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's HTTP address, with 300 records in the stream `events`."""
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", has_http=True) as broker:
        with penstock.open(f"amqp://guest:guest@127.0.0.1:{broker.port}/") as box:
            stream = box.stream("events")
            stream.append_many([(b'{"n": %d}' % n, {"key": f"key.{n % 3}"}) for n in range(300)])
        yield f"http://guest:guest@127.0.0.1:{broker.http_port}"


@pytest.mark.parametrize("package", PRINTS)
def test_a_stream_is_read(package: str, url: str) -> None:
    for needed in (package, "pyarrow"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    program = ROOT / "examples" / f"read_stream_{package}.py"
    done = subprocess.run(
        [sys.executable, str(program), url, "events"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert PRINTS[package] in done.stdout
    assert "key.2" in done.stdout
