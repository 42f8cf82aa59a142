"""A model of the sub-queues of a VariableQueue, and the worked example of variable_queue.md.

The model keeps ids only: q4 (head), q3, delta, q2, q1 (tail), as RabbitMQ's document describes
them, with the two primitives of paging apart (q1 from its front, q4 from its rear) and the rule
that was shipped made of them (one quota, q1 first). Both sessions below use segments of five
entries, ids being the numbers of the messages: the document's example comes out only if the border
after 5 is at most 10 and 10 to 13 lie in one segment.

`EXAMPLE` is the document's own session. It takes from q1 and q4 with separate quotas, which no call
of the shipped rule does. `SHIPPED` is the same session under the one-quota rule. Pictures that the
document shows in the middle of a fetch are no states: delta is refilled within the same call.

A `Driver` is whatever can be put through such a session: the model, or the real queue.
"""

from collections import deque
from typing import Final, Protocol

SEGMENT: Final = 5  # entries per segment in the example

State = tuple[list[int], list[int], list[int], list[int], list[int]]  # q4, q3, delta, q2, q1
Step = tuple[str, tuple[int, ...], State]  # method, arguments, state afterwards


class Driver(Protocol):
    """What a session asks for."""

    def publish(self, n: int) -> list[int]:
        """n messages with the next ids."""
        ...

    def fetch(self, n: int, *, ack_required: bool = False) -> list[int]:
        """At most n messages; their ids."""
        ...

    def push_q1(self, quota: int) -> None:
        """Alphas of q1, oldest first, to the rear of q3, or of q2 if there is a delta."""
        ...

    def push_q4(self, quota: int) -> None:
        """Alphas of q4, youngest first, to the front of q3."""
        ...

    def push_alphas_to_betas(self, quota: int) -> None:
        """One quota: q1, then q4 with what is left of it."""
        ...

    def push_betas_to_deltas(self, quota: int) -> None:
        """From the rear of q3, never below the border after its head; then the front of q2."""
        ...

    def requeue(self, seqs: list[int]) -> None:
        """Pending messages go back to their places."""
        ...

    def ack(self, seqs: list[int]) -> None:
        """Pending messages die."""
        ...

    def state(self) -> State:
        """The ids in each part, in the order of delivery."""
        ...


class Model:
    """The five parts, ids only."""

    def __init__(self, segment: int = SEGMENT, first_seq: int = 1) -> None:
        self.segment = segment
        self.q1: deque[int] = deque()
        self.q2: deque[int] = deque()
        self.q3: deque[int] = deque()
        self.q4: deque[int] = deque()
        self.delta: list[int] = []  # ascending
        self.pending: set[int] = set()
        self.next_seq = first_seq

    def border(self, seq: int) -> int:
        """The first seq of the next segment."""
        return (seq // self.segment + 1) * self.segment

    def state(self) -> State:
        return list(self.q4), list(self.q3), self.delta[:], list(self.q2), list(self.q1)

    def check(self) -> None:
        """What must hold after every call."""
        assert not self.q1 or self.q3, "q1 holds messages, so q3 must not be empty"
        assert not self.q2 or self.delta, "q2 holds messages, so delta must not be empty"
        assert not self.delta or self.q3, "delta holds messages, so q3 must not be empty"
        order = [seq for part in self.state() for seq in part]
        assert order == sorted(set(order)), f"out of order: {order}"
        assert bool(order) == bool(self.q3 or self.q4), "empty when q3 and q4 are, and only then"
        assert not self.pending & set(order), "a message is ready and pending"

    def publish(self, n: int) -> list[int]:
        seqs = list(range(self.next_seq, self.next_seq + n))
        self.next_seq += n
        for seq in seqs:
            (self.q1 if self.q3 else self.q4).append(seq)
        return seqs

    def fetch(self, n: int, *, ack_required: bool = False) -> list[int]:
        seqs: list[int] = []
        while len(seqs) < n and (self.q4 or self.q3):
            seqs.append((self.q4 or self.q3).popleft())
            self._settle()
        if ack_required:
            self.pending.update(seqs)
        return seqs

    def _settle(self) -> None:
        """Empty q3 and q4 are filled within the call that emptied them."""
        if self.q3:
            return
        if self.delta:
            stop = self.border(self.delta[0])
            self.q3.extend(seq for seq in self.delta if seq < stop)
            self.delta = [seq for seq in self.delta if seq >= stop]
            if not self.delta:
                self.q3.extend(self.q2)
                self.q2.clear()
        elif not self.q4:
            self.q4, self.q1 = self.q1, self.q4

    def push_q1(self, quota: int) -> None:
        for _ in range(min(quota, len(self.q1))):
            (self.q2 if self.delta else self.q3).append(self.q1.popleft())

    def push_q4(self, quota: int) -> None:
        for _ in range(min(quota, len(self.q4))):
            self.q3.appendleft(self.q4.pop())

    def push_alphas_to_betas(self, quota: int) -> None:
        first = min(quota, len(self.q1))
        self.push_q1(first)
        self.push_q4(quota - first)

    def push_betas_to_deltas(self, quota: int) -> None:
        border = self.border(self.q3[0]) if self.q3 else 0
        while quota and self.q3 and self.q3[-1] >= border:
            self.delta.insert(0, self.q3.pop())
            quota -= 1
        while quota and self.q2:
            self.delta.append(self.q2.popleft())
            quota -= 1

    def requeue(self, seqs: list[int]) -> None:
        """Below q3's head: to q4, as an alpha; below delta: to q3; else to delta."""
        low = self.q3[0] if self.q3 else self.next_seq
        high = self.delta[0] if self.delta else self.next_seq
        for seq in sorted(set(seqs) & self.pending):
            self.pending.remove(seq)
            if seq < low:
                self.q4 = deque(sorted([*self.q4, seq]))
            elif seq < high:
                self.q3 = deque(sorted([*self.q3, seq]))
            else:
                self.delta = sorted([*self.delta, seq])

    def ack(self, seqs: list[int]) -> None:
        self.pending -= set(seqs)


def ids(first: int, last: int) -> list[int]:
    """first to last, both included."""
    return list(range(first, last + 1))


def permitted_betas(in_parts: int, target: int, segment: int) -> int:
    """How many of the messages outside q1 and q4 may be betas, when `target` are to be in RAM: the
    delta's part of them is what they are themselves of target and them."""
    return max(segment, in_parts - in_parts**2 // (in_parts + target))


EXAMPLE: Final[list[Step]] = [
    ("publish", (9,), (ids(1, 9), [], [], [], [])),
    ("publish", (1,), (ids(1, 10), [], [], [], [])),
    ("push_q4", (3,), (ids(1, 7), ids(8, 10), [], [], [])),
    ("publish", (5,), (ids(1, 7), ids(8, 10), [], [], ids(11, 15))),
    ("push_q1", (3,), (ids(1, 7), ids(8, 13), [], [], [14, 15])),
    ("push_q4", (3,), (ids(1, 4), ids(5, 13), [], [], [14, 15])),
    ("push_betas_to_deltas", (4,), (ids(1, 4), ids(5, 9), ids(10, 13), [], [14, 15])),
    ("publish", (5,), (ids(1, 4), ids(5, 9), ids(10, 13), [], ids(14, 20))),
    ("push_q1", (4,), (ids(1, 4), ids(5, 9), ids(10, 13), ids(14, 17), ids(18, 20))),
    ("push_q4", (3,), ([1], ids(2, 9), ids(10, 13), ids(14, 17), ids(18, 20))),
    ("fetch", (3,), ([], ids(4, 9), ids(10, 13), ids(14, 17), ids(18, 20))),
    ("fetch", (5,), ([], [9], ids(10, 13), ids(14, 17), ids(18, 20))),
    # Within this call: q3 is empty, delta comes to q3, is empty itself, and q2 joins q3.
    ("fetch", (1,), ([], ids(10, 17), [], [], ids(18, 20))),
    ("publish", (5,), ([], ids(10, 17), [], [], ids(18, 25))),
    # Within this call: q3 is empty, there is no delta, and q1 becomes q4.
    ("fetch", (8,), (ids(18, 25), [], [], [], [])),
    ("fetch", (1,), (ids(19, 25), [], [], [], [])),
]

SHIPPED: Final[list[Step]] = [
    ("publish", (10,), (ids(1, 10), [], [], [], [])),
    ("push_alphas_to_betas", (3,), (ids(1, 7), ids(8, 10), [], [], [])),
    ("publish", (5,), (ids(1, 7), ids(8, 10), [], [], ids(11, 15))),
    ("push_alphas_to_betas", (6,), (ids(1, 6), ids(7, 15), [], [], [])),
    ("push_betas_to_deltas", (4,), (ids(1, 6), ids(7, 11), ids(12, 15), [], [])),
    ("publish", (5,), (ids(1, 6), ids(7, 11), ids(12, 15), [], ids(16, 20))),
    ("push_alphas_to_betas", (7,), (ids(1, 4), ids(5, 11), ids(12, 15), ids(16, 20), [])),
    ("fetch", (3,), ([4], ids(5, 11), ids(12, 15), ids(16, 20), [])),
    ("fetch", (5,), ([], ids(9, 11), ids(12, 15), ids(16, 20), [])),
    ("fetch", (1,), ([], [10, 11], ids(12, 15), ids(16, 20), [])),
    ("publish", (5,), ([], [10, 11], ids(12, 15), ids(16, 20), ids(21, 25))),
    ("fetch", (8,), ([], ids(18, 20), [], [], ids(21, 25))),
    ("fetch", (1,), ([], [19, 20], [], [], ids(21, 25))),
]
