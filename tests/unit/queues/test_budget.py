"""How much memory there is, and how sizes are written."""

import mmap
import os
from collections.abc import Mapping, Sequence

import pytest

from penstock.errors import OptionError
from penstock.options import format_bytes, parse_bytes
from penstock.queues.budget import ASSUMED_BYTES, machine_memory, process_usage, rss_bytes
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.faulty_filesystem import FaultyFileSystem

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:        1234 kB\n"
NO_LIMIT_V1 = "9223372036854771712\n"
V2_MOUNT = "41 31 0:38 {root} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 {root} {point} rw - cgroup cgroup rw,memory\n"
V1_CPU_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


def machine(files: Mapping[str, str | bytes]) -> FaultyFileSystem:
    """A file system that holds just these files."""
    fs = FaultyFileSystem()
    for path, content in files.items():
        parts = path.strip("/").split("/")
        for n in range(1, len(parts)):
            fs.mkdir("/" + "/".join(parts[:n]))
        file = fs.open(path, create=True)
        file.pwrite(content.encode() if isinstance(content, str) else content, 0)
        file.close()
    return fs


def v2(group: str, limits: dict[str, str], root: str = "/") -> FaultyFileSystem:
    return machine(
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": f"0::{group}\n",
            "/proc/self/mountinfo": V2_MOUNT.format(root=root, point="/sys/fs/cgroup"),
        }
        | {f"/sys/fs/cgroup{path}/memory.max": limit for path, limit in limits.items()}
    )


def test_without_control_groups_it_is_the_ram() -> None:
    assert machine_memory(machine({"/proc/meminfo": MEMINFO})) == (16 * GIB, "/proc/meminfo")


def test_where_nobody_tells_two_gib_are_assumed() -> None:
    assert machine_memory(machine({})) == (ASSUMED_BYTES, "assumed")
    assert machine_memory(machine({"/proc/meminfo": "MemTotal: plenty\n"})) == (2 * GIB, "assumed")


def test_the_limit_of_the_own_group_counts() -> None:
    fs = v2("/box/worker", {"/box/worker": f"{GIB}\n", "/other": "1000\n"})
    assert machine_memory(fs) == (GIB, "/sys/fs/cgroup/box/worker/memory.max")


def test_a_group_above_limits_too() -> None:
    fs = v2("/box/worker", {"/box/worker": "max\n", "/box": f"{2 * GIB}\n"})
    assert machine_memory(fs) == (2 * GIB, "/sys/fs/cgroup/box/memory.max")
    fs = v2("/box/worker", {"/box/worker": f"{3 * GIB}\n", "/box": f"{2 * GIB}\n"})
    assert machine_memory(fs)[0] == 2 * GIB


@pytest.mark.parametrize("limit", ["max\n", "0\n", "", "-1\n", "²\n", "many\n", f"{64 * GIB}\n"])
def test_what_limits_nothing_is_left_out(limit: str) -> None:
    assert machine_memory(v2("/box", {"/box": limit})) == (16 * GIB, "/proc/meminfo")


@pytest.mark.parametrize(
    ("group", "root"),
    [
        ("/", "/"),  # a container with a namespace of its own
        ("/docker/1f", "/docker/1f"),  # the host's path, and the mount begins at it
        ("/docker/1f", "/docker/2e"),  # a path of the host that cannot be seen from here
        ("/../..", "/"),  # the process was moved out of its namespace
    ],
)
def test_in_a_container_the_root_of_the_mount_is_the_own_group(group: str, root: str) -> None:
    assert machine_memory(v2(group, {"": f"{GIB}\n"}, root))[0] == GIB


def test_a_group_below_the_root_of_the_mount_is_found() -> None:
    assert machine_memory(v2("/docker/1f/job", {"/job": f"{GIB}\n"}, "/docker/1f"))[0] == GIB


def test_version_1_and_its_absurd_number() -> None:
    files: dict[str, str | bytes] = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "5:cpu:/\n4:hugetlb,memory:/api/07\n0::/\n",
        "/proc/self/mountinfo": V1_CPU_MOUNT
        + V1_MOUNT.format(root="/", point="/sys/fs/cgroup/memory"),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "/sys/fs/cgroup/memory/api/07/memory.limit_in_bytes": NO_LIMIT_V1,
        "/sys/fs/cgroup/cpu/memory.limit_in_bytes": "1000\n",
    }
    assert machine_memory(machine(files))[0] == 16 * GIB
    files["/sys/fs/cgroup/memory/api/memory.limit_in_bytes"] = f"{GIB}\n"
    expected = (GIB, "/sys/fs/cgroup/memory/api/memory.limit_in_bytes")
    assert machine_memory(machine(files)) == expected


def test_where_the_ram_is_not_told_a_limit_still_counts() -> None:
    fs = v2("/box", {"/box": f"{GIB}\n"})
    fs.unlink("/proc/meminfo")
    assert machine_memory(fs)[0] == GIB


def test_a_mount_point_with_a_blank() -> None:
    fs = machine(
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": V2_MOUNT.format(root="/", point="/sys/fs/c\\040g"),
            "/sys/fs/c g/memory.max": f"{GIB}\n",
        }
    )
    assert machine_memory(fs) == (GIB, "/sys/fs/c g/memory.max")


@pytest.mark.parametrize("lines", ["nonsense", ":::", "1 2 3", "36 - cgroup2\n", "0::"])
def test_files_in_another_shape_are_left_out(lines: str) -> None:
    files: dict[str, str | bytes] = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": lines,
        "/proc/self/mountinfo": lines,
    }
    assert machine_memory(machine(files))[0] == 16 * GIB


def test_resident_bytes_are_pages_by_their_size() -> None:
    fs = machine({"/proc/self/statm": "3801 100 1492 1 0 1841 0\n"})
    assert rss_bytes(fs) == 100 * mmap.PAGESIZE
    assert rss_bytes(machine({"/proc/self/statm": "?"})) is None
    assert rss_bytes(machine({})) is None


@pytest.mark.real
class Listing(OsFileSystem):
    """Notes which directories are listed; old: the kernel does not count what is in one."""

    def __init__(self, *, old: bool) -> None:
        super().__init__(0)
        self.old = old
        self.listed: list[str] = []

    def size(self, path: str) -> int:
        return 0 if self.old else super().size(path)

    def list(self, path: str) -> Sequence[str]:
        self.listed.append(path)
        return super().list(path)


@pytest.mark.skipif(not os.stat("/proc/self/fd").st_size, reason="Linux before 6.2")
def test_descriptors_are_counted_without_a_list_of_them() -> None:
    counts = []
    for old in (False, True):
        fs = Listing(old=old)
        found = process_usage(fs, os.getpid())
        assert found is not None
        counts.append(found[2])
        assert bool(fs.listed) == old
    assert 0 <= counts[1] - counts[0] <= 1  # that of the list itself


def test_this_machine_has_more_than_this_process_takes() -> None:
    fs = OsFileSystem(workers=0)
    total, source = machine_memory(fs)
    resident = rss_bytes(fs)
    assert source == "assumed" or resident is not None
    assert 1 << 20 < (resident or 1 << 21) < total


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("16 MiB", 16 << 20),
        ("16MiB", 16 << 20),
        (" 16  mib ", 16 << 20),
        ("64MB", 64_000_000),
        ("1.5 GiB", 3 << 29),
        ("2 kB", 2000),
        ("2 TiB", 2 << 40),
        ("512 B", 512),
        (1048576, 1048576),
        ("1048576", 1048576),
        ("0", 0),
        (0, 0),
        ("max", 1000),
        ("MAX", 1000),
        ("0.4", 400),
        (0.4, 400),
        (1.0, 1000),
        ("1.0", 1000),
        ("0.0", 0),
    ],
)
def test_sizes_as_people_write_them(given: str | int | float, expected: int) -> None:
    assert parse_bytes("memory", given, 1000) == expected


@pytest.mark.parametrize(
    "given",
    [
        "",
        "MiB",
        "16 MiBs",
        "16 M",
        "-1",
        "-1 MiB",
        "1e3",
        "1.",
        ".5",
        "1.5",
        "1,5 GiB",
        "0x10",
        "١٦ MiB",
        "1.٤ MiB",
        "nan",
        "inf",
        "minmax",
        "16 Mi B",
        "5000000 TiB",
        "9" * 400,
        -1,
        1 << 62,
        True,
        1.5,
        -0.1,
        float("nan"),
        float("inf"),
    ],
)
def test_what_is_no_size_is_an_option_error(given: str | int | float) -> None:
    with pytest.raises(OptionError, match="memory") as caught:
        parse_bytes("memory", given, 1000)
    assert caught.value.given is given


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (16 << 20, "16 MiB"),
        (3 << 29, "1.5 GiB"),
        ((1 << 20) - 1, "1 MiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_as_people_read_them(number: int, expected: str) -> None:
    assert format_bytes(number) == expected


@pytest.mark.parametrize("number", [1, 1 << 10, 3 << 19, 7 << 30, 1 << 40])
def test_what_is_shown_can_be_given(number: int) -> None:
    assert parse_bytes("memory", format_bytes(number), 1) == number
