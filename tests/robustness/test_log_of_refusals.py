"""Refused clients leave lines in the log; they can neither forge lines nor fill the disk."""

import time
from pathlib import Path

import pytest
from pamqp import commands

from penstock.codec.frames import method_frame
from penstock.codec.spec import QueuePurge
from penstock.server.log_lines import BURST
from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import open_channel

pytestmark = pytest.mark.real

REFUSALS = 500


def test_a_client_that_is_refused_again_and_again(tmp_path: Path) -> None:
    forged = "q\n2026-11-21 16:30:00,123 ERROR node: forged\x1b[2J"
    purge = method_frame(2, QueuePurge(queue=forged).encode())
    began_s = time.monotonic()
    with LiveBroker(tmp_path / "data") as broker:
        with open_channel(broker) as wire:
            wire.send(commands.Exchange.Declare(exchange="none", passive=True), 1)
            assert wire.channel_closed()[0] == 404
            for _ in range(REFUSALS):
                wire.channel(2)
                wire.send_raw(purge)
                assert wire.channel_closed(2)[0] == 404
        assert broker.stop() == 0
        lines = broker.log.read_bytes().split(b"\n")
    refusals = [line for line in lines if b"error on connection" in line]
    assert b"channel 1 is closed: exchange.declare: NOT_FOUND - no exchange 'none'" in refusals[0]
    assert b"vhost '/', user 'guest'" in refusals[0]
    # A burst, and one a second.
    assert 10 < len(refusals) <= BURST + time.monotonic() - began_s
    assert not any(line.startswith(b"2026-11-21 16:30:00,123") for line in lines)
    assert not any(b"\x1b" in line for line in lines)
