"""Log and messages are on two disks, and one of them is full: publishers wait for that one, and it
is named; acknowledgements go on, and publishers go on when there is room again.

Simulated, with disks of two sizes. A broker on two real file systems is in test_two_volumes.py.
"""

import pytest

from penstock.errors import DiskFullError
from penstock.storage.files.options import StorageOptions
from tests.crash.two_disks import DATA, ROOTS, PlacedDriver, make
from tests.helpers.two_disks import SizedDisks
from tests.helpers.vhost_rig import TakingChannel, VHostRig
from tests.robustness.test_small_volume import HEALS_S, KIB, SCALED, advance

LARGE, SMALL = 10_000 * KIB, 200 * KIB
DISKS = {"fast": "/fast/log", "big": "/big/spill"}


def rig_on(sizes: dict[str, int], storage: StorageOptions = SCALED) -> VHostRig:
    fs = SizedDisks(seed=1)
    make(fs, ROOTS)
    fs.sizes = sizes
    return VHostRig(fs, memory_bytes=64 * KIB, storage=storage, path=PlacedDriver.path)


def disk_of(rig: VHostRig) -> SizedDisks:
    assert isinstance(rig.fs, SizedDisks)
    return rig.fs


@pytest.mark.parametrize("full", DISKS)
@pytest.mark.parametrize("is_taken_all", [True, False])
def test_publishers_wait_for_the_full_one_and_go_on(full: str, is_taken_all: bool) -> None:
    rig = rig_on({"fast": LARGE, "big": LARGE, full: SMALL})
    queue = rig.queue("q")
    rig.tick(0.1)
    for _ in range(4):
        published = 0
        if full == "fast":  # the log alone does not fill a disk: somebody else does
            advance(rig, 1)
            disk_of(rig).sizes["fast"] = disk_of(rig).used_on("fast") + 40 * KIB
            advance(rig, 2)
        while not rig.vhost.blocked_reason:
            try:
                rig.put(queue, b"x" * 900)
            except DiskFullError:
                break
            published += 1
            if published % 5 == 0:
                advance(rig, 0.05)
            assert published < 2000, "the disk is never full"
        assert rig.told("disk_full")[-1].startswith(DISKS[full]), rig.told("disk_full")
        with pytest.raises(DiskFullError, match=f"^{DISKS[full]}: "):
            rig.put(queue, b"no")
        advance(rig, 3)
        left = 0 if is_taken_all else min(10, queue.len())
        while queue.len() > left:  # acknowledgements always go on
            got = queue.amq.fetch()
            assert got is not None
            queue.amq.ack([got.tag])
            if queue.len() % 20 == 0:
                advance(rig, 0.05)
        if full == "fast":
            disk_of(rig).sizes["fast"] = LARGE
        advance(rig, HEALS_S)
        assert rig.vhost.blocked_reason == ""
        assert rig.told("disk_free")
        rig.put(queue, b"goes on")
    assert rig.vhost.engine.failed is None
    assert not rig.told("internal_error")
    assert not rig.told("queue_restarted")


def test_there_is_a_reserve_on_each_disk_and_a_checkpoint_uses_it() -> None:
    """Somebody else fills the disk of the messages to the last byte: the checkpoint that frees what
    was consumed still has room there."""
    rig = rig_on({"fast": LARGE, "big": LARGE})
    queue = rig.queue("q")
    for _ in range(40):
        rig.put(queue, b"x" * 300)
    advance(rig, 3)
    fs = disk_of(rig)
    reserve = rig.vhost.engine.journal.reserve
    directory = PlacedDriver.path.rpartition("/")[2]
    places = [f"/fast/log/{directory}/reserve", f"/big/spill/{directory}/spill_reserve"]
    assert [fs.size(place) for place in places] == [reserve.bytes] * 2
    assert reserve.bytes > 0
    fs.sizes["big"] = fs.used_on("big")
    queue.amq.ack([queue.amq.fetch().tag for _ in range(20)])  # type: ignore[union-attr]
    assert rig.vhost.engine.checkpoint()
    assert [fs.size(place) for place in places] == [0, 0]
    fs.sizes["big"] = LARGE
    advance(rig, HEALS_S)
    assert rig.vhost.blocked_reason == ""
    assert [fs.size(place) for place in places] == [reserve.bytes] * 2


@pytest.mark.parametrize("full", DISKS)
def test_consumers_are_served_while_one_disk_has_no_room_at_all(full: str) -> None:
    rig = rig_on({"fast": LARGE, "big": LARGE})
    queue = rig.queue("q")
    for n in range(50):
        rig.put(queue, b"%d" % n + b"x" * 500)
    advance(rig, 3)
    fs = disk_of(rig)
    fs.sizes[full] = fs.used_on(full) - 100 * KIB  # and whatever is freed is others' at once
    advance(rig, 4)
    assert rig.vhost.blocked_reason == "disk"
    channel = TakingChannel()
    rig.consume(queue, channel, no_ack=True)
    advance(rig, 2)
    assert len(channel.bodies()) == 50
    fs.sizes[full] = LARGE
    advance(rig, HEALS_S)
    assert rig.vhost.blocked_reason == ""
    rig.restart()
    assert rig.vhost.engine.state.queues


@pytest.mark.parametrize("full", DISKS)
def test_a_start_on_a_full_disk_names_it(full: str) -> None:
    rig = rig_on({"fast": LARGE, "big": LARGE})
    queue = rig.queue("q")
    rig.put(queue, *[b"%d" % i * 300 for i in range(30)])
    rig.fs = rig.fs.crash("killed")
    disks = SizedDisks(seed=1)
    disks.disk = rig.fs.disk
    for name in disks.names():  # what the reserve had somebody else has taken
        if name.endswith("reserve"):
            disks.open(name).truncate(0)
    disks.sizes = {full: disks.used_on(full)}
    rig.fs = disks
    with pytest.raises(DiskFullError, match=f"^{DISKS[full]}.*: 0 bytes free"):
        rig._open()
    disks.sizes = {}
    rig.vhost = rig._open()
    assert DATA in rig.path
