"""Modes are parsed as they are written in options."""

import pytest

from penstock.errors import OptionError
from penstock.storage.files.durability import DISK, INTERVAL, NONE, OS, Durability
from penstock.storage.log.transaction_log import NoStore


@pytest.mark.parametrize(
    ("text", "mode", "interval_ms"),
    [("none", NONE, 0), ("os", OS, 0), ("disk", DISK, 0), ("interval=200", INTERVAL, 200)],
)
def test_parse(text: str, mode: int, interval_ms: int) -> None:
    found = Durability.parse(text)
    assert (found.mode, found.interval_ms) == (mode, interval_ms)


@pytest.mark.parametrize(
    "text",
    ["", "Disk", "interval", "interval=", "interval=0", "interval=-5", "interval=x", "disk=1",
     "interval=²"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        Durability.parse(text)
    assert (caught.value.name, caught.value.given) == ("durability", text)


def test_modes_are_ordered_by_strength() -> None:
    assert NONE < OS < INTERVAL < DISK


def test_no_store_has_nothing_to_sync() -> None:
    store = NoStore()
    assert not store.has_unsynced()
    with pytest.raises(AssertionError):
        store.take_unsynced()
    with pytest.raises(AssertionError):
        store.synced(None)
