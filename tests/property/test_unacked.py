"""Unacked against a plain dict: any run of deliveries, acks, multiple acks, skips and put-backs."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.channel import Unacked
from penstock.broker.publish import Confirms
from tests.unit.broker.test_unacked import some_queue

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "skip", "take", "multiple", "back", "slice"]),
        st.integers(0, 1 << 16),
    ),
    max_size=400,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 1 << 32))
def test_unacked_is_a_dict_by_delivery_tag(steps: list[tuple[str, int]], seed: int) -> None:
    chance = random.Random(seed)
    unacked = Unacked()
    model: dict[int, int] = {}
    queue = some_queue()
    for n, (step, number) in enumerate(steps):
        tags = sorted(model)
        if step == "add":
            for i in range(1 + number % 50):
                tag = unacked.add(queue, n * 100 + i, None)
                assert tag not in model
                model[tag] = n * 100 + i
        elif step == "skip":
            for _ in range(number % 3000):
                unacked.skip()
        elif step == "take":
            tag = chance.choice(tags) if tags and number % 4 else number
            found = unacked.take(tag)
            assert (None if found is None else found.tag) == model.pop(tag, None)
        elif step == "multiple" and tags:
            tag = chance.choice(tags) if number % 5 else 0
            assert [d.tag for d in unacked.take_up_to(tag)] == [
                model.pop(t) for t in tags if not tag or t <= tag
            ]
        elif step == "slice" and tags:
            tag = chance.choice(tags)
            assert [d.tag for d in unacked.take_up_to(tag, 7)] == [
                model.pop(t) for t in [t for t in tags if t <= tag][:7]
            ]
        elif step == "back" and tags:
            taken = [(t, unacked.take(t)) for t in chance.sample(tags, min(len(tags), 5))]
            unacked.put_back([(t, d) for t, d in taken if d is not None])
            unacked.sort()
        assert unacked.count == len(model)
        assert [d.tag for d in unacked.all()] == [model[t] for t in sorted(model)]
        assert [t for t, _ in unacked.open_up_to(1 << 40, 1 << 40)] == sorted(model)
        assert [t for t, _ in unacked.open_up_to(1 << 40, 3)] == sorted(model)[:3]
        assert unacked.last_open() == max(model, default=0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("prs"), st.integers(0, 3)), max_size=200))
def test_each_publish_is_answered_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    confirms = Confirms()
    expected: list[tuple[int, bool, int]] = []  # tag, is_ack, lsn
    answered: list[tuple[int, bool]] = []
    lsn = settled = 0
    for step, n in steps:
        if step == "p":
            lsn += n
            confirms.published(lsn if n else 0)
            expected.append((confirms.last_tag, True, lsn if n else 0))
        elif step == "r":
            confirms.refused()
            expected.append((confirms.last_tag, False, 0))
        else:
            settled = min(lsn, settled + n)
            last = len(answered)
            for run in confirms.settle(settled):
                assert run.first_tag == last + 1
                answered += [(tag, run.is_ack) for tag in range(run.first_tag, run.last_tag + 1)]
                last = run.last_tag
            assert answered == [(tag, is_ack) for tag, is_ack, _ in expected[: len(answered)]]
            assert all(at <= settled for _, _, at in expected[: len(answered)])
    for run in confirms.settle(lsn):
        answered += [(tag, run.is_ack) for tag in range(run.first_tag, run.last_tag + 1)]
    assert answered == [(tag, is_ack) for tag, is_ack, _ in expected]
    assert not confirms.runs
