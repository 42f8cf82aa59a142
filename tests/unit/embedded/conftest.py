"""Boxes in the directory of a test, for the contract of boxes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.contracts.box import Opens
from tests.helpers.aio_adapter import AioAdapter


def opened(tmp_path: Path, make: Callable[..., Any], end: Callable[[Any], None]) -> Iterator[Opens]:
    """What opens box.d; each box that it made is closed at the end of the test."""
    boxes: list[Any] = []

    def open_box(**options: Any) -> Any:
        boxes.append(make(tmp_path / "box.d", **options))
        return boxes[-1]

    yield open_box
    for box in boxes:
        end(box)


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    """Of the contract of boxes; a module for asyncio takes aio_opens in its place."""
    yield from opened(tmp_path, penstock.open, penstock.Box.close)


@pytest.fixture
def aio_opens(tmp_path: Path) -> Iterator[Opens]:
    yield from opened(tmp_path, AioAdapter, AioAdapter.end)
