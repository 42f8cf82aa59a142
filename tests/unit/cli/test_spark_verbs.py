"""`penstock spark`: the zip for --py-files."""

import zipfile
from pathlib import Path

import pytest

from penstock.cli.main import main


def test_the_zip_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.zip"
    assert main(["spark", "py-files", str(path)]) == 0
    count = len(zipfile.ZipFile(path).namelist())
    assert capsys.readouterr().out == f"{path}: {count} modules\n"


def test_nowhere_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "py-files", str(tmp_path / "no" / "p.zip")]) == 66
    assert "No such file" in capsys.readouterr().err
    assert main(["spark", "py-files"]) == 64
