"""Random lives of dead letters against a model in plain lists: x-death, keys, cycles, headers.

The model is written as RabbitMQ's documentation tells it: deaths by queue and reason, latest first;
a cycle is what leads back to a queue with no rejection in it.
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.dispatch import TurnBudget
from penstock.broker.topology import DeadLetterRoutes
from penstock.clock import ManualClock
from penstock.codec.properties import BasicProperties
from penstock.message import QueuedMessage
from penstock.queues.amqp_headers import AmqpHeaders, short_string, split_address
from penstock.queues.dead_letter import Destination, QueueTarget, is_cycle
from penstock.queues.headers import REASONS, Death
from penstock.queues.queue_options import QueueOptions
from penstock.routing.router import Router

H = AmqpHeaders()
QUEUES = st.sampled_from(("a", "b", "c", "ü"))
KEYS = st.sampled_from(("k", "a", "b", ""))
DEATHS = st.lists(
    st.tuples(QUEUES, st.sampled_from(REASONS), st.integers(0, 1 << 40), st.none() | KEYS),
    min_size=1,
    max_size=12,
)
HEADERS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name not in ("CC", "BCC", "x-death")),
    st.integers() .filter(lambda n: -(1 << 63) <= n < 1 << 63) | st.text() | st.binary()
    | st.none() | st.lists(st.text(max_size=5), max_size=3),
    max_size=4,
)  # fmt: skip
# What a client publishes as deaths, which counts for nothing.
PUBLISHED = st.fixed_dictionaries(
    {},
    optional={
        "x-death": st.lists(
            st.fixed_dictionaries({"queue": QUEUES, "reason": st.sampled_from(REASONS)}), max_size=3
        ),
        "x-first-death-queue": QUEUES,
        "x-last-death-reason": st.sampled_from(REASONS),
    },
)


class Model:
    """A message as the documentation tells it."""

    def __init__(self, key: str, cc: list[str], bcc: list[str], expiration: str | None) -> None:
        self.exchange = "in"
        self.key = key
        self.cc = cc
        self.bcc = bcc
        self.expiration = expiration
        self.deaths: list[dict[str, Any]] = []
        self.first: tuple[str, str, str] | None = None

    def die(self, queue: str, reason: str, seconds: int) -> None:
        if self.first is None:
            self.first = (queue, reason, self.exchange)
        same = [d for d in self.deaths if (d["queue"], d["reason"]) == (queue, reason)]
        others = [d for d in self.deaths if d not in same]
        made: dict[str, Any] = {
            "count": 1, "queue": queue, "reason": reason, "time": seconds,
            "exchange": self.exchange, "routing-keys": [self.key, *self.cc],
        }  # fmt: skip
        if self.expiration is not None:
            made["original-expiration"] = self.expiration
        self.expiration = None
        if same:
            made = {**same[0], "count": same[0]["count"] + 1}
        self.deaths = [made, *others]

    def go_on(self, exchange: str, key: str | None) -> None:
        self.exchange = exchange
        if key is not None:
            self.key, self.cc, self.bcc = key, [], []

    def cycles(self, queue: str) -> bool:
        names = [death["queue"] for death in self.deaths]
        if queue not in names:
            return False
        cycle = self.deaths[: names.index(queue) + 1]
        return all(death["reason"] != "rejected" for death in cycle)


@given(
    DEATHS, HEADERS, st.lists(KEYS, max_size=2), st.lists(KEYS, max_size=2), KEYS,
    st.none() | st.sampled_from(("0", "60000")), PUBLISHED,
)  # fmt: skip
def test_a_message_that_dies_again_and_again(
    deaths: list[tuple[str, str, int, str | None]], given_headers: dict[str, Any], cc: list[str],
    bcc: list[str], key: str, expiration: str | None, published: dict[str, Any],
) -> None:  # fmt: skip
    headers = {**published, **given_headers, **({"CC": cc} if cc else {})}
    properties = BasicProperties(headers=headers, expiration=expiration, message_id="m")
    route = b"\x02in" + short_string(key.encode()) + b"\0"
    header = H.make(route, properties.encode())
    if bcc:
        header = H.with_hidden(header, [name.encode() for name in bcc])
    model = Model(key, cc, bcc, expiration)
    for queue, reason, time_ms, new_key in deaths:
        header = H.with_death(header, Death(queue, reason, time_ms, int(reason == "rejected")))
        model.die(queue, reason, time_ms // 1000)
        for name in ("a", "b", "c", "ü", "elsewhere"):
            assert is_cycle(name, H.deaths(header)) == model.cycles(name)
        header = H.readdressed(header, b"dlx", None if new_key is None else new_key.encode())
        model.go_on("dlx", new_key)
        check(header, model, given_headers)


def check(header: bytes, model: Model, others: dict[str, Any]) -> None:
    """The message says what the model says, and all else of it is as it was."""
    address, props = H.parts(header)
    assert [part.decode() for part in split_address(address)] == [model.exchange, model.key]
    assert [key.decode() for key in H.keys(header)] == [model.key, *model.cc, *model.bcc]
    found = BasicProperties.decode(props)
    assert (found.message_id, found.expiration) == ("m", model.expiration)
    headers: Any = dict(found.headers or {})
    deaths = headers.pop("x-death")
    for death in deaths:
        death["time"] = int(death["time"].timestamp())
    assert deaths == model.deaths
    first = [headers.pop(f"x-first-death-{what}") for what in ("queue", "reason", "exchange")]
    assert tuple(first) == model.first
    assert headers.pop("CC", []) == model.cc
    decoded = BasicProperties.decode(BasicProperties(headers=others).encode()).headers
    assert headers == decoded, "types and values of other headers are kept"


class Target(QueueTarget):
    """A queue that is only found."""

    def __init__(self, name: str) -> None:
        self.name = name

    def destination(self, header: bytes, priority: int) -> Destination:
        raise AssertionError("nothing moves here")

    def accept(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        raise AssertionError("nothing is published here")

    def after_dead_letters(self, hops: int = 0) -> None:
        """None come."""


@given(
    DEATHS, st.lists(st.tuples(KEYS, QUEUES), max_size=6), st.lists(KEYS, max_size=2),
    st.none() | KEYS, st.sets(QUEUES),
)  # fmt: skip
def test_the_queues_that_get_it(
    deaths: list[tuple[str, str, int, str | None]], bindings: list[tuple[str, str]], cc: list[str],
    new_key: str | None, there: set[str],
) -> None:  # fmt: skip
    router = Router(lambda name: name in there)
    router.declare("dlx", "direct", {})
    for key, queue in bindings:
        router.bind("dlx", "q", queue, key, {})
    budget = TurnBudget(ManualClock())
    routes = DeadLetterRoutes(
        router, H, lambda name: Target(name) if name in there else None, budget, lambda _: None
    )
    arguments: dict[str, object] = {"x-dead-letter-exchange": "dlx"}
    if new_key is not None:
        arguments["x-dead-letter-routing-key"] = new_key
    header = H.make(b"\x02in\x01k\0", BasicProperties(headers={"CC": cc}).encode())
    model = Model("k", cc, [], None)
    for queue, reason, time_ms, _ in deaths:
        header = H.with_death(header, Death(queue, reason, time_ms))
        model.die(queue, reason, time_ms // 1000)
    queue, reason, _, _ = deaths[-1]
    route = routes.of(queue.encode(), QueueOptions.from_arguments(arguments))
    assert route is not None
    routed = route.route(header, reason)
    model.go_on("dlx", new_key)
    keys = [model.key, *model.cc]
    bound = {target for key, target in bindings if key in keys}
    cycling = {name for name in bound if reason != "rejected" and model.cycles(name)}
    names = [taker.name for taker in routed.targets if isinstance(taker, Target)]
    assert sorted(names) == sorted((bound - cycling) & there)
    assert (routed.kind == "dead_letter_cycle") == bool(cycling)
    assert [key.decode() for key in H.keys(routed.header)] == keys
