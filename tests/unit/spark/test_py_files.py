"""The package as a zip: what is in it, and that it works from there without being installed."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.spark import spark_session
from penstock.spark.spark_session import NAME, PyFilesError, ship, write_py_files

# What a task imports, the source's and the sink's; none of it may want a file beside it.
OF_TASKS = (
    "penstock.spark.access", "penstock.arrow_batches", "penstock.page_frames",
    "penstock.spark.staging", "penstock.amqp_url", "penstock.storage.pages.page",
)  # fmt: skip


def test_all_modules_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / NAME
    count = write_py_files(str(path))
    names = zipfile.ZipFile(path).namelist()
    assert len(names) == count == len(set(names))
    assert all(name.endswith(".py") for name in names)
    assert {name.split("/")[0] for name in names} == {"penstock", "pyspark_penstock"}
    assert {"penstock/__init__.py", "pyspark_penstock/__init__.py"} < set(names)
    root = Path(penstock.__file__).parent
    there = {file.relative_to(root.parent).as_posix() for file in root.rglob("*.py")}
    assert there <= set(names)


def test_the_same_sources_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "1.zip", tmp_path / "2.zip"
    write_py_files(str(first))
    write_py_files(str(second))
    assert first.read_bytes() == second.read_bytes()


def test_it_works_where_nothing_is_installed_but_spark_and_arrow(tmp_path: Path) -> None:
    """An interpreter without site-packages, with the zip, and with what any executor has."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    path = tmp_path / NAME
    write_py_files(str(path))
    beside = tmp_path / "beside"
    beside.mkdir()
    for package in ("pyspark", "py4j", "pyarrow", "numpy"):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        found = Path(spec.origin).parent
        for entry in (found, found.with_name(f"{package}.libs")):
            if entry.exists():
                (beside / entry.name).symlink_to(entry)
    program = (
        f"import sys; sys.path[:0] = [{str(path)!r}, {str(beside)!r}]\n"
        f"import importlib\n"
        f"for name in {OF_TASKS!r}: importlib.import_module(name)\n"
        f"import penstock\n"
        f"print(penstock.__file__, penstock.build_kind())\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{path}/penstock/__init__.py pure"]


def test_sources_that_are_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(tmp_path / "penstock" / "spark" / "spark_session.py")
    monkeypatch.setattr(spark_session, "__file__", here)
    with pytest.raises(PyFilesError, match="no sources of penstock and pyspark_penstock"):
        write_py_files(str(tmp_path / NAME))


def test_a_session_of_connect_is_told_where_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    session: Any = SimpleNamespace()
    with pytest.raises(PyFilesError, match="Spark Connect"):
        ship(session)


def test_what_is_shipped_is_there_as_long_as_the_session(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    sent: list[str] = []
    registered: list[str] = []
    session: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(addPyFile=sent.append),
        dataSource=SimpleNamespace(register=lambda source: registered.append(source.name())),
    )
    ship(session)
    assert registered == ["penstock"]
    (path,) = sent
    assert Path(path).name == NAME
    assert zipfile.is_zipfile(path)
