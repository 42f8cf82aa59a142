"""RemoteBox: a box on a broker, behind the faces for threads and asyncio.

The vhost of the URL is the box: its durable queues and streams, made and used by the same calls as
those of a directory. Other clients of the broker see ordinary queues and messages, and a box sees
theirs. Several boxes may use one vhost at a time, and the broker, not the box, decides about memory
and disk; docs/guides/client.md says what else differs from a directory.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from penstock.amqp_url import AmqpUrl
from penstock.client.driver import RemoteDriver, RemoteState, RemoteTransaction
from penstock.client.queue import RemoteQueue
from penstock.client.stream import RemoteStream, is_stream, open_stream
from penstock.embedded import option_parsing
from penstock.embedded.box import Box, tracing_of
from penstock.embedded.events import OnEvent, reporter
from penstock.embedded.sources import BoxSource, Call
from penstock.errors import ACCESS_REFUSED, ChannelError, OptionError, TransactionError
from penstock.queues.queue_options import QueueOptions

OF_A_BROKER: Final = "nothing: on a broker it is the broker's own setting"


class RemoteBox(BoxSource):
    """See the head of this module."""

    def __init__(self, driver: RemoteDriver) -> None:
        self.path: str = driver.path
        self._driver = driver

    # ---- queues and streams --------------------------------------------------------------------

    def queue(self, name: str, given: Mapping[str, object]) -> Call[RemoteQueue]:
        """Open the queue of this name, made with these options if it is missing. An existing queue
        is used as it is, for other clients use it too; OptionError if a given option differs."""
        driver = self._driver
        name = option_parsing.check_name(name)
        found = yield from driver.operate("box.queue", {"name": name})
        if not found["exists"]:
            options = option_parsing.queue_options(given, None, found["whole_bytes"])
            arguments = options.arguments()
            yield from driver.operate("box.declare", {"name": name, "arguments": arguments})
        elif is_stream(found["arguments"]):
            raise OptionError("name", name, "a name that no stream has")
        else:
            options = QueueOptions.from_arguments(found["arguments"])
            _check_same(name, given, options, found["whole_bytes"])
        state = driver.states.get(name)
        if state is None or state.is_deleted:
            state = driver.states[name] = RemoteState(name, options)
        state.options = options
        state.mode = option_parsing.own_mode(options)
        return RemoteQueue(driver, state)

    def stream(self, name: str, given: Mapping[str, object]) -> Call[RemoteStream]:
        return open_stream(self._driver, name, given)

    def queues(self) -> Call[list[str]]:
        return self._driver.names("box.queues")

    def streams(self) -> Call[list[str]]:
        return self._driver.names("box.streams")

    def has(self, name: str) -> Call[bool]:
        found = yield from self._driver.operate("box.queue", {"name": name})
        return bool(found["exists"]) and not is_stream(found["arguments"])

    def info(self) -> Call[dict[str, int | float | str]]:
        found: dict[str, int | float | str] = yield from self._driver.operate("box.info", {})
        return found

    def delete(self, name: str) -> Call[None]:
        return self._driver.delete(name)

    # ---- transactions --------------------------------------------------------------------------

    def begin(self, durability: object) -> Call[RemoteTransaction]:
        driver = self._driver
        mode = (
            driver.mode if durability is None else option_parsing.mode_of("durability", durability)
        )
        owner = driver.caller()
        if owner in driver.transactions:
            raise TransactionError("a transaction is open here already: they do not nest")
        link = yield from driver.linked()
        transaction = driver.transactions[owner] = RemoteTransaction(driver, link, mode)
        return transaction

    def commit(self, transaction: RemoteTransaction) -> Call[None]:
        self._forget(transaction)
        yield from transaction.commit()

    def rollback(self, transaction: RemoteTransaction) -> Call[None]:
        self._forget(transaction)
        yield from transaction.rollback()

    def _forget(self, transaction: RemoteTransaction) -> None:
        transactions = self._driver.transactions
        for owner, one in list(transactions.items()):
            if one is transaction:
                del transactions[owner]

    # ---- upkeep and the end --------------------------------------------------------------------

    def sync(self) -> Call[None]:
        yield from self._driver.operate("box.sync", {})

    def checkpoint(self) -> bool:
        self._refuse("checkpoint")

    def backup(self, path: str | Path) -> None:
        self._refuse("backup")

    def _refuse(self, what: str) -> NoReturn:
        """Raise the error for what only the broker's operators may do. BoxClosedError."""
        self._driver.check()
        text = (
            f"{what} of a vhost is for the broker's operators: `penstock {what}` on its machine, "
            "over the control socket"
        )
        raise ChannelError(ACCESS_REFUSED, text)

    def refuse_calls(self) -> None:
        """Do nothing: `close` ends the calls of a broker at once."""

    def close(self) -> None:
        self._driver.close()


def _check_same(
    name: str, given: Mapping[str, object], current: QueueOptions, whole_bytes: int
) -> None:
    """Raise an OptionError that names the first given option that is not as the queue has it."""
    option_parsing.queue_options(given, current, whole_bytes)  # of unknown and wrong options first
    before = current.arguments()
    for option, value in given.items():
        after = option_parsing.queue_options({option: value}, current, whole_bytes).arguments()
        for argument in sorted({*before, *after}):
            if before.get(argument) != after.get(argument):
                expected = (
                    f"what the queue '{name}' was declared with: {argument} is "
                    f"{before.get(argument, 'not set')}, not {after.get(argument, 'not set')} "
                    "(leave the option out to take the queue as it is, or delete the queue first)"
                )
                raise OptionError(option, value, expected)


def driver_of(
    url: str, durability: object, on_event: OnEvent | None, others: Mapping[str, object],
    trust: Mapping[str, object],
    make: Callable[[AmqpUrl, int, OnEvent], RemoteDriver] = RemoteDriver,
) -> RemoteDriver:  # fmt: skip
    """Return the driver of a box on a broker, not yet connected. others: options that only a
    directory has. trust: fields of TlsTrust, None for those of the URL. OptionError."""
    for name, value in others.items():
        raise OptionError(name, value, OF_A_BROKER)
    mode = option_parsing.box_durability(durability).mode
    where = AmqpUrl.parse(url).with_tls(**trust)
    return make(where, mode, reporter(str(where), on_event))


def open_remote(
    url: str,
    *,
    durability: str = "disk",
    on_event: OnEvent | None = None,
    cacerts: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    verify: bool | None = None,
    tracing: object = False,
    **others: object,
) -> Box:
    """Open the box of a broker. `penstock.open` is this for a URL.

    durability: of puts that name none: "none" makes messages transient, all others are as safe as
    the broker's own mode. on_event(kind, text): called with "connected", "blocked" and "unblocked",
    in another thread, which must not wait for this box. cacerts, certfile, keyfile, verify: of
    amqps://, as AmqpUrl has them; None for what the URL says. tracing: True, or a TracerProvider,
    for spans of OpenTelemetry.

    Raises OptionError, UnreachableError, AMQPConnectionError (the user or the vhost is refused),
    MissingCapabilityError (the broker is not Penstock), or MissingPackageError (for tracing).
    """
    trust = {"cacerts": cacerts, "certfile": certfile, "keyfile": keyfile, "verify": verify}
    spans = tracing_of(tracing)
    driver = driver_of(url, durability, on_event, others, trust)
    try:
        driver.run(driver.linked())
    except BaseException:
        driver.close()
        raise
    return Box(driver, RemoteBox(driver), spans)
