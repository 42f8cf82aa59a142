import pytest

from penstock.codec.frames import method_frame
from penstock.codec.spec import BasicAck, BasicPublish
from penstock.server.hub import (
    BULK_S,
    FIRST_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    QUICK_S,
    RECENT_S,
    SHORT_BYTES,
    ReadPace,
    next_bytes,
)

PUBLISH = method_frame(1, BasicPublish(routing_key="q").encode())
ACK = method_frame(1, BasicAck(delivery_tag=7).encode())


def test_a_publish_by_itself_makes_it_quick_for_a_while() -> None:
    pace = ReadPace()
    single, flood = object(), object()
    assert not pace.is_quick(single, ACK, 1.0)
    assert not pace.is_quick(flood, ACK, 1.0)
    pace.is_quick(single, PUBLISH + bytes(300), 1.0)
    assert pace.is_quick(flood, bytes(FIRST_BYTES), 1.0 + RECENT_S / 2)
    assert not pace.is_quick(flood, bytes(FIRST_BYTES), 1.0 + RECENT_S)


def test_nobody_rests_for_his_own_sake() -> None:
    pace = ReadPace()
    first, second = object(), object()
    assert not pace.is_quick(first, PUBLISH, 1.0)
    assert not pace.is_quick(first, bytes(FIRST_BYTES), 1.0)
    assert pace.is_quick(second, PUBLISH, 1.05)
    assert pace.is_quick(first, bytes(FIRST_BYTES), 1.05)
    assert pace.is_quick(second, bytes(FIRST_BYTES), 1.05)
    assert not pace.is_quick(second, bytes(FIRST_BYTES), 1.0 + RECENT_S)


def test_a_full_read_of_publishes_waits_for_nothing() -> None:
    pace = ReadPace()
    pace.is_quick(object(), PUBLISH + bytes(SHORT_BYTES), 1.0)
    assert not pace.is_quick(object(), ACK, 1.0)


@pytest.mark.parametrize("is_quick", [False, True])
def test_chunks_come_to_what_is_handled_in_the_time(*, is_quick: bool) -> None:
    limit_s = QUICK_S if is_quick else BULK_S
    for seconds_per_byte in (1e-9, 8e-9, 1e-7):
        read_bytes = FIRST_BYTES
        for _ in range(20):
            read_bytes = next_bytes(read_bytes, read_bytes * seconds_per_byte, is_quick=is_quick)
        assert LEAST_BYTES <= read_bytes <= MOST_BYTES
        spent_s = read_bytes * seconds_per_byte
        assert spent_s <= limit_s or read_bytes == LEAST_BYTES
        assert spent_s >= limit_s / 4 or read_bytes == MOST_BYTES
