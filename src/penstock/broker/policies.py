"""Policies: what operators set for all queues and exchanges whose names match a pattern.

A policy has a name, a pattern, a priority, what it applies to, and a definition: keys with values.
The keys are those of the options (penstock.options.Option) that may be one, without "x-", and a few
of RabbitMQ's that are no arguments (_OTHERS). A vhost also has operator policies, which may have
limits alone as keys, and which nobody but an operator changes.

**Which one.** Of the policies that apply to a queue or exchange, the one with the highest priority;
of equal ones that whose name sorts first (RabbitMQ leaves that open). One of each sort, so two at
most. A policy applies if its pattern is found in the name, if `apply-to` has that type, and if none
of its keys is for other types of queues alone: one with max-age applies to no classic queue. That
is RabbitMQ's rule.

**Which value.** Of a limit the least of argument, policy and operator policy. Of anything else the
argument; but a stream takes the policy's value of everything, and a quorum queue that of overflow:
RabbitMQ's rules, too. An option that makes no sense together with the queue's own (a least delay
above the greatest) is left out, and reported.

**When.** What is declared or opened gets its policies then, and nothing is asked per message. After
a change, PolicyChanges looks at all queues and exchanges in slices, and calls back when it is done.
A message keeps the expiry that it got when it arrived, as in RabbitMQ.

Stored are parameters of the components "policy" and "operator_policy" in the vhost's log
(storage.index.routing_table), each a JSON object with RabbitMQ's names: pattern, apply-to,
priority, definition. One that cannot be understood (a later version wrote it) stays stored and
applies to nothing, with an event. A change is one record: a crash leaves all of it or nothing.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.access.permissions import Pattern
from penstock.broker import refusals
from penstock.broker.arguments import ARGUMENTS, EXPIRES, type_of
from penstock.broker.background_tasks import AGAIN, DONE, BackgroundTask
from penstock.errors import DiskFullError, OptionError
from penstock.options import (
    POLICY_KEY,
    POLICY_LIMIT,
    Kind,
    Option,
    by_name,
    check_known,
    checked,
    choice,
    text,
)
from penstock.options import whole as whole_number
from penstock.queues.queue_options import (
    CLASSIC,
    CONSUMER_TIMEOUT,
    QUORUM,
    QueueOptions,
    without_qpids,
)
from penstock.queues.queue_set import bytes_of, text_of
from penstock.queues.stream_options import STREAM, StreamOptions
from penstock.storage.engine import StorageEngine
from penstock.storage.index import routing_table

EXCHANGE: Final = "exchange"
ALL: Final = "all"
APPLY_TO: Final[Mapping[str, tuple[str, ...]]] = {
    "queues": (CLASSIC, QUORUM, STREAM),
    "classic_queues": (CLASSIC,),
    "quorum_queues": (QUORUM,),
    "streams": (STREAM,),
    "exchanges": (EXCHANGE,),
    ALL: (CLASSIC, QUORUM, STREAM, EXCHANGE),
}
POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
ALTERNATE: Final = "alternate-exchange"
POLICIES_MAX: Final = 1000  # of a vhost, of each sort
PRIORITY_MAX: Final = 1 << 31
VALUE_BYTES_MAX: Final = 64 << 10
_OVERFLOW: Final = "x-overflow"


def _anything() -> Kind:
    return Kind("any value", lambda value: value)


def _of_clusters(name: str, kind: str) -> Option:
    meaning = "accepted, no effect: there is one node"
    return Option(name, _anything(), meaning, applies=(kind,), policy=POLICY_KEY)


# Keys that are no arguments of queues.
_OTHERS: Final = (
    Option(
        ALTERNATE, text("the name of an exchange"), "where an exchange sends what it has no "
        "queue for", applies=(EXCHANGE,), policy=POLICY_KEY,
    ),
    *(
        _of_clusters(name, CLASSIC)
        for name in (
            "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown",
            "ha-promote-on-failure",
        )
    ),
    _of_clusters("target-group-size", QUORUM),
    _of_clusters("member-placement-tag", QUORUM),
    Option(
        "stream-filter-size-bytes", _anything(), "accepted, no effect", applies=(STREAM,),
        policy=POLICY_KEY,
    ),
    *(
        Option(
            f"federation-upstream{end}", _anything(), "accepted, no effect: there is no federation",
            policy=POLICY_KEY,
        )
        for end in ("", "-set", "-pattern")
    ),
)  # fmt: skip
# Arguments of one type of queue that a policy of classic and quorum queues may have.
_OF_BOTH: Final = ("x-max-in-memory-length", "x-max-in-memory-bytes", "x-queue-version")
# key -> its row
KEYS: Final[Mapping[str, Option]] = {
    **{name.removeprefix("x-"): option for name, option in ARGUMENTS.items() if option.policy},
    **{
        name.removeprefix("x-"): replace(ARGUMENTS[name], applies=(CLASSIC, QUORUM))
        for name in _OF_BOTH
    },
    **by_name(_OTHERS),
}
OPERATOR_KEYS: Final = tuple(key for key, row in KEYS.items() if row.policy == POLICY_LIMIT)
_PRIORITY: Final = whole_number(-PRIORITY_MAX, PRIORITY_MAX)
_APPLY_TO: Final = choice(*APPLY_TO)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. kinds: the types of queues, and "exchange", to which it may apply: what
    `apply_to` has, without those for which one of its keys is not. OptionError: see `of`."""

    name: str
    pattern: Pattern
    apply_to: str
    priority: int
    definition: Mapping[str, object]
    kinds: frozenset[str]

    @classmethod
    def of(cls, component: str, name: str, value: Mapping[str, object]) -> "Policy":
        """Return the policy that is stored as `value`. Raises OptionError: which part of it is
        wrong, what was expected and what was given."""
        for member in value:
            check_known(member, value[member], ("pattern", "apply-to", "priority", "definition"))
        given = value.get("pattern")
        if not isinstance(given, str):
            raise OptionError("pattern", given, "a regular expression")
        try:
            pattern = Pattern(given)
        except ValueError as error:
            expected = f"a regular expression of RE2, docs/guides/users.md ({error})"
            raise OptionError("pattern", given[:100], expected) from error
        apply_to = checked(_APPLY_TO, "apply-to", value.get("apply-to", ALL))
        definition = _checked_definition(component, value.get("definition"))
        kinds = [kind for kind in APPLY_TO[apply_to] if _takes(kind, definition)]
        priority = checked(_PRIORITY, "priority", value.get("priority", 0))
        return cls(name, pattern, apply_to, priority, definition, frozenset(kinds))

    def value(self) -> dict[str, object]:
        """Return the policy as it is stored and listed, without its name."""
        return {
            "pattern": self.pattern.text,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }


def _checked_definition(component: str, given: object) -> dict[str, object]:
    keys = OPERATOR_KEYS if component == OPERATOR_POLICY else tuple(KEYS)
    if not isinstance(given, dict) or not given:
        raise OptionError("definition", given, 'an object such as {"max-length": 1000}')
    for key, value in given.items():
        if component == OPERATOR_POLICY and key in KEYS and key not in keys:
            raise OptionError(key, value, f"an operator policy with keys of {', '.join(keys)}")
        check_known(key, value, keys)
        checked(KEYS[key].kind, key, value)
    return dict(given)


def _takes(kind: str, definition: Mapping[str, object]) -> bool:
    """Return whether no key is for other types of queues alone."""
    for key in definition:
        applies = KEYS[key].applies
        if kind != EXCHANGE and applies and kind not in applies and EXCHANGE not in applies:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Applied:
    """The policies of one queue or exchange, and their definitions together."""

    policy: Policy | None
    operator: Policy | None
    definition: Mapping[str, object]

    def names(self) -> dict[str, object]:
        """Return the columns of a list, RabbitMQ's."""
        return {
            "policy": None if self.policy is None else self.policy.name,
            "operator_policy": None if self.operator is None else self.operator.name,
            "effective_policy_definition": dict(self.definition),
        }


NONE_APPLIED: Final = Applied(None, None, {})


def least(row: Option, one: object, other: object) -> object:
    """Return the lower one of two limits of this row. Below 0 there is no limit, and at 0 no
    timeout."""
    assert isinstance(one, int), "limits are whole numbers"
    assert isinstance(other, int), "limits are whole numbers"
    none = 0 if row.name == CONSUMER_TIMEOUT else -1
    return max(one, other) if one <= none or other <= none else min(one, other)


def merged(policy: Mapping[str, object], operator: Mapping[str, object]) -> dict[str, object]:
    """Return the definitions of a policy and an operator policy together."""
    found = dict(policy)
    for key, value in operator.items():
        found[key] = least(KEYS[key], found[key], value) if key in found else value
    return found


def joined(
    arguments: Mapping[str, object], definition: Mapping[str, object], kind: str
) -> dict[str, object]:
    """Return the arguments of a queue of this type with the values of a definition."""
    found = dict(arguments)
    for key, value in definition.items():
        row = KEYS[key]
        if row.name not in ARGUMENTS:
            continue
        if row.name in arguments and kind != STREAM:
            own = arguments[row.name]
            if row.policy == POLICY_LIMIT:
                found[row.name] = least(row, own, value)
                continue
            if not (row.name == _OVERFLOW and kind == QUORUM):
                continue
        found[row.name] = value
    return found


class Policies:
    """The policies of one vhost. on_event(kind, text): warning."""

    def __init__(self, engine: StorageEngine, on_event: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._on_event = on_event
        self._known: dict[str, dict[str, Policy]] = {POLICY: {}, OPERATOR_POLICY: {}}
        self._ordered: dict[str, list[Policy]] = {POLICY: [], OPERATOR_POLICY: []}
        self._reported: set[tuple[str, str]] = set()  # since the last change
        for (component, name), value in engine.routing.parameters.items():
            if component.decode() in self._known:
                self._recover(component.decode(), text_of(name), value)
        self._order()

    def _recover(self, component: str, name: str, value: bytes) -> None:
        try:
            facts = json.loads(value)
            assert isinstance(facts, dict), "stored as an object"
            self._known[component][name] = Policy.of(component, name, facts)
        except (AssertionError, OptionError, ValueError) as error:
            what = component.replace("_", " ")
            self._on_event("warning", f"{what} {name!r} applies to nothing: {error}")

    def _order(self) -> None:
        self._reported = set()
        for component, known in self._known.items():
            self._ordered[component] = sorted(known.values(), key=_rank)

    @property
    def is_empty(self) -> bool:
        """Whether there is no policy at all."""
        return not self._ordered[POLICY] and not self._ordered[OPERATOR_POLICY]

    @property
    def limits_memory(self) -> bool:
        """Whether one of them gives queues a memory limit."""
        return any(
            "queue-max-memory-bytes" in policy.definition
            for ordered in self._ordered.values()
            for policy in ordered
        )

    def all(self, component: str) -> list[Policy]:
        """Return all policies, or all operator policies, by name."""
        return sorted(self._known[component].values(), key=_name_of)

    def of(self, name: str, kind: str) -> Applied:
        """Return what applies to a queue of this type, or to an exchange."""
        if self.is_empty:
            return NONE_APPLIED
        policy, operator = (
            _first(self._ordered[component], name, kind) for component in (POLICY, OPERATOR_POLICY)
        )
        if policy is None and operator is None:
            return NONE_APPLIED
        definition = merged(
            {} if policy is None else policy.definition,
            {} if operator is None else operator.definition,
        )
        return Applied(policy, operator, definition)

    # ---- what they mean ------------------------------------------------------------------------

    def queue_options(
        self, name: str, arguments: Mapping[str, object], own: QueueOptions
    ) -> QueueOptions:
        """Return the options of a queue. own: those of its arguments alone."""
        kind = type_of(arguments)
        definition = self.of(name, kind).definition
        if not definition:
            return own
        given = without_qpids(arguments)
        try:
            return _with_priorities(
                QueueOptions.from_arguments(joined(given, definition, kind)), own
            )
        except OptionError:  # keys that contradict the queue's own options
            return self._as_many_as_fit(name, given, definition, kind, own)

    def _as_many_as_fit(
        self, name: str, given: Mapping[str, object], definition: Mapping[str, object], kind: str,
        own: QueueOptions,
    ) -> QueueOptions:  # fmt: skip
        options = own
        taken: dict[str, object] = {}
        for key, value in definition.items():
            try:
                found = QueueOptions.from_arguments(joined(given, {**taken, key: value}, kind))
            except OptionError as error:
                if (key, error.name) not in self._reported:
                    self._reported.add((key, error.name))
                    text = f"queue {name!r}: {key} of its policy is left out: {error}"
                    self._on_event("warning", text)
                continue
            options, taken[key] = found, value
        return _with_priorities(options, own)

    def stream_options(
        self, name: str, arguments: Mapping[str, object], own: StreamOptions
    ) -> StreamOptions:
        """Return the options of a stream. own: those of its arguments alone."""
        definition = self.of(name, STREAM).definition
        if not definition:
            return own
        found = StreamOptions.from_arguments(joined(arguments, definition, STREAM))
        return replace(found, partitions=own.partitions)

    def alternate(self, name: str, arguments: Mapping[str, object]) -> str | None:
        """Return the alternate exchange of an exchange, None if it has none."""
        found = arguments.get(ALTERNATE)
        if not isinstance(found, str):
            found = self.of(name, EXCHANGE).definition.get(ALTERNATE)
        return found if isinstance(found, str) else None

    # ---- changes -------------------------------------------------------------------------------

    def set(self, component: str, name: str, value: Mapping[str, object]) -> int:
        """Add or replace a policy; return the LSN. Until PolicyChanges has run it applies to what
        is declared or opened alone. ChannelError 406: see `Policy.of`; too many; no space. Nothing
        happened then."""
        try:
            policy = Policy.of(component, name, value)
        except OptionError as error:
            what = f"{component.replace('_', ' ')} {name!r}"
            raise refusals.precondition_failed(f"{what}: {error}") from error
        known = self._known[component]
        if name not in known and len(known) >= POLICIES_MAX:
            raise refusals.precondition_failed(
                f"{component.replace('_', ' ')} {name!r}: expected at most {POLICIES_MAX} of a "
                "vhost, clear one"
            )
        data = json.dumps(policy.value(), sort_keys=True, separators=(",", ":")).encode()
        if len(data) > VALUE_BYTES_MAX:
            raise refusals.precondition_failed(
                f"{component.replace('_', ' ')} {name!r}: given {len(data)} bytes, expected at "
                f"most {VALUE_BYTES_MAX}"
            )
        lsn = self._log(name, routing_table.set_parameter(component.encode(), bytes_of(name), data))
        known[name] = policy
        self._order()
        return lsn

    def clear(self, component: str, name: str) -> int:
        """Delete a policy; return the LSN. ChannelError: 404, 406 (no space)."""
        key = component.encode(), bytes_of(name)
        if key not in self._engine.routing.parameters:
            raise refusals.not_found(f"{component.replace('_', ' ')} {name!r}")
        lsn = self._log(name, routing_table.clear_parameter(*key))
        self._known[component].pop(name, None)
        self._order()
        return lsn

    def _log(self, name: str, record: bytes) -> int:
        try:
            return self._engine.apply_topology(record)
        except DiskFullError as error:
            raise refusals.no_space(f"policy {name!r}", error) from error


def expires_ms(options: QueueOptions) -> int | None:
    """Return the x-expires of a queue, None if it has none."""
    for name, value in options.extra:
        if name == EXPIRES and isinstance(value, int) and value > 0:
            return value
    return None


def _with_priorities(options: QueueOptions, own: QueueOptions) -> QueueOptions:
    """Return the options with the priorities that the queue has on disk, which its arguments may
    not say if they could not be understood."""
    if options.priorities == own.priorities:
        return options
    return replace(options, priorities=own.priorities)


def _first(policies: list[Policy], name: str, kind: str) -> Policy | None:
    for policy in policies:
        if kind in policy.kinds and policy.pattern.is_in(name):
            return policy
    return None


def _rank(policy: Policy) -> tuple[int, str]:
    return -policy.priority, policy.name


def _name_of(policy: Policy) -> str:
    return policy.name


Counts = Counter[tuple[str, str, str]]  # (component, name of the policy, EXCHANGE or QUEUE)
QUEUE: Final = "queue"


class PolicyChanges(BackgroundTask):
    """Applies changed policies to all queues and exchanges of a vhost, one in a step. That drops a
    slice of what is too much in a queue; the queue's ticks do the rest.

    everything(): returns the names of all exchanges and of all queues. exchange(name), queue(name):
    apply the policies to one, and return what applies; None: it is gone. on_error(what, error):
    one could not get them; the others do. wake(task): runs the steps.
    """

    def __init__(
        self, everything: Callable[[], tuple[list[str], list[str]]],
        exchange: Callable[[str], Applied | None], queue: Callable[[str], Applied | None],
        on_error: Callable[[str, Exception], None], wake: Callable[[BackgroundTask], None],
    ) -> None:  # fmt: skip
        self._everything = everything
        self._apply: dict[str, Callable[[str], Applied | None]] = {
            EXCHANGE: exchange, QUEUE: queue,
        }  # fmt: skip
        self._on_error = on_error
        self._wake = wake
        self._left: deque[tuple[str, str]] = deque()
        self._counts: Counts = Counter()
        self._waiters: list[Callable[[Counts], None]] = []

    def begin(self, done: Callable[[Counts], None]) -> None:
        """Apply all policies to everything that there is. Begins again if it is under way. done:
        called at the end, with how many queues and exchanges have each policy."""
        exchanges, queues = self._everything()
        self._left = deque((EXCHANGE, name) for name in exchanges)
        self._left.extend((QUEUE, name) for name in queues)
        self._counts = Counter()
        self._waiters.append(done)
        self._wake(self)

    def step(self) -> int:
        if self._left:
            kind, name = self._left.popleft()
            applied = self._apply[kind](name)
            if applied is not None and applied.policy is not None:
                self._counts[POLICY, applied.policy.name, kind] += 1
            if applied is not None and applied.operator is not None:
                self._counts[OPERATOR_POLICY, applied.operator.name, kind] += 1
            return AGAIN
        waiters, self._waiters = self._waiters, []
        for done in waiters:
            done(self._counts)
        return DONE

    def failed(self, error: Exception) -> None:
        """Report that one queue or exchange could not get its policies, and go on with the next."""
        self._on_error("policies", error)
        self._wake(self)
