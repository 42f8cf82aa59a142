"""The blocking box: the contract, and what only it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.contracts.box import Opens, QueueContract
from tests.contracts.box_life import BoxContract


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    boxes: list[penstock.Box] = []

    def make(**options: Any) -> penstock.Box:
        boxes.append(penstock.open(tmp_path / "box.d", **options))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


class TestQueues(QueueContract):
    pass


class TestBox(BoxContract):
    pass
