"""The real thing, under strace: no confirm precedes the fdatasync that covers its bytes [2] [10].

The simulated disk shows what the engine asks for; this shows what the kernel is told, by the real
file system class, with its worker thread. A child process publishes into a real directory and
writes a line per confirm; strace writes down every call in the order in which it began and
returned. From the bytes of the calls it follows which pwrite64 carried which LSN.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.real, pytest.mark.crash]

ROOT = Path(__file__).parent.parent.parent
GROUP = struct.Struct(">4sIQQI")  # log_file.py: magic, length, first LSN, durable LSN, count
RECORD = struct.Struct(">IIQBBH")  # record.py: length, crc, LSN, type, flags, count
PUBLISH_IN_STORE = struct.Struct(">QIIII")  # id, time, header length, body size, store file
PUBLISH, IN_STORE, OWN_FILE = 1, 1, 0x80000000

CHILD = """
import os, random, sys
from penstock.clock import SystemClock
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.engine import StorageEngine
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.files.options import StorageOptions

fs = OsFileSystem()
vhost = DataDirectory(fs, sys.argv[1]).vhost_path(b"/")
options = StorageOptions(wal_segment_bytes_min=64 << 10, own_file_from=100 << 10)
engine = StorageEngine(
    fs, vhost, b"/", clock=SystemClock(), rng=random.Random(1), options=options
)
queue = engine.declare_queue(b"q")
waiting = []

def say(text):
    os.write(1, text.encode() + b"\\n")

def publish(size):
    engine.publish([queue], b"", b"b" * size, DISK)
    waiting.append(engine.log.last_lsn)

def confirm():
    while waiting and waiting[0] <= engine.log.settled(DISK):
        say(f"confirm {waiting.pop(0)}")

def settle():
    engine.flush()
    while waiting:
        engine.poll(wait=True)
        confirm()

for _ in range(20):  # one by one
    publish(100)
    settle()
say("group begins")
for _ in range(100):
    publish(100)
settle()
say("group ends")
for i in range(300):  # without waiting: while a sync runs, the next bytes are written
    publish(1000)
    if i % 3 == 0:
        engine.flush()
        engine.poll()
        confirm()
settle()
for size in (40 << 10, 120 << 10, 200, 50 << 10):  # store, own file, log, store: alone ...
    publish(size)
    settle()
for i in range(24):  # ... and mixed
    publish((40 << 10, 120 << 10, 300)[i % 3])
    if i % 4 == 0:
        engine.flush()
        engine.poll()
        confirm()
settle()
say("end")
"""


class Call(NamedTuple):
    """A system call: when it began and returned (places in the trace), on which file, the bytes."""

    name: str
    path: str
    data: bytes
    began: int
    returned: int


@pytest.fixture(scope="module")
def strace() -> str:
    """The strace that is there, or that apt brings if we may."""
    if shutil.which("strace") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update", "-q"], ["install", "-y", "-q", "strace"]):
            subprocess.run(["apt-get", *words], capture_output=True)
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed (Debian and Ubuntu: apt install strace)")
    tried = subprocess.run([found, "-f", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()[-200:]}")
    return found


@pytest.fixture(scope="module")
def calls(strace: str, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """All calls of a child process that publishes and confirms."""
    place = tmp_path_factory.mktemp("sync_order")
    trace = place / "trace"
    done = subprocess.run(
        [
            strace, "-f", "-y", "-x", "-s", str(1 << 20), "-o", str(trace),
            "-e", "trace=pwrite64,write,fdatasync,fsync",
            sys.executable, "-c", CHILD, str(place / "data"),
        ],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("end\n")
    return parse(trace.read_text(encoding="ascii", errors="replace").splitlines())


# ---- reading the trace ---------------------------------------------------------------------------

BEGUN = re.compile(r"(?P<name>\w+)\(\d+<(?P<path>[^>]*)>(?P<rest>.*)", re.DOTALL)
RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def parse(lines: list[str]) -> list[Call]:
    """Calls by the place where they returned. A call that another thread interrupted stands in two
    lines; its bytes are in the first one."""
    calls: list[Call] = []
    unfinished: dict[str, tuple[str, str, bytes, int]] = {}
    for at, line in enumerate(lines):
        thread, _, text = line.partition(" ")
        text = text.strip()
        if RESUMED.match(text):
            name, path, data, began = unfinished.pop(thread)
            if " = -1 " not in text:
                calls.append(Call(name, path, data, began, at))
            continue
        begun = BEGUN.match(text)
        if begun is None:
            continue
        string = STRING.search(begun["rest"])
        data = unescape(string[1]) if string else b""
        if text.endswith("<unfinished ...>"):
            unfinished[thread] = (begun["name"], begun["path"], data, at)
        elif " = -1 " not in text[-80:]:
            calls.append(Call(begun["name"], begun["path"], data, at, at))
    return calls


def unescape(text: str) -> bytes:
    if text.startswith("\\x"):
        return bytes.fromhex(text.replace("\\x", ""))
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


def groups(call: Call) -> list[tuple[int, int, bytes]]:
    """(first LSN, count, records) of each group in a write to the log; none in another write."""
    found = []
    at = call.data.find(b"PGRP")
    while at >= 0 and call.data[at : at + 4] == b"PGRP":
        _, length, first, _, count = GROUP.unpack_from(call.data, at)
        start = at + GROUP.size + 4
        found.append((first, count, call.data[start : start + length]))
        at += (GROUP.size + 4 + length + 63) // 64 * 64
    return found


def bodies(records: bytes) -> list[tuple[int, str]]:
    """(id, end of the path) of the store bodies that these records name."""
    found = []
    at = 0
    while at < len(records):
        length, _, _, kind, flags, _ = RECORD.unpack_from(records, at)
        if kind == PUBLISH and flags & IN_STORE:
            id, _, _, _, file = PUBLISH_IN_STORE.unpack_from(records, at + RECORD.size)
            own = f"/{file & ~OWN_FILE}.msg"
            found.append((id, own if file & OWN_FILE else f"/{file}.rdq"))
        at += length
    return found


# ---- what must hold ------------------------------------------------------------------------------


def log_writes(calls: list[Call]) -> list[Call]:
    return [c for c in calls if c.name == "pwrite64" and "/wal/" in c.path and groups(c)]


def is_synced(calls: list[Call], written: Call, before: int) -> bool:
    """Whether an fdatasync of that file began after the write returned, and returned by then."""
    return any(
        c.name == "fdatasync" and c.path == written.path
        and c.began > written.returned and c.returned < before
        for c in calls
    )  # fmt: skip


def early_confirms(calls: list[Call]) -> list[int]:
    """LSNs whose confirm began before an fdatasync that covers their bytes had returned."""
    carrier = {
        first + i: write
        for write in log_writes(calls)
        for first, count, _ in groups(write)
        for i in range(count)
    }
    early = []
    for call in calls:
        if call.name == "write" and call.data.startswith(b"confirm "):
            lsn = int(call.data.split()[1])
            if lsn not in carrier or not is_synced(calls, carrier[lsn], call.began):
                early.append(lsn)
    return early


def early_names(calls: list[Call]) -> list[int]:
    """Ids of store bodies that the log named before an fdatasync of them had returned."""
    early = []
    stores = [c for c in calls if c.name == "pwrite64" and "/msg_store_persistent/" in c.path]
    for write in log_writes(calls):
        for _, _, records in groups(write):
            for id, ending in bodies(records):
                key = struct.pack(">Q", id)
                carriers = [c for c in stores if c.path.endswith(ending) and key in c.data]
                carriers = [c for c in carriers if c.returned < write.began]
                if not carriers or not is_synced(calls, carriers[-1], write.began):
                    early.append(id)
    return early


def test_no_confirm_precedes_the_sync_of_its_bytes(calls: list[Call]) -> None:
    confirms = [c for c in calls if c.name == "write" and c.data.startswith(b"confirm ")]
    assert len(confirms) == 20 + 100 + 300 + 4 + 24
    assert early_confirms(calls) == []


def test_no_body_is_named_before_it_is_synced(calls: list[Call]) -> None:
    named = [b for w in log_writes(calls) for _, _, records in groups(w) for b in bodies(records)]
    assert {ending[-4:] for _, ending in named} == {".rdq", ".msg"}
    assert len(named) == 3 + 16
    assert early_names(calls) == []


def test_a_group_of_a_hundred_confirms_costs_one_sync(calls: list[Call]) -> None:
    begin, end = (
        next(c.began for c in calls if c.name == "write" and c.data.startswith(marker))
        for marker in (b"group begins", b"group ends")
    )
    inside = [c for c in calls if begin < c.began < end]
    assert sum(c.data.startswith(b"confirm ") for c in inside) == 100
    assert sum(c.name == "fdatasync" for c in inside) == 1
    writes = [len(c.data) for c in inside if c.name == "pwrite64"]
    assert writes[0] > 64
    assert writes[1:] in ([64], [64, 64]), "what says that it is durable: here, and ahead"


def test_what_these_tests_would_say_of_an_engine_that_does_not_sync(calls: list[Call]) -> None:
    """The checker itself: without the syncs of a file, or with late ones, it finds all of them."""
    no_log_sync = [c for c in calls if not (c.name == "fdatasync" and "/wal/" in c.path)]
    assert len(early_confirms(no_log_sync)) == 448
    no_store_sync = [c for c in calls if not (c.name == "fdatasync" and "/msg_store" in c.path)]
    assert len(early_names(no_store_sync)) == 19
    late = [c._replace(returned=c.returned + 1000) if c.name == "fdatasync" else c for c in calls]
    assert early_confirms(late)
    early = [c._replace(began=0) if c.name == "fdatasync" else c for c in calls]
    assert early_confirms(early)
