"""What Prometheus makes of a text: parsers of prometheus_client, and promtool if it is there."""

import shutil
import subprocess

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families


def families(text: str, *, is_openmetrics: bool = False) -> dict[str, Metric]:
    """Name -> family. Raises ValueError if the text is wrong, or has a series twice."""
    parse = (
        openmetrics_parser.text_string_to_metric_families
        if is_openmetrics
        else text_string_to_metric_families
    )
    found = {family.name: family for family in parse(text)}
    keys = [
        (sample.name, *sorted(sample.labels.items()))
        for family in found.values()
        for sample in family.samples
    ]
    assert len(keys) == len(set(keys)), "a series comes twice"
    return found


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families(text).values()
        for sample in family.samples
    }


def promtool(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """What promtool says; the test is skipped where there is none (Debian: prometheus)."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    return subprocess.run(
        [program, *arguments], input=given, capture_output=True, text=True, check=False
    )
