"""Streams of a box in a directory, for threads: the contract, and what only it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.contracts.box import Opens
from tests.contracts.stream import StreamContract
from tests.contracts.stream_life import StreamLifeContract


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    boxes: list[penstock.Box] = []

    def make(**options: Any) -> penstock.Box:
        boxes.append(penstock.open(tmp_path / "box.d", **options))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


class TestStreams(StreamContract):
    pass


class TestLife(StreamLifeContract):
    pass
