"""What `open` is given."""

from pathlib import Path

import pytest

import penstock
from penstock.embedded.core import settings_of
from penstock.embedded.directory_box import open_box
from penstock.errors import NotAStoreError, OptionError
from penstock.storage.files.durability import INTERVAL


def test_settings_are_in_the_cores_terms() -> None:
    path, settings = settings_of(
        Path("a/b"), "interval=50", "1 MiB", True, {"disk_free_limit": 1 << 20}
    )
    assert path == str(Path.cwd() / "a" / "b")
    assert (settings.mode, settings.memory_bytes, settings.is_strict) == (INTERVAL, 1 << 20, True)
    assert (settings.storage.interval_ms, settings.storage.disk_free_limit) == (50, 1 << 20)


def test_a_size_of_the_engine_may_be_text() -> None:
    storage = {"disk_free_limit": "1 GiB"}
    assert settings_of("a", "disk", "max", False, storage)[1].storage.disk_free_limit == 1 << 30


def test_a_fraction_is_of_the_machine() -> None:
    whole = settings_of("a", "disk", "max", False, {})[1].memory_bytes
    assert settings_of("a", "disk", 0.5, False, {})[1].memory_bytes == whole // 2


def test_obvious_mistakes_are_told(tmp_path: Path) -> None:
    for url in ("amqp://localhost/", "amqps://user@host"):
        with pytest.raises(OptionError, match=r"path: given 'amqp.* is penstock\.open"):
            open_box(url)
    with pytest.raises(OptionError, match="unknown option 'durabilty', did you mean"):
        penstock.open(tmp_path / "box.d", durabilty="os")
    with pytest.raises(OptionError, match="unknown option 'disk_free_limt', did you mean 'disk_f"):
        penstock.open(tmp_path / "box.d", disk_free_limt=5)
    with pytest.raises(OptionError, match="durability: given 'fast', expected none, os, interval"):
        penstock.open(tmp_path / "box.d", durability="fast")
    with pytest.raises(OptionError, match="memory: given 'lots', expected a size"):
        penstock.open(tmp_path / "box.d", memory="lots")
    with pytest.raises(OptionError, match="strict: given 1, expected True or False"):
        penstock.open(tmp_path / "box.d", strict=1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="on_event: given 5, expected a callable"):
        penstock.open(tmp_path / "box.d", on_event=5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="on_alert: given 'x', expected a callable"):
        penstock.open(tmp_path / "box.d", on_alert="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        penstock.open(5)  # type: ignore[arg-type]
    assert not (tmp_path / "box.d").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAStoreError, match="it is a file"):
        penstock.open(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        penstock.open(tmp_path / "none" / "box.d")
