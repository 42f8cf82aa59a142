"""Users, vhosts, permissions, limits and parameters, crashed at every operation on their files.

Each change is there whole after a crash, or not at all; what its call has returned is there. So it
is too if the start after the crash crashes.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.access.users import Tables, Users
from penstock.storage.files.user_store import UserStore
from tests.crash.images import MODES
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.sqlite_operations import mirrored

pytestmark = pytest.mark.crash

ALL = (".*", ".*", ".*")
GIVEN = Tables(
    users={"d": ("hash", ("monitoring",)), "e": ("hash", ())},
    vhosts={"w": {"description": "given"}, "x": {}},
    permissions={("d", "w"): ALL, ("e", "x"): ALL},
    topics={("d", "w", "amq.topic"): ("a", "b")},
    limits={"user": {"d": {"max-channels": 5}}, "vhost": {"w": {"max-queues": 7}}},
    parameters={"given": [1]},
)
CHANGES: tuple[Callable[[Users], Any], ...] = (
    lambda users: users.add_user("a", b"secret", ["management"]),
    lambda users: users.add_user("b", b"x" * 5000, [f"tag{n}" for n in range(900)]),
    lambda users: users.add_vhost("v", {"description": "d" * 1000}),
    lambda users: users.vhost_made("v"),
    lambda users: users.set_permissions("a", "v", "a.*", "b.*", "c.*"),
    lambda users: users.set_permissions("b", "v", "(" + "x" * 800 + ")", "", ""),
    lambda users: users.set_topic_permissions("a", "v", "amq.topic", "w", "r"),
    lambda users: users.set_topic_permissions("a", "v", "other", "w", "r"),
    lambda users: users.set_limits("user", "a", {"max-channels": 3}),
    lambda users: users.set_limits("vhost", "v", {"max-queues": 3}),
    lambda users: users.set_global_parameter("p", {"text": "t" * 6000}),
    lambda users: users.change_password("a", b"other"),
    lambda users: users.set_user_tags("b", []),
    lambda users: users.stop_vhost("v", 1),
    lambda users: users.start_vhost("v"),
    lambda users: users.put(GIVEN),
    lambda users: users.clear_limits("user", "a"),
    lambda users: users.clear_topic_permissions("a", "v"),
    lambda users: users.clear_permissions("b", "v"),
    lambda users: users.clear_global_parameter("p"),
    lambda users: users.init("root", b"secret", is_forced=False),
    lambda users: users.set_loaded("digest"),
    lambda users: users.delete_users(["a", "d", "e"]),
    lambda users: users.delete_vhost("v"),
    lambda users: users.vhost_gone("v"),
)


def stored(store: UserStore) -> str:
    """All that it holds."""
    limits = [store.limits(kind) for kind in ("user", "vhost")]
    users = {name: (hashed, sorted(tags)) for name, (hashed, tags) in store.users().items()}
    pairs = [sorted(store.permissions().items()), sorted(store.topic_permissions().items())]
    facts = store.fact("loaded_definitions")
    rows = [users, store.vhosts(), pairs, limits, store.parameters(), facts]
    return json.dumps(rows, sort_keys=True)


def started(root: Path, fs: FaultyFileSystem) -> str:
    """What is stored on this disk, and is again at the next start. The operations of the start are
    in the journal of fs."""
    root.mkdir()
    for name in fs.list("/"):
        (root / name).write_bytes(fs.read(f"/{name}"))
    found = []
    for _ in range(2):
        with mirrored(root, fs):
            store = UserStore(str(root / "node.db"))
            assert store.is_new == (not store.users())
            found.append(stored(store))
            store.close()
    assert found[0] == found[1]
    shutil.rmtree(root)
    return found[0]


def test_no_change_is_half_there_after_a_crash(tmp_path: Path, crash_images: int) -> None:
    """All points with one mode each, by turns, or with all modes if many images are asked for."""
    root = tmp_path / "live"
    root.mkdir()
    fs = FaultyFileSystem(journal=True)
    journal = fs.journal
    assert journal is not None
    with mirrored(root, fs):
        store = UserStore(str(root / "node.db"))
        journal.note(stored(store))
        users = Users(store, rng=random.Random(1), log2_n=1)
        journal.note(stored(store))
        for change in CHANGES:
            change(users)
            journal.note(stored(store))
        store.close()
    assert fs.read("/node.db") == (root / "node.db").read_bytes()
    rng = random.Random(2)
    notes = [str(state) for _, state in journal.notes]
    states = [notes[0], *notes]
    for at, image in journal.images():
        done = len(journal.noted(at))
        allowed = states[done : done + 2]
        for mode in MODES if crash_images >= 100_000 else (MODES[at % len(MODES)],):
            crashed = image.crash(mode, rng)
            again = crashed.start_journal()
            found = started(tmp_path / "again", crashed)
            assert found in allowed, (at, mode)
            if again.entries and rng.random() < 0.2:
                then = again.image(rng.randint(again.first, again.last)).crash("subset", rng)
                found = started(tmp_path / "again", then)
                assert found in allowed, (at, mode, "in the start")
