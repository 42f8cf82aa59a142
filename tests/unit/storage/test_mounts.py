"""The kind of a path by a table of mounts."""

import pytest

from penstock.storage.files.filesystem import NETWORK_KINDS, mounted_kind

TABLE = rb"""rootfs / rootfs rw 0 0
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/x /srv/data nfs4 rw 0 0
tmpfs /srv/data/ram tmpfs rw 0 0
/dev/vdb /mnt/with\040blank\134slash xfs rw 0 0
me@host: /home/me/far fuse.sshfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/proc", "proc"),
        ("/process", "ext4"),
        ("/srv/data", "nfs4"),
        ("/srv/data/queue", "nfs4"),
        ("/srv/data/ram/queue", "tmpfs"),
        ("/srv/database", "ext4"),
        ("/mnt/with blank\\slash/x", "xfs"),
        ("/home/me/far/x", "fuse.sshfs"),
    ],
)
def test_the_longest_mount_point_decides(path: str, kind: str) -> None:
    assert mounted_kind(TABLE, path) == kind


def test_an_empty_table_tells_nothing() -> None:
    assert mounted_kind(b"", "/x") == "unknown"


def test_network_kinds() -> None:
    assert {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs"} <= NETWORK_KINDS
    assert not NETWORK_KINDS & {"ext4", "xfs", "btrfs", "tmpfs", "zfs", "overlay", "unknown"}
