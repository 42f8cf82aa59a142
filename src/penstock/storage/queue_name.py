r"""`.queue_name`: whose directory this is, for people, for salvage and for readers by path.

A directory is named by a hash, so what stands behind it is written into it, as RabbitMQ does:

    VHOST: <name of the vhost>\n
    QUEUE: <name of the queue>\n

Each name as `escaping.escaped` writes it: UTF-8, with what is not printable as `\xNN` and each
backslash twice, so a name has no line feed. A part of a queue with priorities or delays, and a
partition of a stream, is a queue of its own here; what distinguishes it stands behind a zero byte.

Earlier versions wrote the queue's name as it is and a line feed. Both are read, and told apart by
the hash in the directory's name; the next write into the queue's files writes the new form.

It is no evidence: nothing that lives depends on it [1], a crash may have cut it off, and a name
that does not have its directory's hash is no name.

Not here: writing the file (queue_index, streams), what hashes names (data_directory).
"""

import re
from typing import Final

from penstock import escaping
from penstock.storage.data_directory import hash_name
from penstock.storage.filesystem import FileSystem

QUEUE_NAME: Final = ".queue_name"
PART: Final = b"\0"  # in a name, before what distinguishes parts of one queue
_FORM: Final = re.compile(rb"VHOST: [^\n]*\nQUEUE: ([^\n]*)\n?")


def text_of(vhost: bytes, queue: bytes) -> bytes:
    """What stands in the file."""
    return b"VHOST: %b\nQUEUE: %b\n" % (_escaped(vhost), _escaped(queue))


def old_text_of(queue: bytes) -> bytes:
    """The same as older versions wrote it."""
    return queue + b"\n"


def name_in(text: bytes, directory: str) -> bytes:
    """The queue's name in the text of a directory's file, in whichever form it is."""
    old = text.removesuffix(b"\n")
    found = _FORM.fullmatch(text)
    if found is None or _is_named_after(directory, old):
        return old
    name = escaping.unescaped(found[1].decode("utf-8", "surrogateescape"))
    return name.encode("utf-8", "surrogateescape")


def queue_name(fs: FileSystem, directory: str) -> bytes:
    """The name in a queue's directory, b"" if it is not the one that the directory is named
    after."""
    path = f"{directory}/{QUEUE_NAME}"
    if not fs.exists(path):
        return b""
    name = name_in(fs.read(path), directory)
    return name if _is_named_after(directory, name) else b""


def directories_of(fs: FileSystem, vhost_path: str, queue: bytes) -> list[str]:
    """The directories of a queue or stream of this name, with those of all its parts, sorted. One
    that was deleted keeps its directory until the next checkpoint. Takes no lock."""
    found = []
    for kind in ("queues", "streams"):
        parent = f"{vhost_path}/{kind}"
        for entry in sorted(fs.list(parent)) if fs.is_dir(parent) else []:
            path = f"{parent}/{entry}"
            name = queue_name(fs, path)
            if name.partition(PART)[0] == queue or (not name and _is_named_after(path, queue)):
                found.append(path)
    return found


def _is_named_after(directory: str, name: bytes) -> bool:
    return hash_name(name) == directory.rpartition("/")[2].partition(".")[0]


def _escaped(name: bytes) -> bytes:
    return escaping.escaped(name.decode("utf-8", "surrogateescape")).encode()
