"""Frames as they are written, byte by byte, with pamqp as the second reader."""

import pamqp.body
import pamqp.frame
import pamqp.header
import pytest

from penstock.codec.frames import (
    HEARTBEAT_FRAME,
    body_frames,
    content_frames,
    header_frame,
    method_frame,
)
from penstock.codec.spec import TxSelect


def unmarshal_all(data: bytes) -> list[tuple[int, object]]:
    found: list[tuple[int, object]] = []
    while data:
        size, channel, value = pamqp.frame.unmarshal(data)
        found.append((channel, value))
        data = data[size:]
    return found


def test_golden_frames() -> None:
    assert method_frame(258, TxSelect().encode()).hex() == "01010200000004005a000ace"
    assert header_frame(1, b"\x10\x00\x02", 4).hex() == (
        "0200010000000f003c00000000000000000004100002ce"
    )
    assert body_frames(1, b"body", 4096).hex() == "03000100000004626f6479ce"
    assert HEARTBEAT_FRAME.hex() == "08000000000000ce"


@pytest.mark.parametrize(
    ("size", "frame_max", "frames"),
    [(0, 4096, 0), (1, 4096, 1), (4088, 4096, 1), (4089, 4096, 2), (12264, 4096, 3), (9999, 0, 1)],
)
def test_a_body_is_cut_into_frames_of_at_most_frame_max(
    size: int, frame_max: int, frames: int
) -> None:
    body = bytes(at % 251 for at in range(size))
    data = content_frames(7, b"\x00\x00", body, frame_max)
    (channel, header), *bodies = unmarshal_all(data)
    assert channel == 7
    assert isinstance(header, pamqp.header.ContentHeader)
    assert header.body_size == size
    assert len(bodies) == frames
    parts = [value.value for _, value in bodies if isinstance(value, pamqp.body.ContentBody)]
    assert b"".join(part or b"" for part in parts) == body
    assert all(len(part or b"") + 8 <= (frame_max or size + 8) for part in parts)
    assert {channel for channel, _ in bodies} <= {7}
