"""LocalFiles: what is data, what is whole, what is moved where."""

from pathlib import Path

from penstock.spark.file_sink import LocalFiles, is_data, lake_files


def test_hidden_names_are_not_data(tmp_path: Path) -> None:
    for name in ("a=1/x.parquet", "y.parquet", "_SUCCESS", ".penstock/q/z.parquet", "a=1/.x.crc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert LocalFiles().data_files(str(tmp_path)) == ["a=1/x.parquet", "y.parquet"]
    assert LocalFiles().data_files(str(tmp_path / "none")) == []
    assert is_data("_a/b") is False


def test_a_text_is_written_whole(tmp_path: Path) -> None:
    files, path = LocalFiles(), tmp_path / "a" / "b.json"
    files.write(str(path), "one")
    files.write(str(path), "two")
    assert files.read(str(path)) == "two"
    assert files.names(str(path.parent)) == ["b.json"]
    assert files.exists(str(path))


def test_moves_make_directories(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "x" / "y" / "new"
    old.write_text("it")
    LocalFiles().sync(str(tmp_path), ["old"])
    LocalFiles().move([(str(old), str(new))])
    assert new.read_text() == "it"
    assert not old.exists()


def test_deleting_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    files = LocalFiles()
    files.delete(str(tmp_path / "none"))
    (tmp_path / "d" / "e").mkdir(parents=True)
    files.delete(str(tmp_path / "d"))
    assert files.names(str(tmp_path)) == []
    assert files.names(str(tmp_path / "none")) == []


def test_a_plain_path_is_local() -> None:
    assert isinstance(lake_files("lake/flights", None), LocalFiles)
