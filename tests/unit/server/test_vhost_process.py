"""What a vhost's process does before it serves. The process as a whole: tests/server."""

import subprocess
import sys

ROOM = """
import os
from penstock.server.vhost_process import make_room_for_files

def size():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("FDSize:"))

before = size(), sorted(os.listdir("/proc/self/fd"))
make_room_for_files(before[0] * 4)
after = size(), sorted(os.listdir("/proc/self/fd"))
print(before[1] == after[1], after[0] >= before[0] * 4)
"""


def test_the_kernels_table_is_made_large_and_no_file_stays_open() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROOM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True True\n"
