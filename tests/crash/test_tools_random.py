"""The tools on random lives: whatever went on before, and however it ended.

verify finds nothing wrong in a store that recovery is content with, salvage takes all of it, and a
backup that is taken while the traffic goes on is the store as of one moment of it.
"""

import random

import pytest

from penstock.clock import ManualClock
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import FreshDirectory
from penstock.storage.tools.backup import Backup, backup
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.tiny_engine import PATH, VARIANTS, open_engine
from tests.helpers.tool_stores import vhost_path
from tests.helpers.vhost_driver import Driver

LIVES = 12
STEPS = 60
EVERY = 10  # steps between two looks
OPS = (
    "publish", "publish", "publish", "spool", "ack", "ack", "tx", "begin", "commit", "move", "roll",
    "purge", "deliver", "requeue", "page_out", "checkpoint", "begin_checkpoint", "combine", "reap",
    "sync", "idle", "tick", "declare_missing", "delete", "publish_transient", "prepare_ahead",
)  # fmt: skip

Content = dict[bytes, list[tuple[bytes, bytes, int]]]


def content(engine: StorageEngine) -> Content:
    """queue -> (header, body, attempts) in order."""
    found: Content = {}
    for queue in engine.state.queues.values():
        messages = found[queue.name] = []
        for seq in live_seqs(queue):
            message = engine.entry(queue, seq).message
            body = message.body
            if body is None:
                body = engine.load_body(queue, seq, message)
            messages.append((message.header, body, queue.attempts.get(seq, 0)))
    return found


def opened(fs: FaultyFileSystem, seed: int, path: str = PATH) -> Content:
    """What recovery finds, in a copy."""
    copy = fs.crash("killed")
    if path == PATH:
        return content(open_engine(copy, seed, VARIANTS[seed % len(VARIANTS)]))
    directory = vhost_path(copy, path)
    name = copy.read(directory + "/.vhost").removesuffix(b"\n")
    return content(StorageEngine(copy, directory, name, clock=ManualClock(), rng=random.Random(1)))


def look(fs: FaultyFileSystem, seed: int, mode: str) -> None:
    """verify and salvage of what a crash has left. Of a tail that has holes salvage may take more
    than recovery does, never less that was confirmed: it needs no chain between log files."""
    report = verify(fs.crash("killed"), PATH)
    assert report.is_fine, report.problems
    salvaged = salvage(fs, PATH, "/new", clock=ManualClock(), rng=random.Random(seed))
    assert not salvaged.lost
    assert mode == "subset" or opened(fs, seed, "/new") == opened(fs, seed)
    assert verify(fs.crash("lost"), "/new").is_fine


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(LIVES))
def test_verify_and_salvage(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(FaultyFileSystem(seed=seed), seed, options=VARIANTS[seed % len(VARIANTS)])
    driver.declare_missing()
    for step in range(STEPS):
        driver.step(rng.choice(OPS))
        if step % EVERY == 0:
            mode = rng.choice(("killed", "lost", "kept", "subset"))
            look(driver.fs.crash(mode, rng), seed, mode)
    driver.close()
    look(driver.fs.crash("lost", rng), seed, "lost")


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(LIVES))
def test_backup(seed: int) -> None:
    """Between any two of its steps the traffic goes on; its content is that of one moment."""
    rng = random.Random(seed)
    driver = Driver(FaultyFileSystem(seed=seed), seed, options=VARIANTS[seed % len(VARIANTS)])
    driver.declare_missing()
    for _ in range(STEPS // 2):
        driver.step(rng.choice(OPS))
    driver.finish_checkpoint()
    engine = driver.engine
    fresh = FreshDirectory(engine.fs, "/copy", "a backup")
    work = Backup(engine, fresh)
    moments = [content(engine)]
    while work.step():
        if not work.checkpoint_number:
            moments.append(content(engine))
        driver.step(rng.choice(OPS))
        moments.append(content(engine))
    fresh.finish()
    fs = driver.fs.crash("lost", rng)
    assert verify(fs, "/copy").is_fine
    assert opened(fs, seed, "/copy") in moments
    driver.close()
    assert verify(driver.fs.crash("lost", rng), PATH).is_fine
    again = driver.fs.crash("killed")
    backup([open_engine(again, seed, VARIANTS[seed % len(VARIANTS)])], "/closed")
    assert opened(again, seed, "/closed") == opened(driver.fs, seed)
