"""Two steps of a pipeline, each message in a transaction: lost never, and counted once.

    python examples/embedded_pipeline.py [DIRECTORY]

Lines of text go into `lines`; step one takes a line and puts its words into `words`; step two
counts them and keeps its sums as one message in `sums`, replaced with each batch. Taking and
putting are one transaction each, so the program may be killed at any moment and run again: the sums
come out right.
"""

import json
import sys

import penstock

TEXT = """the water comes down from the reservoir
the water turns the wheel
the wheel turns the mill"""


def split(box: penstock.Box) -> None:
    """Step one."""
    lines, words = box.queue("lines"), box.queue("words")
    while len(lines):
        with box.transaction():
            job = lines.get()
            words.put_many([word.encode() for word in job.body.decode().split()])
            job.ack()


def count(box: penstock.Box, batch: int = 4) -> dict[str, int]:
    """Step two."""
    words, sums = box.queue("words"), box.queue("sums")
    while True:
        with box.transaction():
            jobs = words.get_many(batch, timeout=0)
            before = sums.get_many(1, timeout=0)
            totals: dict[str, int] = json.loads(before[0].body) if before else {}
            for job in jobs:
                word = job.body.decode()
                totals[word] = totals.get(word, 0) + 1
            words.ack(jobs)
            sums.ack(before)
            sums.put(json.dumps(totals).encode())
        if not jobs:
            return totals


def main(directory: str) -> None:
    with penstock.open(directory) as box:
        lines = box.queue("lines")
        if not len(lines) and not len(box.queue("words")) and not len(box.queue("sums")):
            lines.put_many([line.encode() for line in TEXT.splitlines()])
        split(box)
        for word, n in sorted(count(box).items(), key=lambda pair: (-pair[1], pair[0])):
            print(f"{n} {word}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pipeline.d")
