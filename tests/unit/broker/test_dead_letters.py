"""Dead letters through exchanges: keys, bindings, cycles, and what the message says of it."""

from functools import partial
from typing import Any

import pytest

import penstock
from penstock.broker import topology
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.dispatch import TurnBudget
from penstock.broker.topology import DeadLetterRoutes
from penstock.clock import ManualClock
from penstock.codec.properties import BasicProperties
from penstock.queues.amqp_headers import AmqpHeaders, short_string, split_address
from penstock.queues.queue_options import QueueOptions
from penstock.routing.router import Router
from penstock.storage.files.durability import DISK
from tests.helpers.amq_world import REFERENCE, VARIABLE, AmqWorld, name_of
from tests.helpers.operation_rig import OperationRig

H = AmqpHeaders()


def ttl(ms: int) -> Any:
    """The argument for a time to live."""
    return {"x-message-ttl": ms}


class Broker:
    """Queues and a router, as a vhost has them."""

    def __init__(self, kind: str) -> None:
        self.world = AmqWorld(kind, headers=H)
        self.router = Router(lambda name: name in self.world.queues)
        self.budget = TurnBudget(ManualClock())
        self.shared: list[bytes] = []
        self.routes = DeadLetterRoutes(
            self.router, H, self.world.queues.get, self.budget, self.shared.append
        )

    def queue(
        self, name: str, exchange: str | None = None, key: str | None = None, **options: Any
    ) -> None:
        """A queue with this dead letter exchange, and routing key."""
        arguments: dict[str, object] = {}
        if exchange is not None:
            arguments["x-dead-letter-exchange"] = exchange
        if key is not None:
            arguments["x-dead-letter-routing-key"] = key
        made = QueueOptions.from_arguments({**arguments, **options})
        assert made.arguments() == {**arguments, **options}
        self.world.routes[name] = partial(self.routes.of, name.encode())
        self.world.options[name] = made
        values = {name: getattr(made, name) for name in QueueOptions.__slots__}
        self.world.open(name, **values)
        self.router.queue_added(name)

    def exchange(self, name: str, kind: str, **arguments: object) -> None:
        self.router.declare(name, kind, {k.replace("_", "-"): v for k, v in arguments.items()})

    def bind(self, exchange: str, key: str, *queues: str, **arguments: object) -> None:
        for queue in queues:
            named = {k.replace("_", "-"): v for k, v in arguments.items()}
            self.router.bind(exchange, "q", queue, key, named)

    def put(
        self, body: str = "m", *, queue: str = "q", key: str = "key", exchange: str = "in",
        bcc: list[bytes] | None = None, ttl_ms: int | None = None, **properties: Any,
    ) -> None:  # fmt: skip
        """Publish to a queue, as routed by `key` from `exchange`."""
        route = short_string(exchange.encode()) + short_string(key.encode()) + b"\0"
        header = H.make(route, BasicProperties(**properties).encode())
        if bcc:
            header = H.with_hidden(header, bcc)
        self.world.put(body, queue=queue, header=header, ttl_ms=ttl_ms)

    def reject(self, queue: str = "q") -> None:
        self.world.queues[queue].reject(self.world.take(queue).tag)

    def got(self, queue: str) -> tuple[str, str, dict[str, Any]]:
        """(exchange, routing key, headers) of the next message there, which is acknowledged."""
        delivery = self.world.take(queue)
        self.world.queues[queue].ack([delivery.tag])
        address, props = H.parts(delivery.message.header, queue)
        exchange, key = split_address(address)
        headers: Any = BasicProperties.decode(props).headers or {}
        return exchange.decode(), key.decode(), headers

    def ready(self, *queues: str) -> list[int]:
        return [self.world.queues[name].len() for name in queues]


@pytest.fixture(params=[VARIABLE, REFERENCE])
def broker(request: pytest.FixtureRequest) -> Broker:
    return Broker(request.param)


# ---- where to --------------------------------------------------------------------------------


def test_to_a_queue_by_the_default_exchange(broker: Broker) -> None:
    broker.queue("q", "", "dead")
    broker.queue("dead")
    broker.put(headers={"mine": 1}, expiration="60000")
    broker.reject()
    exchange, key, headers = broker.got("dead")
    assert (exchange, key) == ("", "dead")
    (death,) = headers["x-death"]
    assert (death["exchange"], death["routing-keys"], death["queue"]) == ("in", ["key"], "q")
    assert (death["reason"], death["original-expiration"]) == ("rejected", "60000")
    assert headers["mine"] == 1


def test_without_a_key_the_message_keeps_its_own(broker: Broker) -> None:
    broker.exchange("dlx", "direct")
    broker.queue("q", "dlx")
    broker.queue("dead")
    broker.queue("other")
    broker.bind("dlx", "key", "dead")
    broker.bind("dlx", "another", "other")
    broker.put()
    broker.reject()
    assert broker.ready("q", "dead", "other") == [0, 1, 0]
    assert broker.got("dead")[:2] == ("dlx", "key")


def test_with_a_key_the_message_loses_its_own(broker: Broker) -> None:
    broker.exchange("dlx", "direct")
    broker.queue("q", "dlx", "dead")
    broker.queue("dead")
    broker.queue("other")
    broker.bind("dlx", "dead", "dead")
    broker.bind("dlx", "cc", "other")
    broker.bind("dlx", "key", "other")
    broker.put(headers={"CC": ["cc"], "mine": 1}, bcc=[b"key"])
    broker.reject()
    assert broker.ready("dead", "other") == [1, 0]
    _, _, headers = broker.got("dead")
    assert "CC" not in headers
    assert headers["x-death"][0]["routing-keys"] == ["key", "cc"], "what was in BCC is not told"


def test_keys_in_cc_and_bcc_count_without_a_key(broker: Broker) -> None:
    broker.exchange("dlx", "direct")
    broker.queue("q", "dlx")
    for name in ("one", "two", "three"):
        broker.queue(name)
        broker.bind("dlx", name, name)
    broker.put(key="one", headers={"CC": ["two"]}, bcc=[b"three"])
    before = broker.world.rig.engine.log.last_lsn
    broker.reject()
    assert broker.world.rig.engine.log.last_lsn == before + 1
    assert broker.ready("one", "two", "three") == [1, 1, 1]
    assert broker.got("three")[2]["CC"] == ["two"]


def test_to_all_queues_of_a_fanout(broker: Broker) -> None:
    broker.exchange("dlx", "fanout")
    broker.queue("q", "dlx")
    broker.queue("a", **ttl(1000))
    broker.queue("b", None, None, **{"x-max-length": 1})
    broker.queue("c")
    broker.bind("dlx", "", "a", "b", "c")
    broker.put("1")
    broker.put("2")
    broker.reject()
    broker.reject()
    assert broker.ready("a", "b", "c") == [2, 1, 2]
    broker.world.tick(1.001)
    assert broker.ready("a", "b", "c") == [0, 1, 2]


def test_headers_are_those_of_the_dead_message(broker: Broker) -> None:
    broker.exchange("dlx", "headers")
    broker.queue("q", "dlx")
    broker.queue("mine")
    broker.queue("rejected")
    broker.bind("dlx", "", "mine", color="red", x_match="all")
    broker.router.bind("dlx", "q", "rejected", "", {
        "x-first-death-reason": "rejected", "x-match": "any-with-x"
    })  # fmt: skip
    broker.put(headers={"color": "red"})
    broker.put(headers={"color": "blue"})
    broker.reject()
    broker.reject()
    assert broker.ready("mine", "rejected") == [1, 2]


def test_exchanges_behind_exchanges_and_alternates(broker: Broker) -> None:
    broker.exchange("dlx", "topic", alternate_exchange="rest")
    broker.exchange("rest", "fanout")
    broker.exchange("inner", "fanout")
    broker.router.bind("dlx", "e", "inner", "a.#", {})
    broker.queue("q", "dlx")
    broker.queue("matched")
    broker.queue("unmatched")
    broker.bind("inner", "", "matched")
    broker.bind("rest", "", "unmatched")
    broker.put(key="a.b")
    broker.put(key="b")
    broker.reject()
    broker.reject()
    assert broker.got("matched")[:2] == ("dlx", "a.b")
    assert broker.got("unmatched")[:2] == ("dlx", "b")


def test_bindings_of_the_moment_count(broker: Broker) -> None:
    broker.exchange("dlx", "direct")
    broker.queue("q", "dlx")
    broker.queue("dead")
    for _ in range(3):
        broker.put()
    broker.reject()
    broker.bind("dlx", "key", "dead")
    broker.reject()
    broker.router.unbind("dlx", "q", "dead", "key", {})
    broker.reject()
    assert broker.ready("q", "dead") == [0, 1]
    assert broker.world.events == [], "what no queue is bound for is dropped without a word"
    assert broker.world.q.info()["dead_letters_dropped"] == 2


def test_a_missing_exchange_drops_and_is_told(broker: Broker) -> None:
    broker.queue("q", "dlx")
    broker.queue("dead")
    for _ in range(3):
        broker.put()
    broker.reject()
    broker.reject()
    assert broker.world.told("dead_letter_missing") == [
        "queue 'q': no exchange 'dlx' for dead letters: dropped"
    ]
    broker.exchange("dlx", "fanout")
    broker.bind("dlx", "", "dead")
    broker.reject()
    assert broker.ready("q", "dead") == [0, 1]


def test_no_exchange_no_dead_letters(broker: Broker) -> None:
    broker.queue("q")
    broker.put()
    broker.reject()
    assert broker.world.q.info()["dead_letters_dropped"] == 0


# ---- reasons ---------------------------------------------------------------------------------


def test_each_reason_is_told(broker: Broker) -> None:
    broker.queue("dead")
    broker.queue("q", "", "dead", **ttl(1000))
    broker.queue("short", "", "dead", **{"x-max-length": 1})
    broker.queue("full", "", "dead", **{"x-max-length": 0, "x-overflow": "reject-publish-dlx"})
    broker.queue("tried", "", "dead", **{"x-delivery-limit": 1})
    broker.put()
    broker.world.tick(1.001)
    broker.put(queue="short")
    broker.put(queue="short")
    with pytest.raises(Exception, match="full"):
        broker.put(queue="full")
    broker.put(queue="tried")
    for _ in range(2):
        broker.world.queues["tried"].requeue([broker.world.take("tried").tag])
    found = [broker.got("dead")[2]["x-death"][0] for _ in range(4)]
    assert [(d["queue"], d["reason"]) for d in found] == [
        ("q", "expired"), ("short", "maxlen"), ("full", "maxlen"), ("tried", "delivery_limit")
    ]  # fmt: skip


def test_an_expiration_does_not_come_again(broker: Broker) -> None:
    broker.queue("q", "", "dead")
    broker.queue("dead")
    broker.put(expiration="1000", ttl_ms=1000)
    broker.world.tick(1.001)
    broker.world.tick(1000)
    _, _, headers = broker.got("dead")
    assert headers["x-death"][0]["original-expiration"] == "1000"


def test_attempts_begin_anew(broker: Broker) -> None:
    broker.queue("q", "", "dead")
    broker.queue("dead")
    broker.put()
    broker.world.q.requeue([broker.world.take().tag])
    broker.reject()
    delivery = broker.world.take("dead")
    assert (delivery.attempts, delivery.is_redelivered) == (0, False)


# ---- cycles ----------------------------------------------------------------------------------


def test_a_cycle_of_expiries_ends(broker: Broker) -> None:
    broker.queue("q", "", "other", **ttl(1000))
    broker.queue("other", "", "q", **ttl(1000))
    broker.put()
    broker.world.tick(1.001)
    assert broker.ready("q", "other") == [0, 1]
    broker.world.tick(1.001)
    assert broker.ready("q", "other") == [0, 0]
    assert broker.world.told("dead_letter_cycle") == [
        "queue 'other': its dead letters come back from 'q': dropped"
    ]


def test_a_cycle_with_a_rejection_goes_on_and_counts(broker: Broker) -> None:
    broker.queue("q", "", "wait")
    broker.queue("wait", "", "q", **ttl(1000))
    broker.put()
    for _ in range(3):
        broker.reject()
        broker.world.tick(1.001)
    _, _, headers = broker.got("q")
    assert [(d["queue"], d["reason"], d["count"]) for d in headers["x-death"]] == [
        ("wait", "expired", 3), ("q", "rejected", 3)
    ]  # fmt: skip
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-first-death-exchange"] == "in"


def test_only_the_queue_of_the_cycle_is_left_out(broker: Broker) -> None:
    broker.exchange("dlx", "fanout")
    broker.queue("q", "dlx", **ttl(1000))
    broker.queue("other")
    broker.bind("dlx", "", "q", "other")
    broker.put()
    broker.world.tick(1.001)
    assert broker.ready("q", "other") == [0, 1]
    assert len(broker.world.told("dead_letter_cycle")) == 1
    assert broker.world.q.info()["dead_letters_dropped"] == 0


@pytest.mark.parametrize(
    "published",
    [
        {"x-death": [{"queue": "other", "reason": "expired", "count": 7}, "not a table"]},
        {"x-death": [{"queue": "q", "reason": "expired", "count": 7}]},
        {"x-death": "a text", "x-first-death-queue": "other"},
    ],
)
def test_deaths_that_a_client_publishes_count_for_nothing(
    broker: Broker, published: dict[str, Any]
) -> None:
    """They are headers like any other until the message dies, as in RabbitMQ 4."""
    broker.queue("q", "", "other", **ttl(1000))
    broker.queue("other", "", "end", **ttl(1000))
    broker.queue("end")
    others = {
        f"x-{what}-death-{of}": "mine" for what in ("first", "last") for of in ("reason", "x")
    }
    broker.put(headers={**published, **others, "mine": 1})
    assert H.deaths(broker.world.q.browse(None, 1)[0].message.header) == []
    broker.world.tick(1.001)
    assert broker.ready("q", "other") == [0, 1]
    broker.world.tick(1.001)
    _, _, headers = broker.got("end")
    assert [(d["queue"], d["count"]) for d in headers.pop("x-death")] == [("other", 1), ("q", 1)]
    assert headers == {
        "x-first-death-queue": "q", "x-first-death-reason": "expired",
        "x-first-death-exchange": "in", "mine": 1,
    }  # fmt: skip
    assert broker.world.told("dead_letter_cycle") == []


def test_a_message_that_is_republished_with_its_deaths_goes_the_same_way_again(
    broker: Broker,
) -> None:
    """Delayed delivery of Celery: e1 -> e0 -> target, and back to e1 at each retry."""
    broker.queue("e1", "", "e0", **ttl(2000))
    broker.queue("e0", "", "target", **ttl(1000))
    broker.queue("target")
    headers: dict[str, Any] = {"mine": 1}
    for _ in range(3):
        broker.put(queue="e1", headers=headers)
        broker.world.tick(2.001)
        broker.world.tick(1.001)
        assert broker.ready("e1", "e0", "target") == [0, 0, 1]
        _, _, headers = broker.got("target")
        assert [(d["queue"], d["count"]) for d in headers["x-death"]] == [("e0", 1), ("e1", 1)]
        assert headers["x-first-death-queue"] == "e1"


def test_cycles_are_counted(broker: Broker) -> None:
    broker.exchange("dlx", "fanout")
    broker.queue("q", "dlx", **ttl(1000))
    broker.queue("other")
    broker.bind("dlx", "", "q", "other")
    for n in (1, 2):
        broker.put()
        broker.world.tick(1.001)
        info = broker.world.q.info()
        assert (info["dead_letter_cycles"], info["dead_letters_dropped"]) == (n, 0)


# ---- messages of the embedded library, damage, crashes -----------------------------------------


def test_a_message_of_the_embedded_library(broker: Broker) -> None:
    broker.exchange("dlx", "direct")
    broker.queue("q", "dlx")
    broker.queue("dead")
    broker.bind("dlx", "q", "dead")
    broker.world.put("m")
    broker.reject()
    exchange, key, headers = broker.got("dead")
    assert (exchange, key) == ("dlx", "q")
    assert headers["x-death"][0]["exchange"] == ""


def test_damaged_properties_go_their_way(broker: Broker) -> None:
    broker.exchange("dlx", "headers")
    broker.queue("q", "dlx")
    broker.queue("dead")
    broker.bind("dlx", "", "dead")
    for props in (b"\xff\xff", b"\x20\x00\x00\x00\x00\x02ab"):
        broker.world.put("m", header=H.make(b"\x02in\x01k\0", props))
        broker.reject()
    assert broker.ready("dead") == [2]
    deaths = [H.deaths(broker.world.take("dead").message.header) for _ in range(2)]
    assert [[death.reason for death in each] for each in deaths] == [[], ["rejected"]]


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_crash_leaves_it_here_or_there(broker: Broker, is_settled: bool) -> None:
    broker.exchange("dlx", "fanout")
    broker.queue("q", "dlx")
    broker.queue("a")
    broker.queue("b", **ttl(60_000))
    broker.bind("dlx", "", "a", "b")
    broker.put(delivery_mode=2)
    lsn = broker.world.q.reject(broker.world.take().tag, DISK)
    if is_settled:
        broker.world.rig.engine.wait(lsn, DISK)
    broker.world.crash()
    assert broker.ready("q", "a", "b") == ([0, 1, 1] if is_settled else [1, 0, 0])
    if is_settled:
        assert name_of(broker.world.take("a")) == "m"
        assert broker.got("b")[2]["x-death"][0]["queue"] == "q"


def test_routing_takes_its_steps_from_the_turn(broker: Broker) -> None:
    broker.exchange("dlx", "topic")
    broker.queue("q", "dlx", "a.b")
    broker.queue("dead")
    broker.bind("dlx", "#", "dead")
    broker.world.put("m")
    before = broker.budget.left
    broker.reject()
    assert broker.ready("dead") == [1]
    assert 3 <= before - broker.budget.left <= 50


def test_a_message_that_takes_too_many_steps_is_dropped_and_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if penstock.build_kind() != "pure":
        pytest.skip("compiled code has its constants inside")
    monkeypatch.setattr(topology, "ROUTE_STEPS_MAX", 10)
    broker.exchange("dlx", "topic")
    broker.queue("q", "dlx", "a.b")
    broker.queue("dead")
    for i in range(20):
        broker.bind("dlx", f"#.{i}.#", "dead")
        broker.exchange(f"x{i}", "fanout")
        broker.router.bind("dlx", "e", f"x{i}", "#", {})
    broker.world.put("m")
    broker.reject()
    assert broker.ready("q", "dead") == [0, 0]
    assert "steps" in broker.world.events[-1][1]


def test_a_slice_dead_letters_few_messages_that_go_to_many_queues() -> None:
    """64 messages to 100 queues each are 6,400 copies; a slice of the first one makes 100."""
    rig = OperationRig()
    for n in range(100):
        rig.result("declare_queue", queue=f"d{n}")
        rig.result("bind_queue", queue=f"d{n}", exchange="amq.fanout", routing_key="")
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "amq.fanout"}
    rig.result("declare_queue", queue="q", arguments=arguments)
    rig.put("q", *[b"x"] * 64)
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    rig.clock.advance(2)
    left = 64
    while queue.amq.expire():
        assert left - queue.amq.backing.len() <= 2
        left = queue.amq.backing.len()
    last = rig.vhost.table.usable("d99")
    assert isinstance(last, BrokerQueue)
    assert last.len() == 64
