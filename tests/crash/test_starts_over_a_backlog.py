"""Starts over a backlog: stopped in order, killed whole, or only its vhost killed or stopped still.

After each start all messages are there, and the first of them is the first. Under `make crash` a
million messages and 100 starts; else few of both.
"""

import os
import signal
from pathlib import Path

import pytest
from pamqp import commands

from tests.conftest import IMAGES_OF_MAKE_CRASH
from tests.helpers.live_broker import FEW_RESTARTS, LiveBroker, children_of, wait_until
from tests.helpers.wire import (
    Ended,
    Refused,
    Wire,
    content_header,
    open_channel,
    raw_frame,
    raw_method,
    shortstr,
)

pytestmark = [pytest.mark.crash, pytest.mark.real, pytest.mark.timeout(0)]

VHOST_IS_DOWN = 541
PERSISTENT = b"\x10\x00\x02"  # property flags and delivery mode
RUN = 1000
LIMIT_S = 120.0
ENVIRONMENT = {**FEW_RESTARTS, "PENSTOCK_VHOST_RESTARTS_MAX": "1000", "PENSTOCK_VHOST_HANG": "2.0"}

Basic, Queue = commands.Basic, commands.Queue


def message(body: bytes) -> bytes:
    """The frames of a persistent message for the backlog."""
    method = raw_method(1, 60, 40, b"\0\0" + shortstr("") + shortstr("backlog") + b"\0")
    return method + content_header(1, len(body), PERSISTENT) + raw_frame(3, 1, body)


def fill(wire: Wire, n: int) -> None:
    """n persistent messages, numbered and confirmed."""
    wire.declare("backlog", durable=True, exclusive=False)
    wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for first in range(0, n, RUN):
        wire.send_raw(b"".join([message(b"%09d" % i) for i in range(first, first + RUN)]))
        tag = 0
        while tag < first + RUN:
            tag = max(tag, wire.expect(Basic.Ack, 1).delivery_tag or 0)


def look(broker: LiveBroker, n: int) -> bool:
    """All are there, the first one first; False: it does not serve yet."""
    try:
        with open_channel(broker) as wire:
            asked = Queue.Declare(queue="backlog", passive=True)
            assert wire.ask(asked, Queue.DeclareOk).message_count == n
            wire.ask(Basic.Get(queue="backlog"), Basic.GetOk)
            assert wire.content()[1] == b"%09d" % 0
    except (Ended, OSError):
        return False
    except Refused as refused:
        if refused.code != VHOST_IS_DOWN:
            raise
        return False
    return True


def test_every_start_finds_the_backlog(tmp_path: Path, crash_images: int) -> None:
    is_whole = crash_images >= IMAGES_OF_MAKE_CRASH
    n, starts = (1_000_000, 100) if is_whole else (20_000, 4)
    with LiveBroker(tmp_path / "data", "--memory", "64MiB", environment=ENVIRONMENT) as broker:
        with open_channel(broker) as wire:
            fill(wire, n)
        for start in range(starts):
            how = start % 4
            if how == 0:
                assert broker.stop() == 0, broker.log_text()
                broker.start(LIMIT_S)
            elif how == 1:
                broker.kill()
                broker.start(LIMIT_S)
            else:  # the supervisor starts it again; one that does not answer it kills first
                vhost = max(children_of(broker.pid))  # the template is older
                os.kill(vhost, signal.SIGKILL if how == 2 else signal.SIGSTOP)
                wait_until(
                    lambda old=vhost: old not in children_of(broker.pid), "it is replaced", LIMIT_S
                )
            wait_until(lambda: look(broker, n), f"all is there after start {start}", LIMIT_S)
        assert broker.stop() == 0, broker.log_text()
