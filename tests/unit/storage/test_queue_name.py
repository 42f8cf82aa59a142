"""`.queue_name`: what stands in it, and that older ones and damaged ones are told."""

import pytest

from penstock.storage.files.data_directory import (
    directories_of,
    hash_name,
    name_in,
    queue_name,
    text_of,
)
from tests.helpers.faulty_filesystem import FaultyFileSystem

ODD = b"a\nQUEUE: b\\\xff\0p1"


def test_it_says_both_names_as_rabbitmq_does() -> None:
    assert text_of(b"/", b"jobs") == b"VHOST: /\nQUEUE: jobs\n"
    assert text_of("größe".encode(), b"") == "VHOST: größe\nQUEUE: \n".encode()
    told = b"VHOST: v\\x0a\nQUEUE: a\\x0aQUEUE: b\\\\\\xff\\x00p1\n"
    assert text_of(b"v\n", ODD) == told


@pytest.mark.parametrize(
    "name", [b"jobs", ODD, b"", b"VHOST: /\nQUEUE: x", "é ".encode(), b"\\x41"]
)
def test_the_name_comes_back_from_the_new_and_from_the_old_form(name: bytes) -> None:
    directory = f"/queues/{hash_name(name)}.7"
    assert name_in(text_of(b"/", name), directory) == name
    assert name_in(name + b"\n", directory) == name


def test_a_name_that_is_not_the_directorys_is_still_read() -> None:
    """Of pages that somebody has copied to a directory of his own."""
    assert name_in(text_of(b"/", b"s\0p1"), "/copied") == b"s\0p1"
    assert name_in(b"s\0p1\n", "/copied") == b"s\0p1"


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"VHOST: /\nQUE", b"VHOST: /\nQUEUE: other\n"])
def test_what_is_not_the_name_of_its_directory_is_none(text: bytes) -> None:
    fs = FaultyFileSystem()
    path = f"/{hash_name(b'jobs')}.1"
    fs.mkdir(path)
    assert queue_name(fs, path) == b""
    file = fs.open(path + "/.queue_name", create=True)
    file.pwrite(text, 0)
    assert queue_name(fs, path) == b""


def test_the_directories_of_a_queue_are_those_of_all_its_parts() -> None:
    fs = FaultyFileSystem()
    for kind, number, name in (
        ("queues", 1, b"jobs"), ("queues", 2, b"jobs\0p3"), ("queues", 3, b"jobs2"),
        ("streams", 4, b"jobs\0p0"), ("queues", 5, b"lost"),
    ):  # fmt: skip
        path = f"/v/{kind}/{hash_name(name)}.{number}"
        for made in ("/v", f"/v/{kind}", path):
            fs.mkdir(made)
        if name != b"lost":
            fs.open(path + "/.queue_name", create=True).pwrite(text_of(b"/", name), 0)
    assert [path.rpartition(".")[2] for path in directories_of(fs, "/v", b"jobs")] == [
        "1", "2", "4",
    ]  # fmt: skip
    assert len(directories_of(fs, "/v", b"lost")) == 1  # by the directory's own name
    assert directories_of(fs, "/v", b"nothing") == []
