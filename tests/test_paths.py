"""The important paths of a message stay short: tools/paths.py traces them, pyproject.toml limits.

A path that became shorter should lower its limit. One that became longer passes another module, or
enters one more often; then either the layout is wrong or the limit.
"""

import tomllib
from pathlib import Path

import pytest

import penstock

if penstock.build_kind() != "pure":
    pytest.skip("compiled functions cannot be traced", allow_module_level=True)

from tools.paths import Trace, trace_all

ROOT = Path(__file__).parent.parent
LIMITS: dict[str, dict[str, int]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "penstock"
]["paths"]


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return trace_all()


def test_every_path_has_its_limits(traces: dict[str, Trace]) -> None:
    assert set(LIMITS) == set(traces)


@pytest.mark.parametrize("name", LIMITS)
def test_a_path_is_no_longer_than_its_limit(name: str, traces: dict[str, Trace]) -> None:
    trace = traces[name]
    limit = LIMITS[name]
    assert len(trace.modules) <= limit["modules"], " ".join(trace.modules)
    assert trace.moves <= limit["moves"], " ".join(trace.modules)
    assert trace.json <= limit.get("json", 0), "a text of JSON is made once more"
    assert trace.read <= trace.json, "a text of JSON is read twice"
