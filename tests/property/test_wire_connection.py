"""A byte stream in any chunks tells the same; a broken one tells events or an error, never more.

The stream is a client's session of random messages, acks and methods on several channels. Chunks
change how publishes fall into runs, so events are compared as what they say, one by one.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import spec
from penstock.codec.frames import HEARTBEAT_FRAME
from penstock.errors import AMQPConnectionError
from penstock.protocol.connection import (
    AckRun,
    ChannelFault,
    Connection,
    Event,
    PublishBegan,
    PublishEnded,
    PublishPart,
    PublishRun,
)
from tests.helpers.wire_session import frame, handshake, open_channel, opened, publish, raw

FRAME_MAX = 4096
SPOOL = 9000
CHANNELS = st.integers(1, 3)

STEPS = st.one_of(
    st.builds(
        publish,
        CHANNELS,
        st.sampled_from(["q", "another.key", ""]),
        st.integers(0, 20000).map(lambda size: bytes(size % 251 for _ in range(size))),
        exchange=st.sampled_from(["", "amq.topic"]),
        properties=st.sampled_from([b"\x10\x00\x02", b"\x00\x00", b"\x90\x00\x01a\x02"]),
        frame_max=st.just(FRAME_MAX),
    ),
    st.builds(
        lambda n, tag: frame(n, spec.BasicAck(delivery_tag=tag)), CHANNELS, st.integers(0, 99)
    ),
    st.builds(lambda n: frame(n, spec.QueueDeclare(queue="q", arguments={"a": 1})), CHANNELS),
    st.builds(lambda n: frame(n, spec.BasicNack(delivery_tag=n)), CHANNELS),
    st.just(HEARTBEAT_FRAME),
)
SESSIONS = st.lists(STEPS, max_size=12).map(b"".join)


def session() -> Connection:
    connection = opened(frame_max=FRAME_MAX, spool_bytes=SPOOL)
    for channel in (2, 3):
        open_channel(connection, channel)
    return connection


def said(events: list[Event]) -> list[object]:
    """What events say, without the runs and parts that depend on the chunks."""
    found: list[object] = []
    for event in events:
        if isinstance(event, PublishRun):
            rows = zip(event.routes, event.headers, event.bodies, strict=True)
            found += [("publish", event.channel, *row) for row in rows]
        elif isinstance(event, AckRun):
            acks = zip(event.tags, event.multiples, strict=True)
            found += [("ack", event.channel, *ack) for ack in acks]
        elif isinstance(event, ChannelFault):
            found.append(("fault", event.channel, str(event.error)))
        else:
            found.append(event)
    return found


def fed(connection: Connection, data: bytes, cuts: list[int]) -> list[Event]:
    found: list[Event] = []
    places = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(places):
        found += connection.receive(data[begin:end])
    return found


@given(SESSIONS, st.data())
def test_any_chunks_tell_the_same(data: bytes, draw: st.DataObject) -> None:
    whole, cut = session(), session()
    expected = said(whole.receive(data))
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))
    assert said(fed(cut, data, cuts)) == expected
    assert whole.leftover() == cut.leftover() == b""
    assert whole.unfinished_bytes == cut.unfinished_bytes == 0


@given(SESSIONS, st.data())
def test_a_cut_session_goes_on_where_it_was_cut(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data)))
    whole, cut = session(), session()
    first = said(cut.receive(data[:at]))
    assert len(cut.leftover()) < FRAME_MAX
    assert cut.unfinished_bytes <= SPOOL + FRAME_MAX
    assert first + said(cut.receive(data[at:])) == said(whole.receive(data))


@given(SESSIONS, st.data())
def test_a_broken_session_tells_events_or_an_error(data: bytes, draw: st.DataObject) -> None:
    wrong = bytearray(data or b"\x01")
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(wrong) - 1))
        kind = draw.draw(st.sampled_from(["set", "cut", "insert", "repeat"]))
        if kind == "set":
            wrong[at] = draw.draw(st.integers(0, 255))
        elif kind == "cut":
            del wrong[at : at + draw.draw(st.integers(1, 30))]
        elif kind == "insert":
            wrong[at:at] = draw.draw(st.binary(min_size=1, max_size=30))
        else:
            wrong[at:at] = wrong[at : at + 40]
        wrong = wrong or bytearray(b"\x00")
    _one_outcome(bytes(wrong), draw)


@given(
    st.lists(
        st.builds(raw, st.integers(0, 9), st.integers(0, 4), st.binary(max_size=40)), max_size=8
    ).map(b"".join),
    st.data(),
)
def test_frames_of_anything_tell_events_or_an_error(data: bytes, draw: st.DataObject) -> None:
    _one_outcome(data, draw)


def _one_outcome(data: bytes, draw: st.DataObject) -> None:
    """The same events and the same error, whole and in chunks; bounded; closable afterwards."""
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=5))
    outcomes = []
    for places in ([], cuts):
        connection = session()
        found: list[Event] = []
        code = 0
        error_text = ""
        try:
            bounds = [0, *sorted(places), len(data)]
            for begin, end in pairwise(bounds):
                found += connection.receive(data[begin:end])
        except AMQPConnectionError as error:
            found += connection.events_before_error
            code, error_text = error.code, error.text
        assert connection.unfinished_bytes <= 3 * (SPOOL + 2 * FRAME_MAX)
        assert code in (0, 501, 502, 503, 504, 505), error_text
        if code:
            connection.send(0, spec.ConnectionClose(reply_code=code))
            connection.receive(data)
        outcomes.append((said(found), code, error_text))
    assert outcomes[0] == outcomes[1]


@given(st.data())
def test_a_handshake_in_any_chunks(draw: st.DataObject) -> None:
    connection = Connection()
    hello, start_ok, rest = handshake()
    found = []
    for part, answer in (
        (hello, spec.ConnectionStart()),
        (start_ok, spec.ConnectionTune()),
        (rest, spec.ConnectionOpenOk()),
    ):
        cuts = draw.draw(st.lists(st.integers(0, len(part)), max_size=5))
        found += fed(connection, part, cuts)
        connection.send(0, answer)
    assert len(found) == 4


@given(st.integers(1, 60000), st.data())
def test_a_spooled_body_is_its_parts(size: int, draw: st.DataObject) -> None:
    body = bytes(at % 251 for at in range(SPOOL + size))
    data = publish(body=body, frame_max=FRAME_MAX)
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))
    began, *parts, ended = fed(session(), data, cuts)
    assert isinstance(began, PublishBegan)
    assert began.size == len(body)
    assert b"".join(part.data for part in parts if isinstance(part, PublishPart)) == body
    assert isinstance(ended, PublishEnded)
