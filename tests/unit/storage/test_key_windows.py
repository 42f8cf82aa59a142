"""KeyWindow: the keys that a queue or an exchange has seen, live, in a checkpoint and in replay."""

import random

import pytest

from penstock.clock import ManualClock
from penstock.storage.files.durability import DISK
from penstock.storage.index.key_windows import NEVER, PAST_MAX, KeyWindow, KeyWindows, decode
from penstock.storage.index.routing_table import DurableExchange, delete_exchange
from penstock.storage.tools.dump import dump
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.verify import verify
from tests.helpers.engine_rig import EngineRig
from tests.helpers.tiny_engine import PATH, VHOST
from tests.helpers.tool_stores import open_vhost, vhost_path


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def numbers(window: KeyWindow) -> list[int]:
    return [int.from_bytes(one, "big") for one in window.keys]


def section_of(window: KeyWindow, added: int | None = None) -> list[int]:
    data = window.encode(window.added if added is None else added)
    return [int.from_bytes(one, "big") for one, _ in decode(data)[1]]


def test_a_key_is_known_until_its_time_is_over() -> None:
    window = KeyWindow(b"qa")
    window.add(key(1), 100)
    window.add(key(2), NEVER)
    assert window.has(key(1), 99)
    assert not window.has(key(1), 100)
    assert window.has(key(2), NEVER - 1)
    assert not window.has(key(3), 0)
    window.forget_past(100)
    assert numbers(window) == [2]


def test_many_keys_whose_time_is_over_go_a_slice_at_a_time() -> None:
    window = KeyWindow(b"qa")
    for n in range(2 * PAST_MAX + 1):
        window.add(key(n), 100)
    for left in (PAST_MAX + 1, 1, 0):
        window.forget_past(100)
        assert len(window.keys) == left
    assert not window.has(key(0), 100)


def test_the_oldest_keys_give_way() -> None:
    window = KeyWindow(b"qa")
    for n in range(5):
        window.add(key(n), NEVER)
    assert numbers(window) == [0, 1, 2, 3, 4]  # the size is not known yet
    window.set_up(3, None)
    window.add(key(5), NEVER)
    window.add(key(3), NEVER)  # its time was over: it is new
    assert numbers(window) == [4, 5, 3]


def test_a_section_is_as_of_the_cut() -> None:
    windows = KeyWindows()
    window = windows.of(b"qa")
    window.set_up(3, None)
    for n in range(3):
        window.add(key(n), NEVER)
    ((captured, added),) = windows.capture()
    assert captured is window
    window.add(key(3), NEVER)
    assert section_of(window, added) == [1, 2]  # what the later one pushed out goes in replay too
    for n in range(4, 9):
        window.add(key(n), NEVER)
    assert section_of(window, added) == []


def test_keys_of_messages_that_are_not_logged_are_in_no_section() -> None:
    window = KeyWindow(b"qa")
    window.add(key(1), NEVER, is_logged=False)
    window.add(key(2), NEVER)
    assert section_of(window) == [2]
    window.add(key(1), NEVER)
    assert section_of(window) == [2, 1]


def test_a_key_that_comes_twice_while_a_checkpoint_is_made_takes_no_older_one_from_it() -> None:
    windows = KeyWindows()
    window = windows.of(b"qa")
    window.add(key(1), NEVER)
    window.add(key(2), 10)
    ((_, added),) = windows.capture()
    window.add(key(3), 10)
    for until_ms in (20, 30):  # the time of the one before was over
        window.add(key(2), until_ms)
        window.add(key(3), until_ms)
    assert section_of(window, added) == [1]


@pytest.mark.parametrize("cut", [1, 9, 17, 30])
def test_a_section_that_is_cut_off_is_refused(cut: int) -> None:
    window = KeyWindow(b"qa")
    window.add(key(1), NEVER)
    with pytest.raises(ValueError, match="a window of 1 keys has"):
        decode(window.encode(1)[:-cut] if cut < 24 else window.encode(1) + b"x")


def seen(rig: EngineRig) -> dict[bytes, list[int]]:
    return {name: numbers(window) for name, window in rig.engine.windows.by_name.items()}


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_keys_outlive_a_crash_with_their_messages(has_checkpoint: bool) -> None:
    rig = EngineRig()
    queue = rig.engine.declare_queue(b"a")
    for n in range(3):
        transaction = rig.engine.begin()
        transaction.publish([queue], b"", b"m%d" % n)
        transaction.see(rig.engine.windows.of(b"qa"), key(n), NEVER)
        transaction.commit(DISK)
        if has_checkpoint and n == 1:
            assert rig.engine.checkpoint()
            rig.finish_checkpoint()
    rig.settle()
    rig.crash()
    assert seen(rig) == {b"qa": [0, 1, 2]}
    assert rig.engine.queue(b"a").count == 3


def test_a_key_is_not_seen_if_its_message_is_not_there() -> None:
    rig = EngineRig()
    queue = rig.engine.declare_queue(b"a")
    transaction = rig.engine.begin()
    transaction.publish([queue], b"", b"m")
    transaction.see(rig.engine.windows.of(b"qa"), key(1), NEVER)
    transaction.rollback()
    assert seen(rig) == {b"qa": []}


def test_a_deleted_queue_or_exchange_has_seen_nothing() -> None:
    rig = EngineRig()
    engine = rig.engine
    queue = engine.declare_queue(b"a")
    engine.apply_topology(DurableExchange(b"x", b"fanout").record())
    for name in (b"qa", b"ex", b"eother"):
        engine.see(name, key(1), NEVER)
    engine.delete_queue(queue)
    engine.apply_topology(delete_exchange(b"x"))
    assert list(seen(rig)) == [b"eother"]
    rig.settle()
    rig.crash()
    assert list(seen(rig)) == [b"eother"]


def test_the_tools_know_windows() -> None:
    rig = EngineRig()
    rig.engine.declare_queue(b"a")
    gone = rig.engine.declare_queue(b"gone")
    for name, n in ((b"qa", 1), (b"qgone", 2), (b"qa", 3)):
        rig.engine.see(name, key(n), NEVER)
    assert rig.engine.checkpoint()
    rig.finish_checkpoint()
    rig.engine.see(b"qa", key(4), NEVER)
    rig.engine.delete_queue(gone)
    rig.settle()
    (name,) = [one for one in rig.fs.list(PATH) if one.startswith("checkpoint-")]
    text = "\n".join(dump(rig.fs, f"{PATH}/{name}"))
    assert "window b'qa' keys" in text
    assert verify(rig.fs.crash("kept", random.Random(1)), PATH).is_fine
    fs = rig.fs.crash("kept", random.Random(1))
    report = salvage(fs, PATH, "/new", clock=ManualClock(), rng=random.Random(2))
    assert not report.losses
    engine = open_vhost(fs, vhost_path(fs, "/new"), VHOST)
    assert [numbers(window) for window in engine.windows.by_name.values()] == [[1, 3, 4]]
