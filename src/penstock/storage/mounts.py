"""Which kind of file system a path lies on, by the kernel's table of mounts.

Asked once, when a data directory is opened: on a network file system a lock may be
granted twice and a sync may end at another machine's cache, so Penstock refuses to
run there unless told otherwise. The table is Linux's /proc/mounts, one mount a line:

    device  mount-point  kind  options  0  0        blank-separated; blank, tab, newline and
                                                    backslash in a field as \\ and 3 octal digits

Elsewhere nothing tells, and the kind is "unknown". Pure functions; the table is read
by ``filesystem``.
"""

import os
from typing import Final

UNKNOWN_KIND: Final = "unknown"

# Kinds on which neither a lock nor a sync means what it means on a local disk. FUSE kinds
# are listed one by one: most FUSE mounts are local.
# fmt: off
NETWORK_KINDS: Final = frozenset({
    "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3",
    "smbfs", "virtiofs",
    "fuse.ceph", "fuse.ceph-fuse", "fuse.curlftpfs", "fuse.davfs", "fuse.gcsfuse",
    "fuse.glusterfs", "fuse.juicefs", "fuse.mfs", "fuse.moosefs", "fuse.rclone", "fuse.s3fs",
    "fuse.seaweedfs", "fuse.sshfs",
})
# fmt: on


def mounted_kind(table: bytes, path: str) -> str:
    """Kind of file system of an absolute path, by the text of /proc/mounts.

    The longest mount point that holds the path decides; of equal ones the last, which was
    mounted over the others. "unknown" when none does.
    """
    wanted = os.fsencode(path)
    best, kind = b"", UNKNOWN_KIND
    for line in table.splitlines():
        fields = line.split(b" ")
        if len(fields) < 3:
            continue
        point = _unescape(fields[1])
        is_inside = point == b"/" or wanted == point or wanted.startswith(point + b"/")
        if is_inside and len(point) >= len(best):
            best, kind = point, os.fsdecode(fields[2])
    return kind


def _unescape(field: bytes) -> bytes:
    """A field of the table as it is meant; a backslash always begins three octal digits."""
    head, *rest = field.split(b"\\")
    return head + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)
