"""RemoteTransaction: what a thread or task puts and acknowledges as one, by tx.* of AMQP.

It has a channel of its own, on which everything happens that belongs to it. What is put is
published there, and is in no queue before tx.commit. A job came on another channel, and AMQP lets
only that one acknowledge it; so the job moves: box.adopt makes it a delivery of the transaction's
channel, where basic.ack is part of the transaction.

    put        the queue is asked for room, with what is put already counted; basic.publish
    ack        box.adopt, basic.ack
    commit     tx.commit: on disk, as one
    rollback   tx.rollback; the jobs that were acknowledged come back, counted as an attempt

If the connection is lost before the commit was answered, it happened whole or not at all.

Not here: when it begins and ends (remote_box.py).
"""

import time

from penstock.client.client_errors import ConnectionLostError
from penstock.client.link import Link
from penstock.client.remote_asking import answer, room_of
from penstock.client.remote_driver import Call, RemoteDriver, RemoteState
from penstock.client.remote_message import properties_of
from penstock.client.taken import Taken
from penstock.codec.spec import BasicAck, TxCommit, TxRollback
from penstock.embedded.box_errors import QueueFullError
from penstock.embedded.new_body import NewBody
from penstock.errors import AMQPError, UnknownQueueError
from penstock.queues.queue_options import DROP_HEAD


class RemoteTransaction:
    """See the head of this module. mode: durability of all that is put in it. channel: where it
    happens."""

    def __init__(self, driver: RemoteDriver, link: Link, mode: int) -> None:
        self.mode: int = mode
        self._driver = driver
        self._link = link
        self.channel = link.take_tx()
        self._acked: list[Taken] = []
        self._put: dict[str, tuple[int, int]] = {}  # name -> messages, bytes
        self._ids: dict[str, str] = {}  # message id -> queue

    def put(self, state: RemoteState, new: NewBody | bytes) -> Call[None]:
        """One message. QueueFullError, UnknownQueueError."""
        name = state.name
        body = new if isinstance(new, bytes) else new.body
        count, size = self._put.get(name, (0, 0))
        is_limited = state.options.overflow != DROP_HEAD
        if is_limited or not count:
            asked = (size + len(body), count + 1) if is_limited else (0, 0)
            full = yield from room_of(self._driver, state, *asked)
            if full is not None:
                raise QueueFullError(name, full.limit, full.given, full.allowed)
        message_id = self._driver.message_id()
        header = properties_of(new, self.mode, message_id, int(time.time()))
        self.channel.publish("", name, body, header, mandatory=True)
        self._put[name] = (count + 1, size + len(body))
        self._ids[message_id] = name

    def ack(self, jobs: list[Taken]) -> Call[None]:
        """Acknowledge when it is committed."""
        for channel in {job.channel for job in jobs}:
            own = [job for job in jobs if job.channel is channel]
            if channel is not self.channel:
                tags = [job.delivery_tag for job in own]
                call = self.channel.call("box.adopt", {"channel": channel.number, "tags": tags})
                found = yield from answer(call)
                assert isinstance(found, list)
                for job, tag in zip(own, found, strict=True):
                    job.move(self.channel, tag)
            for job in own:
                self.channel.tell(BasicAck(delivery_tag=job.delivery_tag))
                self._acked.append(job)

    def commit(self) -> Call[None]:
        """All of it, at once."""
        yield from answer(self.channel.ask(TxCommit()))
        lost = [name for one, name in self._ids.items() if self._link.was_returned(one)]
        self._link.give_tx(self.channel)
        if lost:
            raise UnknownQueueError(lost[0])

    def rollback(self) -> Call[None]:
        """None of it. What cannot be undone, because the connection is gone, is undone by that."""
        try:
            yield from answer(self.channel.ask(TxRollback()))
            for job in self._acked:
                call = self.channel.call("box.nack", {"tag": job.delivery_tag, "delay_ms": None})
                yield from answer(call)
            self._link.give_tx(self.channel)
        except (ConnectionLostError, AMQPError):
            self.channel.close()


def begin(driver: RemoteDriver, mode: int) -> Call[RemoteTransaction]:
    """A new one for the caller."""
    link = yield from driver.linked()
    return RemoteTransaction(driver, link, mode)
