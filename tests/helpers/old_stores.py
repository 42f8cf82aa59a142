"""Data directories of released formats, kept as files, so that today's code proves it reads them.

`tests/fixtures/format-<n>` has, for each store, an archive of its directory and what is in it:

    engine.tar.xz, engine.json    a vhost with every type of log record, half of it behind a
                                  checkpoint, killed: made by `tool_stores`
    broker.tar.xz, broker.json    a broker with classic queues, priorities, delayed and
                                  unacknowledged messages, a stream with readers, a lease and users,
                                  killed with kill -9

Format 2 is that of a store whose log and spilled messages are in other directories; it has a broker
only, and `/store` stands where its files name the directory of all three.

They are made once, when a format is new, and then never again:

    PYTHONPATH=. .venv/bin/python -m tests.helpers.old_stores tests/fixtures/format-1
"""

import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import penstock
from penstock.server.control import NAME as CONTROL
from penstock.storage.files.data_directory import PLACED_FORMAT
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers import tool_stores
from tests.helpers.live_broker import LiveBroker

FIXTURES = Path(__file__).parent.parent / "fixtures"
MESSAGES = 300
LARGE = 70_000  # bytes of a body that goes to the message store
HUGE = 5 << 20  # of one that has a file of its own
LEASED = 40
PAGE_BYTES = 1 << 20
STORE = "/store"

Found = dict[str, Any]


def fill_broker(broker: LiveBroker) -> None:
    """A bit of everything, by the calls of users. Some of it before a checkpoint."""
    broker.control("add_user", name="ann", password="secret of ann", tags=["monitoring"])
    broker.control("set_permissions", "/", user="ann", configure="^a", write=".*", read=".*")
    with penstock.open(broker.url) as box:
        plain = box.queue("plain", max_attempts=5, dead_letter_to="dead")
        plain.put_many([b"message %d" % n for n in range(MESSAGES)])
        box.queue("dead")
        ranked = box.queue("ranked", priorities=3)
        for n in range(20):
            ranked.put(b"priority %d" % (n % 4), priority=n % 4, headers={"n": n})
        box.queue("bodies").put(b"L" * LARGE)
        box.queue("bodies").put(b"H" * HUGE)
        box.queue("later").put(b"in a week", delay="7d")
        stream = box.stream("events", page_bytes=PAGE_BYTES)
        for n in range(MESSAGES):
            stream.append(b"event %d " % n * 500)
        half = stream.reader("half")
        for _ in half.read(max_records=MESSAGES // 2):
            pass
        half.commit(wait=True)
        box.sync()
        broker.control("checkpoint", "/")
        for job in plain.get_many(10):
            job.ack()
        plain.get().reject()
        held = plain.get_many(5)  # unacknowledged when the broker dies
        assert len(held) == 5
        with box.transaction():
            plain.put(b"in a transaction")
            box.queue("dead").put(b"in it, too")
        box.sync()


def read_broker(broker: LiveBroker) -> Found:
    """What users find in it."""
    found: Found = {}
    with penstock.open(broker.url) as box:
        for name in box.queues():
            queue = box.queue(name)
            found[name] = {
                "messages": [_body(message.body) for message in queue],
                "unacked": queue.unacked,
                "delayed": queue.delayed,
            }
        stream = box.stream("events")
        found["stream"] = {
            "records": [[r.offset, _body(r.body)] for r in stream.read(offset="first")],
            "readers": {name: _next(stream, name) for name in stream.readers()},
        }
    found["users"] = broker.control("list_users")
    found["permissions"] = broker.control("list_permissions")
    return found


def _next(stream: penstock.Stream, reader: str) -> int:
    """The offset at which a reader goes on."""
    return next(stream.reader(reader).read(max_records=1)).offset


def _body(body: bytes) -> list[Any]:
    """Its first bytes and its length."""
    return [body[:24].decode(), len(body)]


def pack(directory: Path, archive: Path) -> None:
    """All files of a directory, with names relative to it. Sockets and locks stay out."""
    with lzma.open(archive, "wb", preset=9) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            if path.is_dir() or (path.is_file() and path.name != "LOCK"):
                tar.add(path, path.relative_to(directory), recursive=False)


def unpack(version: int, name: str, to: Path) -> Found:
    """Put a store of that format into a new directory; what is in it."""
    place = FIXTURES / f"format-{version}"
    with tarfile.open(place / f"{name}.tar.xz") as tar:
        tar.extractall(to, filter="data")
    _rename(to, STORE, str(to))
    found: Found = json.loads((place / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _rename(base: Path, old: str, new: str) -> None:
    """Let the files that name other directories of a store below `base` name others."""
    for path in [*base.rglob("PLACES"), *base.rglob("OWNER")]:
        path.write_text(path.read_text().replace(f" {old}/", f" {new}/"))


def read_engine(data: Path) -> Found:
    """What is in each queue of the vhost of `data`."""
    fs = OsFileSystem(0)
    path = tool_stores.vhost_path(fs, str(data))
    engine = tool_stores.open_vhost(fs, path)
    try:
        return {
            name.decode(): [[h.hex(), b.hex(), time, expiry, attempts]
                            for h, b, time, expiry, attempts in rows]
            for name, rows in tool_stores.engine_content(engine).items()
        }  # fmt: skip
    finally:
        engine.close()
        fs.close()


def make(to: Path) -> None:
    """Both stores, as today's code writes them."""
    to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "engine"
        for name, content in tool_stores.image(tool_stores.make()).items():
            path = data / name.removeprefix(tool_stores.DATA + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        pack(data, to / "engine.tar.xz")
        (to / "engine.json").write_text(json.dumps(read_engine(data)) + "\n")
        data = Path(temporary) / "broker"
        with LiveBroker(data, "--durability", "disk") as broker:
            fill_broker(broker)
            broker.kill()
            pack(data, to / "broker.tar.xz")
            broker.start()
            (to / "broker.json").write_text(json.dumps(read_broker(broker)) + "\n")


def make_placed(to: Path) -> None:
    """A broker with a log and spilled messages in other directories, as today's code writes it."""
    to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary) / "store"
        base.mkdir()
        environment = {
            "PENSTOCK_STORAGE_LOG_DIRECTORY": str(base / "log"),
            "PENSTOCK_STORAGE_SPILL_DIRECTORY": str(base / "spill"),
        }
        with LiveBroker(base / "data", "--durability", "disk", environment=environment) as broker:
            fill_broker(broker)
            broker.kill()
            copy = Path(temporary) / "copy"
            shutil.copytree(base, copy, ignore=shutil.ignore_patterns(CONTROL, "data.log"))
            _rename(copy, str(base), STORE)
            pack(copy, to / "broker.tar.xz")
            broker.start()
            (to / "broker.json").write_text(json.dumps(read_broker(broker)) + "\n")


if __name__ == "__main__":
    if sys.argv[1].endswith(f"-{PLACED_FORMAT}"):
        make_placed(Path(sys.argv[1]))
    else:
        make(Path(sys.argv[1]))
