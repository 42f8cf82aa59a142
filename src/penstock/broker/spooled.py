"""Spooled: bodies of more than a MiB, which go to disk as their frames arrive.

An unfinished body costs no RAM: each goes to a file of its own in a MessageStore, by the spool of
Qpid's Flow to Disk Design (storeHeader, storeChunk), and when its last frame has come the publish
names that file. What never ends, because the client went, is aborted and its file deleted.

The file is in the store where the message will be as far as can be told when it begins: a
persistent message for a durable queue in the persistent store, any other in the transient one. All
queues share it there; for those that need it in the other store it is copied, in pieces. For
streams, for queues that may refuse it, and in a transaction the body is read back once, and the
file goes.

Not here: who cuts frames into parts (protocol), small bodies (publish.py).
"""

from penstock.broker.fan_out import whole_body
from penstock.broker.publish import PERSISTENT, Publisher, Route
from penstock.codec.properties import scan
from penstock.errors import DiskFullError
from penstock.storage.file_queue_backing import Spool
from penstock.storage.message_store import MessageStore


class SpooledPublish:
    """A publish whose body is arriving. ChannelError 403, 404, 406 as other publishes.
    DiskFullError: there is no room."""

    def __init__(self, publisher: Publisher, raw: bytes, props: bytes) -> None:
        self._publisher: Publisher = publisher
        self._route = publisher.route(raw)
        self._props: bytes = props
        self._info: int = scan(props)
        engine = publisher.vhost.engine
        self._message = engine.new_message(b"", b"")
        self._message.body = None
        self._message.persistent = self._info & 0xFF == PERSISTENT and leads_to_durable(self._route)
        self._store: MessageStore = engine.store_of(self._message)
        self._spool: Spool = self._store.spool(self._message.id)

    def write(self, data: bytes) -> None:
        """The next bytes. DiskFullError; only `abort` is left then."""
        engine = self._publisher.vhost.engine
        try:
            self._spool.write(data)
        except OSError as error:
            raise engine.disk_full(error, len(data)) from error

    def finish(self) -> None:
        """The last byte has come: publish it."""
        publisher = self._publisher
        vhost = publisher.vhost
        store = self._store
        message = self._message
        try:
            message.store_file = self._spool.finish()
        except OSError as error:
            raise vhost.engine.disk_full(error, self._spool.size) from error
        message.size = self._spool.size
        store.own(message.store_file, message.id)
        try:
            facts, targets, props = publisher.facts_of(self._route, self._props, self._info)
            if publisher.transaction is not None:
                body = whole_body(vhost, message)
                publisher.publish_with(self._route, targets, props, body, facts)
            else:
                publisher.publish_with(self._route, targets, props, b"", facts, message)
        finally:
            store.disown(message.store_file, message.id)

    def abort(self) -> None:
        """It will not end."""
        try:
            self._spool.abort()
        except DiskFullError:
            pass


def leads_to_durable(route: Route) -> bool:
    """Whether a message may go to a durable queue: its headers may decide that later."""
    if route.by_headers or route.is_special:
        return True
    return any(queue.is_durable for queue in route.queues)
