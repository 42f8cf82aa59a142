"""Policies that come and go over queues in use, against a model written from RabbitMQ's rules.

The model keeps the policies as they were given, the arguments of each queue, and the messages that
are ready: a1 has messages of two priorities. After each step every queue has the limits, the
overflow, the time to live and the dead letter exchange that the model works out from the start, and
holds the messages that these leave; those that died lie in the queue "dead" if the exchange was
"x", and are gone if it was "y", which does not exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import ChannelError
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic

QUEUES: Final = ("a1", "a2", "b1", "b2")
KINDS: Final = {"a1": "classic", "a2": "quorum", "b1": "classic", "b2": "quorum"}
LIMITS: Final = st.none() | st.integers(0, 4)
OVERFLOWS: Final = st.sampled_from((None, "drop-head", "reject-publish"))
EXCHANGES: Final = st.sampled_from((None, "x", "y"))
SHORT, LONG = "short", "long"
TTLS: Final = st.sampled_from((None, SHORT, LONG))
TYPES: Final = {
    "all": ("classic", "quorum"), "queues": ("classic", "quorum"), "exchanges": (),
    "classic_queues": ("classic",), "quorum_queues": ("quorum",), "streams": (),
}  # fmt: skip
PATTERNS: Final = {
    "^a": ("a1", "a2"), "1$": ("a1", "b1"), "^[ab]": QUEUES, "b2": ("b2",), "^1": (),
}  # fmt: skip


@dataclass
class Given:
    """A policy as it was set."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    priority: int
    definition: dict[str, Any]


def lower(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


@dataclass
class Waiting:
    """A message that is ready. expiry_ms: of the clock, 0 for never."""

    body: bytes
    priority: int
    expiry_ms: int


class Policies(RuleBasedStateMachine):
    """See the head of this module. TTL_MS: what the times to live are; time passes in steps of 100
    ms."""

    TTL_MS: Mapping[str | None, int | None] = {None: None, SHORT: 350, LONG: 1250}

    def made_rig(self) -> Any:
        """What the steps are done with."""
        return OperationRig()

    @initialize()
    def begin(self) -> None:
        self.rig = self.made_rig()
        self.policies: dict[str, Given] = {}
        self.operators: dict[str, Given] = {}
        self.arguments: dict[str, dict[str, Any]] = {}
        self.ready: dict[str, list[Waiting]] = {}  # the next one first
        self.dead: list[bytes] = []
        self.count = 0
        self.rig.result("declare_exchange", exchange="x", type="fanout", arguments={})
        self.rig.result("declare_queue", queue="dead", arguments={})
        self.rig.result("bind_queue", queue="dead", exchange="x", arguments={})

    @rule(
        name=st.sampled_from("nmo"), pattern=st.sampled_from(sorted(PATTERNS)),
        apply_to=st.sampled_from(sorted(TYPES)), priority=st.integers(-1, 1), limit=LIMITS,
        overflow=OVERFLOWS, exchange=EXCHANGES, ttl=TTLS, lazy=st.booleans(),
        is_operators=st.booleans(),
    )  # fmt: skip
    def set_policy(
        self, name: str, pattern: str, apply_to: str, priority: int, limit: int | None,
        overflow: str | None, exchange: str | None, ttl: str | None, lazy: bool,
        is_operators: bool,
    ) -> None:  # fmt: skip
        definition: dict[str, Any] = {"max-length": limit, "message-ttl": self.TTL_MS[ttl]}
        if not is_operators:
            definition |= {"overflow": overflow, "dead-letter-exchange": exchange}
            definition["queue-mode"] = "lazy" if lazy else None  # of classic queues alone
        definition = {key: value for key, value in definition.items() if value is not None}
        op = "set_operator_policy" if is_operators else "set_policy"
        args = {"pattern": pattern, "apply_to": apply_to, "priority": priority}
        if not definition:
            assert self.rig.refusal(op, name=name, definition={}, **args).code == 406
            return
        self.rig.result(op, name=name, definition=definition, **args)
        kinds = TYPES[apply_to]
        if "queue-mode" in definition:
            kinds = tuple(kind for kind in kinds if kind == "classic")
        given = Given(PATTERNS[pattern], kinds, priority, definition)
        (self.operators if is_operators else self.policies)[name] = given
        self._settle()

    @rule(name=st.sampled_from("nmo"), is_operators=st.booleans())
    def clear_policy(self, name: str, is_operators: bool) -> None:
        op = "clear_operator_policy" if is_operators else "clear_policy"
        known = self.operators if is_operators else self.policies
        if known.pop(name, None) is None:
            assert self.rig.refusal(op, name=name).code == 404
        else:
            self.rig.result(op, name=name)
        self._settle()

    @rule(
        name=st.sampled_from(QUEUES), limit=LIMITS, overflow=OVERFLOWS, exchange=EXCHANGES,
        ttl=TTLS,
    )  # fmt: skip
    def declare(
        self, name: str, limit: int | None, overflow: str | None, exchange: str | None,
        ttl: str | None,
    ) -> None:  # fmt: skip
        if name in self.arguments:
            return
        given = {
            "x-max-length": limit, "x-overflow": overflow, "x-dead-letter-exchange": exchange,
            "x-queue-type": KINDS[name], "x-message-ttl": self.TTL_MS[ttl],
            "x-max-priority": 1 if name == "a1" else None,
        }  # fmt: skip
        arguments = {key: value for key, value in given.items() if value is not None}
        self.rig.result("declare_queue", queue=name, arguments=arguments)
        self.arguments[name], self.ready[name] = arguments, []

    @rule(name=st.sampled_from(QUEUES))
    def delete(self, name: str) -> None:
        if name in self.arguments:
            self.rig.result("delete_queue", queue=name)
            del self.arguments[name], self.ready[name]

    @rule(name=st.sampled_from(QUEUES), priority=st.integers(0, 1), ttl=TTLS)
    def publish(self, name: str, priority: int, ttl: str | None) -> None:
        if name not in self.arguments:
            return
        self.count += 1
        body = b"%d" % self.count
        limit, overflow, _, queue_ttl = self._expected(name)
        is_refused = (
            overflow == "reject-publish" and limit is not None and len(self.ready[name]) >= limit
        )
        try:
            own_ms = self.TTL_MS[ttl]
            own = {} if own_ms is None else {"expiration": str(own_ms)}
            self.rig.put(name, body, priority=priority, **own)
        except ChannelError:
            assert is_refused
        else:
            assert not is_refused
            ttl_ms = lower(own_ms, queue_ttl)
            expiry_ms = 0 if ttl_ms is None else self.rig.clock.wall_ms() + ttl_ms
            self.ready[name].append(Waiting(body, priority, expiry_ms))
            if name == "a1":
                self.ready[name].sort(key=lambda one: -one.priority)
        self._settle()

    @rule(tenths=st.integers(1, 15))
    def wait(self, tenths: int) -> None:
        for _ in range(tenths):
            self._settle()

    @rule(name=st.sampled_from(QUEUES), n=st.integers(1, 3))
    def reject(self, name: str, n: int) -> None:
        """A consumer rejects the first ones: they die. What has expired behind one of them dies
        when it becomes the first."""
        if not self.ready.get(name):
            return
        taken = 0
        while taken < n and self.ready[name]:
            self._die(name, 1)
            self._expire(name)
            taken += 1
        assert self.rejected(name, n) == taken
        self._settle()

    def rejected(self, name: str, n: int) -> int:
        """Reject so many; returns how many there were."""
        return len(
            self.rig.result("get_messages", queue=name, count=n, ackmode="reject_requeue_false")
        )

    @rule(is_in_order=st.booleans())
    def restart(self, is_in_order: bool) -> None:
        if not is_in_order:
            self.rig.fs = self.rig.fs.crash("kept", self.rig.vhost._rng)
            self.rig.clients = []
            self.rig.start()
        else:
            self.rig.restart()
        self._settle()

    def _settle(self) -> None:
        """Time for what is due; the model drops what a limit does not allow."""
        self.rig.turn()
        self.rig.tick()
        for name, ready in self.ready.items():
            limit, overflow, _, _ = self._expected(name)
            if limit is not None and overflow == "drop-head":
                self._die(name, len(ready) - limit)
            self._expire(name)

    def _expire(self, name: str) -> None:
        """The first ones of a queue die whose time is over."""
        ready, now_ms = self.ready[name], self.rig.clock.wall_ms()
        while ready and 0 < ready[0].expiry_ms <= now_ms:
            self._die(name, 1)

    def _die(self, name: str, n: int) -> None:
        """The next n of a queue die."""
        ready = self.ready[name]
        bodies = [one.body for one in ready[: max(n, 0)]]
        del ready[: max(n, 0)]
        if self._expected(name)[2] == "x":
            self.dead += bodies

    def _applied(self, known: dict[str, Given], name: str) -> dict[str, Any]:
        matching = [
            (-one.priority, policy, one.definition)
            for policy, one in known.items()
            if name in one.names and KINDS[name] in one.kinds
        ]
        return min(matching)[2] if matching else {}

    def _expected(self, name: str) -> tuple[int | None, str, str | None, int | None]:
        own = self.arguments[name]
        policy = self._applied(self.policies, name)
        operator = self._applied(self.operators, name)
        limit, ttl = (
            lower(own.get(f"x-{key}"), policy.get(key), operator.get(key))
            for key in ("max-length", "message-ttl")
        )
        overflows = [own.get("x-overflow"), policy.get("overflow"), "drop-head"]
        if KINDS[name] == "quorum":
            overflows[:2] = overflows[1::-1]
        exchange = own.get("x-dead-letter-exchange", policy.get("dead-letter-exchange"))
        return limit, next(one for one in overflows if one is not None), exchange, ttl

    @invariant()
    def each_queue_is_as_expected(self) -> None:
        for name in getattr(self, "arguments", {}):
            queue = classic(self.rig.vhost.table.find(name))
            options = queue.amq.options
            exchange = options.dead_letter_exchange
            ttl_ms = options.ttl_ms
            found = options.max_length, options.overflow, exchange and exchange[0], ttl_ms
            assert found == self._expected(name), name
            bodies = [d.message.body for d in queue.amq.browse(None, 1000)]
            assert bodies == [one.body for one in self.ready[name]], name
        if hasattr(self, "dead"):
            queue = classic(self.rig.vhost.table.find("dead"))
            found_dead = [d.message.body for d in queue.amq.browse(None, 1000)]
            assert sorted(found_dead) == sorted(self.dead)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.vhost.abandon()


TestPolicies = Policies.TestCase
