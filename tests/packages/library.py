"""A program with the library alone: what `pip install penstock` must be enough for.

python tests/packages/library.py DIRECTORY
"""

import sys

import penstock
import penstock.aio

with penstock.open(sys.argv[1], memory="1 MiB") as box:
    box.queue("letters").put(b"Dear Ada")
    with box.queue("letters").get(timeout=5) as job:
        print(job.body.decode())
    box.stream("events").append(b"one")
try:
    penstock.open("amqp://localhost:1/")
except penstock.UnreachableError:
    print("no broker")
