"""The worked example of RabbitMQ's variable_queue.md: a queue's five parts, by putting, getting and
a memory limit alone.

    python examples/embedded_worked_example.py

The document puts 25 messages into a queue, moves some of them out of RAM, and draws after each step
where all of them are. This program does it with the library's calls and nothing else: `put`, `get`,
and a `max_memory` that becomes smaller and larger. It prints the document's fourteen states.

The store has segments of eight messages, so that a few messages are more than one of them. The
paging policy is "even", which takes as many messages from q1 as from q4: the document does so
here, while the rule that RabbitMQ shipped, our policy "ratio", takes all of q1 first.
"""

import tempfile
from pathlib import Path

import penstock

ROW_BYTES = 32  # of RAM, for a message whose body is on disk
PARTS = ("q4", "q3", "q2", "q1", "delta")  # as the document lists them
IN_ORDER = ("q4", "q3", "delta", "q2", "q1")  # as they are delivered


class Example:
    """A queue of the box with the bodies 1, 2, 3 ... of a KiB each."""

    def __init__(self, box: penstock.Box) -> None:
        self.box = box
        self.queue = box.queue("example", policy="even")
        self.first = 1  # the next message to get
        self.last = 0  # the message that was put last
        self.message_bytes = 0  # of RAM, for a message whose body is there

    def put(self, n: int) -> None:
        """Put n messages. The limit, once there is one, grows with them: there is room for the
        message, and for one that is being delivered."""
        for _ in range(n):
            if self.message_bytes:
                self.set_limit(int(self.queue.info()["ram_bytes"]) + 2 * self.message_bytes)
            self.last += 1
            self.queue.put(str(self.last).encode().ljust(1024))
        self.show(f"publish {n}")

    def get(self, n: int) -> None:
        """Get and acknowledge n messages."""
        for _ in range(n):
            with self.queue.get(timeout=10) as job:
                assert int(job.body) == self.first, "messages come in order"
            self.first += 1
        self.show(f"fetch {n}")

    def keep(self, bodies: int, rows: int) -> None:
        """Set the limit to what so many messages take in RAM, and so many more whose bodies are on
        disk."""
        self.set_limit(bodies * self.message_bytes + rows * ROW_BYTES)
        self.show(f"room for {bodies} messages and for the places of {rows} more")

    def set_limit(self, limit: int) -> None:
        """Change the memory limit of the queue. min_memory=0: nothing is read before it is got."""
        self.box.queue("example", policy="even", max_memory=limit, min_memory=0)

    def show(self, title: str) -> None:
        """Print which messages each part holds: they are numbered in the order of delivery."""
        info = self.queue.info()
        parts: dict[str, list[int]] = {}
        first = self.first
        for part in IN_ORDER:
            count = int(info[part])
            parts[part] = list(range(first, first + count))
            first += count
        assert first == self.last + 1, "nothing is missing"
        print(f"{title}:")
        for part in PARTS:
            print(f"    {part:<5} {parts[part]}")


def main(directory: Path) -> None:
    with penstock.open(directory / "store", segment_slots=8, durability="os") as box:
        example = Example(box)
        example.put(9)
        example.put(1)
        example.message_bytes = int(example.queue.info()["ram_bytes"]) // 10
        example.keep(bodies=7, rows=3)  # q4 gives three: alphas become betas
        example.put(5)  # q3 is not empty, so they wait in q1
        example.keep(bodies=6, rows=9)  # q1 and q4 give three each
        example.keep(bodies=6, rows=5)  # betas become delta
        example.put(5)
        example.keep(bodies=4, rows=12)  # q1 gives to q2, which is after delta
        example.get(3)
        example.get(5)
        example.get(1)  # q3 is empty: delta fills it, and q2 joins it
        example.put(5)
        example.get(8)  # q3 and delta are empty: q1 becomes q4
        example.get(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
