"""Who may do what: every method that names a queue or an exchange, by configure, write and read.

Names say what the user of these tests may do with them: `q-cr` it may configure and read, but not
write to. Each method is asked once with all rights, and once without each of the three: it is
refused exactly where the table says that it needs that one, with 403 and RabbitMQ's text. Queues
that the server names are asked for by other users.

RabbitMQ before 3.11 says "access to queue ...", later ones and Penstock "read access to queue ...".

Users are made over Penstock's control socket, or on another broker (PENSTOCK_TEST_URL) by the
command in PENSTOCK_TEST_CTL, its `rabbitmqctl`; without it these tests are skipped there.
"""

import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator

import pytest
from pamqp import base, commands

from tests.helpers.live_broker import Broker, LiveBroker
from tests.helpers.wire import Wire, open_channel

pytestmark = pytest.mark.real

CTL_VARIABLE = "PENSTOCK_TEST_CTL"
Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue
VERBS = {"c": "configure", "w": "write", "r": "read"}
GENERATED = "^amq[.]gen-"
# user -> configure, write, read
USERS = {
    "named": ("[-]cw?r?$", "[-]c?wr?$", "[-]c?w?r$"),
    "nothing": ("", "", ""),
    "no-configure": ("^dead$", ".*", ".*"),
    "no-read": (".*", ".*", "^dead$"),
    "no-write": (".*", GENERATED, ".*"),
    "server-named": (GENERATED, GENERATED, GENERATED),
    "topics": (".*", ".*", ".*"),
}
# of user topics on amq.topic: write, read
TOPICS = (r"^(a|{username}|{vhost})\.", r"^b\.")
_numbers = itertools.count(1)


class Users:
    """The users of these tests on one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        for user, patterns in USERS.items():
            if isinstance(broker, LiveBroker):
                broker.control("add_user", None, name=user, password=user)
                configure, write, read = patterns
                broker.control(
                    "set_permissions", "/", user=user, configure=configure,
                    write=write, read=read,
                )  # fmt: skip
            else:
                self._ctl("add_user", user, user)
                self._ctl("set_permissions", "-p", "/", user, *patterns)
        if isinstance(broker, LiveBroker):
            broker.control(
                "set_topic_permissions", "/", user="topics", exchange="amq.topic",
                write=TOPICS[0], read=TOPICS[1],
            )  # fmt: skip
        else:
            self._ctl("set_topic_permissions", "-p", "/", "topics", "amq.topic", *TOPICS)

    def _ctl(self, *words: str) -> None:
        command = shlex.split(os.environ[CTL_VARIABLE])
        subprocess.run([*command, *words], check=True, capture_output=True, timeout=60)

    def open(self, user: str) -> Wire:
        """A connection of this user with channel 1 open."""
        wire = Wire(Broker(self.broker.host, self.broker.port, user, user)).open()
        wire.channel()
        return wire

    def close(self) -> None:
        if not isinstance(self.broker, LiveBroker):
            for user in USERS:
                self._ctl("delete_user", user)


@pytest.fixture(scope="module")
def users(broker: Broker) -> Iterator[Users]:
    if not isinstance(broker, LiveBroker) and CTL_VARIABLE not in os.environ:
        pytest.skip(f"{CTL_VARIABLE} does not say how to make users on the other broker")
    made = Users(broker)
    yield made
    made.close()


def suffixes() -> list[str]:
    """What follows the dash: every choice of the three rights."""
    return ["".join(some) for n in range(4) for some in itertools.combinations("cwr", n)]


@pytest.fixture(scope="module")
def names(users: Users, broker: Broker) -> Iterator[str]:
    """A queue and an exchange for every choice; what their names begin with."""
    begin = f"p{os.getpid()}"
    with open_channel(broker) as wire:
        for suffix in suffixes():
            queue = Queue.Declare(queue=f"{begin}q-{suffix}", arguments=DEAD)
            wire.ask(queue, Queue.DeclareOk)
            exchange = Exchange.Declare(exchange=f"{begin}x-{suffix}", exchange_type="fanout")
            wire.ask(exchange, Exchange.DeclareOk)
        yield begin
        for suffix in suffixes():
            wire.ask(Queue.Delete(queue=f"{begin}q-{suffix}"), Queue.DeleteOk)
            wire.ask(Exchange.Delete(exchange=f"{begin}x-{suffix}"), Exchange.DeleteOk)


DEAD = {"x-dead-letter-exchange": "forbidden"}


class Names:
    """The names of one case: each with all rights, but one of them without one."""

    def __init__(self, begin: str, place: str, lacks: str) -> None:
        self.begin = begin
        self.place = place
        self.lacks = lacks
        self.looked_at: set[str] = set()
        self.tested = ""

    def _named(self, place: str, kind: str) -> str:
        self.looked_at.add(place)
        rights = "cwr".replace(self.lacks, "") if place == self.place else "cwr"
        name = f"{self.begin}{kind}-{rights}"
        if place == self.place:
            self.tested = name
        return name

    @property
    def q(self) -> str:
        """A queue that is there."""
        return self._named("q", "q")

    @property
    def x(self) -> str:
        """An exchange that is there."""
        return self._named("x", "x")

    @property
    def y(self) -> str:
        """Another place for one."""
        return self._named("y", "x")

    @property
    def n(self) -> str:
        """What is not there."""
        return self._named("n", f"n{next(_numbers)}")

    @property
    def m(self) -> str:
        """Another place for such."""
        return self._named("m", f"m{next(_numbers)}")


Make = Callable[[Names], base.Frame]
# what -> (the method, the rights it needs by place)
METHODS: dict[str, tuple[Make, dict[str, str]]] = {
    "queue.declare": (lambda s: Queue.Declare(queue=s.n, exclusive=True), {"n": "c"}),
    "queue.declare again": (lambda s: Queue.Declare(queue=s.q, arguments=DEAD), {"q": "c"}),
    "queue.declare passive": (lambda s: Queue.Declare(queue=s.q, passive=True), {"q": ""}),
    "queue.declare with a dead letter exchange": (
        lambda s: Queue.Declare(
            queue=s.n, exclusive=True, arguments={"x-dead-letter-exchange": s.m}
        ),
        {"n": "cr", "m": "w"},
    ),
    "queue.delete": (lambda s: Queue.Delete(queue=s.n), {"n": "c"}),
    "queue.purge": (lambda s: Queue.Purge(queue=s.q), {"q": "r"}),
    "queue.bind": (lambda s: Queue.Bind(queue=s.q, exchange=s.x), {"q": "w", "x": "r"}),
    "queue.unbind": (lambda s: Queue.Unbind(queue=s.q, exchange=s.x), {"q": "w", "x": "r"}),
    "exchange.declare": (
        lambda s: Exchange.Declare(exchange=s.n, exchange_type="fanout", auto_delete=True),
        {"n": "c"},
    ),
    "exchange.declare again": (
        lambda s: Exchange.Declare(exchange=s.x, exchange_type="fanout"), {"x": "c"},
    ),
    "exchange.declare passive": (
        lambda s: Exchange.Declare(exchange=s.x, exchange_type="fanout", passive=True), {"x": ""},
    ),
    "exchange.declare with an alternate": (
        lambda s: Exchange.Declare(
            exchange=s.n, exchange_type="fanout", arguments={"alternate-exchange": s.m}
        ),
        {"n": "cr", "m": "w"},
    ),
    "exchange.delete": (lambda s: Exchange.Delete(exchange=s.n), {"n": "c"}),
    "exchange.bind": (
        lambda s: Exchange.Bind(destination=s.x, source=s.y, routing_key="k"), {"x": "w", "y": "r"},
    ),
    "exchange.unbind": (
        lambda s: Exchange.Unbind(destination=s.x, source=s.y), {"x": "w", "y": "r"},
    ),
    "basic.consume": (lambda s: Basic.Consume(queue=s.q), {"q": "r"}),
    "basic.get": (lambda s: Basic.Get(queue=s.q), {"q": "r"}),
    "basic.publish": (lambda s: Basic.Publish(exchange=s.x), {"x": "w"}),
    "basic.publish to none": (lambda s: Basic.Publish(exchange=s.n), {"n": "w"}),
}  # fmt: skip
CASES = [
    (what, place, lacks)
    for what, (_, needs) in METHODS.items() for place in needs for lacks in "cwr"
]  # fmt: skip
NOT_REFUSED = {"basic.publish to none": 404}


def code_of(wire: Wire, method: base.Frame) -> tuple[int, str]:
    """What the method is answered: (0, "") if it is done."""
    if isinstance(method, Basic.Publish):
        wire.publish(1, method.routing_key or "", exchange=method.exchange or "")
        wire.send(Basic.Qos(), 1)
    else:
        wire.send(method, 1)
    _, answer = wire.receive()
    if isinstance(answer, commands.Channel.Close):
        wire.send(commands.Channel.CloseOk(), 1)
        wire.channel(1)
        return answer.reply_code or 0, answer.reply_text or ""
    assert not isinstance(answer, commands.Connection.Close), answer.reply_text
    return 0, ""


def is_refusal(text: str, verb: str, what: str, user: str) -> bool:
    """Whether this is RabbitMQ's text, of an early or a late version. what: the beginning of the
    thing's name, after its kind."""
    access = rf"ACCESS_REFUSED - ({verb} )?access to "
    return (
        re.fullmatch(rf"{access}{what}.*' in vhost '/' refused for user '{user}'", text) is not None
    )


def test_each_method_needs_what_it_needs(users: Users, names: str) -> None:
    wrong: list[str] = []
    with users.open("named") as wire:
        for what, place, lacks in CASES:
            make, needs = METHODS[what]
            given = Names(names, place, lacks)
            code, text = code_of(wire, make(given))
            assert given.looked_at == set(needs), what
            expected = 403 if lacks in needs[place] else NOT_REFUSED.get(what, 0)
            kind = "queue" if place == "q" or (what.startswith("queue") and place == "n") else ""
            kind = kind or "exchange"
            what_is_told = f"{kind} '{given.tested}"
            is_right = not code or is_refusal(text, VERBS[lacks], what_is_told, "named")
            if code != expected or (code == 403 and not is_right):
                wrong.append(f"{what}, {place} without {VERBS[lacks]}: {code} {text}")
    assert not wrong, "\n".join(wrong)


def test_the_default_exchange_is_amq_default(users: Users) -> None:
    with users.open("nothing") as wire:
        code, text = code_of(wire, Basic.Publish())
        assert code == 403
        assert is_refusal(text, "write", "exchange 'amq.default", "nothing"), text


@pytest.mark.parametrize("durable", [False, True])
def test_a_queue_that_the_server_names_needs_configure(users: Users, durable: bool) -> None:
    for user in ("nothing", "no-configure"):
        with users.open(user) as wire:
            code, text = code_of(wire, Queue.Declare(durable=durable, exclusive=not durable))
            assert code == 403
            assert is_refusal(text, "configure", "queue 'amq.gen-", user), text


def test_a_dead_letter_exchange_of_a_queue_that_the_server_names(users: Users) -> None:
    declare = Queue.Declare(exclusive=True, arguments={"x-dead-letter-exchange": "forbidden"})
    with users.open("no-write") as wire:
        code, text = code_of(wire, declare)
        assert code == 403
        assert is_refusal(text, "write", "exchange 'forbidden", "no-write"), text
    with users.open("no-read") as wire:
        code, text = code_of(wire, declare)
        assert code == 403
        assert is_refusal(text, "read", "queue 'amq.gen-", "no-read"), text


def test_what_the_server_named_is_used_with_its_own_rights(users: Users) -> None:
    """All of it, by a user who may use nothing but what the server names."""
    with users.open("server-named") as wire:
        queue = wire.declare("")
        for method in (
            Queue.Declare(queue=queue, passive=True), Basic.Get(queue=queue), Basic.Get(queue=""),
            Queue.Purge(queue=queue), Basic.Consume(queue="", consumer_tag="t"), Basic.Cancel("t"),
        ):  # fmt: skip
            assert code_of(wire, method) == (0, ""), method
        bind = Queue.Bind(queue=queue, exchange="amq.topic", routing_key="k")
        code, text = code_of(wire, bind)
        assert code == 403
        assert is_refusal(text, "read", "exchange 'amq.topic", "server-named"), text
        assert code_of(wire, Queue.Delete(queue=queue)) == (0, "")
    with users.open("no-read") as wire:
        queue = wire.declare("")
        for method in (
            Basic.Get(queue=queue),
            Basic.Consume(queue=queue),
            Queue.Purge(queue=queue),
        ):
            code, text = code_of(wire, method)
            assert code == 403
            assert is_refusal(text, "read", f"queue '{queue}", "no-read"), text
    with users.open("no-write") as wire:
        queue = wire.declare("")
        code, text = code_of(wire, Basic.Publish())
        assert (code, "exchange 'amq.default'" in text) == (403, True)


def test_direct_reply_to_needs_write_on_the_default_exchange_alone(users: Users) -> None:
    with users.open("nothing") as wire:
        consume = Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True)
        assert code_of(wire, consume) == (0, "")
        assert code_of(wire, Queue.Declare(queue="amq.rabbitmq.reply-to")) == (0, "")
        assert code_of(wire, Basic.Publish())[0] == 403


def test_topic_permissions_are_of_routing_keys_of_one_exchange(users: Users) -> None:
    def refused(verb: str, key: str, text: str) -> bool:
        what = f"access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for "
        return (
            re.fullmatch(rf"ACCESS_REFUSED - ({verb} )?{re.escape(what)}user 'topics'", text)
            is not None
        )

    with users.open("topics") as wire:
        queue = wire.declare("")
        for key in ("a.k", "topics.k", "/.k"):
            assert code_of(wire, Basic.Publish(exchange="amq.topic", routing_key=key)) == (0, "")
        for key in ("b.k", "a", "", "{client_id}.k"):
            publish = Basic.Publish(exchange="amq.topic", routing_key=key)
            code, text = code_of(wire, publish)
            assert (code, refused("write", key, text)) == (403, True), text
        for exchange in ("amq.direct", "amq.fanout", "amq.headers"):
            assert code_of(wire, Basic.Publish(exchange=exchange, routing_key="b")) == (0, "")
        bind = Queue.Bind(queue=queue, exchange="amq.topic", routing_key="b.k")
        assert code_of(wire, bind) == (0, "")
        for method in (
            Queue.Bind(queue=queue, exchange="amq.topic", routing_key="a.k"),
            Queue.Unbind(queue=queue, exchange="amq.topic", routing_key="a.k"),
            Exchange.Bind(destination="amq.fanout", source="amq.topic", routing_key="a.k"),
            Exchange.Unbind(destination="amq.fanout", source="amq.topic", routing_key="a.k"),
        ):
            code, text = code_of(wire, method)
            assert (code, refused("read", "a.k", text)) == (403, True), text
