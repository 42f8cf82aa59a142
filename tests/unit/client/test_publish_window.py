"""Many messages published at once: batches, the window, and what the broker answers to each."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client import ConnectionLostError
from penstock.client.message import messages_of, properties_of
from penstock.client.publish_window import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    WINDOW_BYTES,
    WINDOW_MESSAGES,
    ManyPublished,
    Window,
    batches,
)
from penstock.codec import spec
from penstock.embedded.option_parsing import NewBody
from penstock.errors import PenstockError, QueueFullError, UnknownQueueError
from penstock.protocol.connection import PublishRun
from penstock.storage.files.durability import DISK, NONE
from tests.contracts.box import until
from tests.helpers.scripted_broker import ScriptedBroker

FULL = {"limit": "max_length", "given": 2, "allowed": 1, "overflow": "reject-publish"}


# ---- batches and the window ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([0], [(0, 1, 0)]),
        ([1] * BATCH_MESSAGES, [(0, BATCH_MESSAGES, BATCH_MESSAGES)]),
        (
            [1] * (BATCH_MESSAGES + 1),
            [(0, BATCH_MESSAGES, BATCH_MESSAGES), (BATCH_MESSAGES, BATCH_MESSAGES + 1, 1)],
        ),
        ([BATCH_BYTES - 1, 1], [(0, 2, BATCH_BYTES)]),
        ([BATCH_BYTES - 1, 2], [(0, 1, BATCH_BYTES - 1), (1, 2, 2)]),
        ([1, 5 * BATCH_BYTES, 1], [(0, 1, 1), (1, 2, 5 * BATCH_BYTES), (2, 3, 1)]),
    ],
)
def test_batches(sizes: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert list(batches(sizes)) == expected


def test_a_window_is_full_of_messages_or_bytes() -> None:
    window = Window[str]()
    assert window.has_room(1, 2 * WINDOW_BYTES)  # alone, whatever it is
    window.add(ManyPublished(1, WINDOW_MESSAGES - 1, Future()), 10, "first")
    assert window.has_room(1, WINDOW_BYTES - 10)
    assert not window.has_room(2, 0)
    assert not window.has_room(1, WINDOW_BYTES - 9)
    window.add(ManyPublished(WINDOW_MESSAGES, 1, Future()), 20, "second")
    assert window.take_oldest()[1] == "first"
    assert window.has_room(WINDOW_MESSAGES - 1, WINDOW_BYTES - 20)
    assert window.take_oldest()[1] == "second"
    assert not window


# ---- confirms ------------------------------------------------------------------------------------


@given(
    first=st.integers(1, 3),
    count=st.integers(1, 6),
    answers=st.lists(st.tuples(st.integers(1, 10), st.booleans(), st.booleans()), max_size=12),
)
def test_each_message_has_the_first_answer_that_covers_it(
    first: int, count: int, answers: list[tuple[int, bool, bool]]
) -> None:
    published = ManyPublished(first, count, Future())
    model: dict[int, bool] = {}  # by tag
    for tag, multiple, is_taken in answers:
        for one in range(first, first + count):
            if one not in model and (one <= tag if multiple else one == tag):
                model[one] = is_taken
        is_whole = published.answer(tag, multiple=multiple, is_taken=is_taken)
        assert is_whole == (len(model) == count)
        refused = {one - first for one, taken in model.items() if not taken}
        assert len(published.refused) == len(refused)
        assert set(published.refused) == refused


# ---- a queue that is put into ----------------------------------------------------------------


class Puts:
    """A queue on a scripted broker, and a call of put_many that goes on step by step."""

    def __init__(self, broker: ScriptedBroker, box: Any) -> None:
        self.broker = broker
        self.driver = box._driver
        self.source = box.queue("q")._source
        self.room: Any = None
        self.call: Any = None

    def begin(self, bodies: list[bytes], *, block: bool = True) -> None:
        self.call = self.source.put_many(bodies, None, block=block, timeout_s=None)
        self.waited = next(self.call)

    @property
    def channel(self) -> Any:
        return self.driver.link_now().puts()

    @property
    def sent(self) -> int:
        """How many messages were sent."""
        return int(self.channel._next_tag) - 1

    def go_on(self) -> None:
        """Wait for what the call waits for, and let it wait for the next."""
        self.driver.wait(self.waited)
        self.waited = next(self.call)

    def end(self) -> None:
        """Wait until the call ends."""
        is_over = False
        while not is_over:
            self.driver.wait(self.waited)
            self.waited = next(self.call, None)
            is_over = self.waited is None

    def confirm(self, tag: int, *, is_taken: bool = True) -> None:
        until(lambda: len(self.bodies()) >= tag)
        kind = spec.BasicAck if is_taken else spec.BasicNack
        self.broker.say(self.channel.number, kind(delivery_tag=tag, multiple=True))

    def bodies(self) -> list[bytes]:
        """What the broker has received."""
        runs = [what for _, what in self.broker.heard if isinstance(what, PublishRun)]
        return [body for run in runs for body in run.bodies]


@pytest.fixture
def puts(scripted: ScriptedBroker) -> Iterator[Puts]:
    def operation(_: int, method: Any) -> list[Any]:
        results = {
            "box.queue": {"exists": True, "arguments": {}, "whole_bytes": 1 << 20},
            "box.room": rig.room if rig is not None else None,
        }
        return [spec.PenstockCallOk(result=json.dumps(results[method.op]).encode())]

    rig: Puts | None = None
    scripted.on(spec.PenstockCall, operation)
    with penstock.open(scripted.url) as box:
        rig = Puts(scripted, box)
        yield rig


def test_no_more_than_the_window_is_under_way(puts: Puts) -> None:
    bodies = [b"%d" % i for i in range(WINDOW_MESSAGES + 2 * BATCH_MESSAGES + 1)]
    puts.begin(bodies)
    assert puts.sent == WINDOW_MESSAGES
    puts.confirm(BATCH_MESSAGES - 1)
    puts.confirm(BATCH_MESSAGES)
    puts.go_on()
    assert puts.sent == WINDOW_MESSAGES + BATCH_MESSAGES
    puts.confirm(2 * BATCH_MESSAGES + 1)
    puts.go_on()
    assert puts.sent == WINDOW_MESSAGES + 2 * BATCH_MESSAGES
    puts.confirm(puts.sent)
    puts.driver.wait(puts.waited)
    puts.go_on()
    assert puts.sent == len(bodies)
    puts.confirm(puts.sent)
    puts.end()
    assert puts.bodies() == bodies


def test_large_messages_fill_the_window_by_their_bytes(puts: Puts) -> None:
    bodies = [bytes(WINDOW_BYTES // 2), bytes(WINDOW_BYTES // 2), b"a", bytes(2 * WINDOW_BYTES)]
    puts.begin(bodies)
    assert puts.sent == 2
    puts.confirm(1)
    puts.go_on()
    assert puts.sent == 3
    puts.confirm(2)
    puts.go_on()
    assert puts.sent == 3
    puts.confirm(3)
    puts.go_on()
    assert puts.sent == 4
    puts.broker.say(puts.channel.number, spec.BasicAck(delivery_tag=4))
    puts.end()


def test_what_is_refused_is_put_again_and_nothing_else(puts: Puts) -> None:
    bodies = [b"%d" % i for i in range(BATCH_MESSAGES + 2)]
    puts.begin(bodies)
    puts.confirm(1)
    puts.confirm(2, is_taken=False)
    puts.confirm(BATCH_MESSAGES)
    puts.confirm(BATCH_MESSAGES + 1, is_taken=False)
    puts.confirm(BATCH_MESSAGES + 2)
    puts.broker.on(
        PublishRun, lambda channel, run: [spec.BasicAck(delivery_tag=puts.sent, multiple=True)]
    )
    puts.end()
    assert puts.bodies() == [*bodies, b"1", b"%d" % BATCH_MESSAGES]


def test_a_full_queue_that_is_not_waited_for(puts: Puts) -> None:
    puts.begin([b"a", b"b"], block=False)
    puts.confirm(1)
    puts.confirm(2, is_taken=False)
    puts.broker.on(PublishRun, lambda channel, run: [spec.BasicNack(delivery_tag=3)])
    puts.room = FULL
    with pytest.raises(QueueFullError):
        puts.end()


def test_a_connection_that_is_lost_in_the_middle(puts: Puts) -> None:
    puts.begin([b"a"] * (WINDOW_MESSAGES + 1))
    puts.confirm(WINDOW_MESSAGES // 2)
    puts.broker.drop()
    with pytest.raises(ConnectionLostError):
        puts.end()


def test_a_channel_that_is_closed_in_the_middle(puts: Puts) -> None:
    puts.begin([b"a"] * (WINDOW_MESSAGES + 1))
    puts.broker.wait(PublishRun)
    puts.broker.say(puts.channel.number, spec.ChannelClose(reply_code=406, reply_text="no"))
    with pytest.raises(PenstockError, match="no"):
        puts.end()


def test_a_message_that_no_queue_got_ends_the_call(puts: Puts) -> None:
    """The rest is not sent; what is under way is waited for."""
    puts.begin([b"a"] * (WINDOW_MESSAGES + 2 * BATCH_MESSAGES))
    puts.broker.wait(PublishRun)
    run = next(what for _, what in puts.broker.heard if isinstance(what, PublishRun))
    returned = spec.BasicReturn(reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="q")
    puts.broker.deliver(puts.channel.number, returned, b"a", run.headers[0])
    puts.confirm(WINDOW_MESSAGES)
    with pytest.raises(UnknownQueueError):
        puts.end()
    assert puts.sent == WINDOW_MESSAGES
    assert not puts.driver.link_now().returned


# ---- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [NONE, DISK])
def test_messages_have_the_properties_of_a_single_put(mode: int) -> None:
    news = [b"plain", NewBody(b"ranked", priority=3, headers={"a": 1}), b""]
    ids = [f"{number:016x}" for number in (1, 1 << 62, 77)]
    assert messages_of("q", news, mode, ids, 1_700_000_000) == [
        ("q", properties_of(new, mode, one, 1_700_000_000), body)
        for new, one, body in zip(news, ids, (b"plain", b"ranked", b""), strict=True)
    ]


def test_message_ids_are_taken_together_and_begin_again_at_the_end(puts: Puts) -> None:
    puts.driver._last_id = (1 << 63) - 3
    assert puts.driver.message_ids(2) == [f"{(1 << 63) - 2:016x}", f"{(1 << 63) - 1:016x}"]
    assert puts.driver.message_ids(2) == [f"{1:016x}", f"{2:016x}"]
    assert puts.driver.message_id() == f"{3:016x}"
