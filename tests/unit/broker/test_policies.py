"""Policies: which one applies, what counts, and that a change reaches what there is."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker import policies
from penstock.codec.spec import BasicConsume, BasicConsumeOk, BasicDeliver
from penstock.errors import AMQPError
from penstock.operation_table import OPERATIONS
from penstock.queues.amq_queue import AMQQueue
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


def put_policy(
    rig: OperationRig, name: str = "p", pattern: str = ".*", *, operator: bool = False,
    priority: int = 0, apply_to: str = "all", **definition: object,
) -> Any:  # fmt: skip
    """Set a policy; underlines in keys stand for hyphens."""
    return rig.result(
        "set_operator_policy" if operator else "set_policy", name=name, pattern=pattern,
        definition={key.replace("_", "-"): value for key, value in definition.items()},
        priority=priority, apply_to=apply_to,
    )  # fmt: skip


def declare(rig: OperationRig, name: str = "q", **arguments: object) -> None:
    given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    rig.result("declare_queue", queue=name, arguments=given)


def amq_of(rig: OperationRig, name: str = "q") -> AMQQueue:
    return classic(rig.vhost.table.find(name)).amq


def row_of(rig: OperationRig, name: str = "q", op: str = "list_queues") -> dict[str, Any]:
    return next(row for row in rig.result(op) if row["name"] == name)


def applied(rig: OperationRig, name: str = "q", op: str = "list_queues") -> tuple[Any, ...]:
    row = row_of(rig, name, op)
    return row["policy"], row["operator_policy"], row["effective_policy_definition"]


def ready(rig: OperationRig, name: str = "q") -> list[bytes]:
    return [d.message.body or b"" for d in amq_of(rig, name).browse(None, 1000)]


# --- which one ---


def test_the_highest_priority_wins_and_of_equal_ones_the_first_name(rig: OperationRig) -> None:
    declare(rig)
    put_policy(rig, "b", max_length=1)
    put_policy(rig, "a", max_length=2)
    put_policy(rig, "z", max_length=3, priority=-1)
    assert applied(rig) == ("a", None, {"max-length": 2})
    put_policy(rig, "z", max_length=3, priority=1)
    assert applied(rig) == ("z", None, {"max-length": 3})
    rig.result("clear_policy", name="z")
    rig.result("clear_policy", name="a")
    assert applied(rig) == ("b", None, {"max-length": 1})
    rig.result("clear_policy", name="b")
    assert applied(rig) == (None, None, {})
    assert amq_of(rig).options.max_length is None


@pytest.mark.parametrize(
    ("apply_to", "those"),
    [
        ("queues", ["classic", "quorum", "stream"]), ("classic_queues", ["classic"]),
        ("quorum_queues", ["quorum"]), ("streams", ["stream"]), ("exchanges", ["exchange"]),
        ("all", ["classic", "quorum", "stream", "exchange"]),
    ],
)  # fmt: skip
def test_what_it_applies_to(rig: OperationRig, apply_to: str, those: list[str]) -> None:
    for kind in ("classic", "quorum", "stream"):
        declare(rig, kind, queue_type=kind)
    rig.result("declare_exchange", exchange="exchange")
    put_policy(rig, max_length=5, pattern="^(classic|quorum|stream|exchange)$", apply_to=apply_to)
    found = [name for name in ("classic", "quorum", "stream") if applied(rig, name)[0]]
    if applied(rig, "exchange", "list_exchanges")[0]:
        found.append("exchange")
    assert found == those


def test_a_key_of_other_types_makes_it_apply_to_none_of_this(rig: OperationRig) -> None:
    declare(rig)
    declare(rig, "s", queue_type="stream")
    assert put_policy(rig, "low", max_length=7) == {
        "queues": 2, "exchanges": 9, "is_new": True
    }  # fmt: skip
    assert put_policy(rig, "p", max_age="1D", priority=1)["queues"] == 1
    assert applied(rig)[0] == "low"
    assert applied(rig, "s")[0] == "p"


def test_the_pattern_is_found_anywhere(rig: OperationRig) -> None:
    declare(rig, "an order")
    declare(rig, "orders")
    put_policy(rig, pattern="order$", max_length=1)
    assert applied(rig, "an order")[0] == "p"
    assert applied(rig, "orders")[0] is None


# --- what counts ---


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "counts"),
    [
        (5, 3, 4, 3), (5, 4, 3, 3), (3, 4, 5, 3), (None, 4, 5, 4), (None, None, 5, 5),
        (5, None, 9, 5),
    ],
)  # fmt: skip
def test_of_limits_the_least(
    rig: OperationRig, argument: int | None, policy: int | None, operator: int | None, counts: int
) -> None:
    if policy is not None:
        put_policy(rig, max_length=policy)
    if operator is not None:
        put_policy(rig, "o", operator=True, max_length=operator)
    declare(rig, **({} if argument is None else {"max_length": argument}))
    assert amq_of(rig).options.max_length == counts


def test_no_limit_is_more_than_any(rig: OperationRig) -> None:
    declare(rig, delivery_limit=-1)
    declare(rig, "p", delivery_limit=3)
    put_policy(rig, delivery_limit=5)
    assert amq_of(rig).options.max_attempts == 6
    assert amq_of(rig, "p").options.max_attempts == 4
    put_policy(rig, delivery_limit=-1)
    assert amq_of(rig).options.max_attempts is None
    assert amq_of(rig, "p").options.max_attempts == 4


def test_otherwise_the_argument(rig: OperationRig) -> None:
    declare(rig, overflow="drop-head", dead_letter_exchange="mine")
    declare(rig, "quorum", queue_type="quorum", overflow="drop-head")
    put_policy(
        rig, overflow="reject-publish", dead_letter_exchange="other", dead_letter_routing_key="k"
    )
    options = amq_of(rig).options
    assert options.overflow == "drop-head"
    assert options.dead_letter_exchange == ("mine", "k")
    assert amq_of(rig, "quorum").options.overflow == "reject-publish"


def test_a_stream_takes_the_policy(rig: OperationRig) -> None:
    declare(rig, "s", queue_type="stream", max_age="1h", max_length_bytes=100)
    put_policy(rig, max_age="2h", max_length_bytes=200, stream_max_segment_size_bytes=8192)
    stream = rig.vhost.streams.all()[0]
    assert (stream.options.max_age_s, stream.options.max_bytes) == (7200, 200)
    declare(rig, "t", queue_type="stream", stream_max_segment_size_bytes=5000)
    (stream,) = (one for one in rig.vhost.streams.all() if one.name == "t")
    assert stream.parts[0].queue.page_bytes == 8192
    rig.restart()
    stream = rig.vhost.streams.all()[0]
    assert (stream.options.max_age_s, stream.options.max_bytes) == (7200, 200)
    rig.result("clear_policy", name="p")
    assert stream.options.max_age_s == 3600


def test_qpids_limits_are_arguments_too(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q", arguments={"qpid.max_count": 5})
    put_policy(rig, max_length=3, overflow="drop-head")
    assert amq_of(rig).options.max_length == 3
    assert amq_of(rig).options.overflow == "reject-publish"


def test_a_key_that_contradicts_the_arguments_is_left_out(rig: OperationRig) -> None:
    declare(rig, retry_delay_min=5000, retry_delay_max=6000, max_priority=3)
    declare(rig, "r")
    put_policy(rig, queue_min_memory_bytes=100, max_length=4)
    assert amq_of(rig).options.max_length == 4
    assert amq_of(rig).options.min_memory_bytes is None
    (text,) = [text for kind, text in rig.events if "left out" in text]
    assert text == (
        "queue 'q': queue-min-memory-bytes of its policy is left out: "
        "option x-queue-min-memory-bytes: given 100, expected nothing, as max_memory_bytes is "
        "not given"
    )
    rig.restart()
    assert amq_of(rig).options.max_length == 4
    assert amq_of(rig).options.priorities == 3


def test_what_is_accepted_has_no_effect(rig: OperationRig) -> None:
    declare(rig)
    definition = {"ha-mode": "all", "queue-version": 2, "queue-master-locator": "min-masters"}
    rig.result("set_policy", name="p", pattern="", definition=definition)
    assert applied(rig) == ("p", None, definition)


# --- on what there is ---


def test_a_lower_limit_dead_letters_what_is_too_much(rig: OperationRig) -> None:
    declare(rig)
    declare(rig, "dead")
    rig.put("q", b"1", b"2", b"3", b"4")
    put_policy(
        rig, pattern="^q$", max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    assert ready(rig) == [b"4"]
    assert ready(rig, "dead") == [b"1", b"2", b"3"]
    rig.result("clear_policy", name="p")
    rig.put("q", b"5")
    assert ready(rig) == [b"4", b"5"]


def test_a_deep_queue_is_shortened_in_slices(rig: OperationRig) -> None:
    declare(rig)
    for _ in range(8):
        rig.put("q", *[b"x"] * 100)
    changes = rig.vhost._policy_changes
    rig.ask("set_policy", name="p", pattern="^q", definition={"max-length": 1})
    before = 800
    while changes._left:
        changes.step()
        assert before - len(ready(rig)) <= 256
        before = len(ready(rig))
    assert len(ready(rig)) == 800 - 256
    rig.turn()
    rig.tick()
    rig.tick()
    rig.tick()
    assert len(ready(rig)) == 1


def test_a_lower_limit_reaches_a_queue_that_nobody_has_opened(rig: OperationRig) -> None:
    declare(rig)
    declare(rig, "short")
    rig.put("q", b"1", b"2", b"3")
    rig.restart()
    put_policy(rig, max_length=2)
    assert rig.vhost.table.is_stored("short")
    rig.tick()
    assert row_of(rig)["messages"] == 2


def test_a_restart_trims_what_the_crash_left(rig: OperationRig) -> None:
    declare(rig)
    rig.put("q", b"1", b"2", b"3")
    put_policy(rig, max_length=2)
    rig.restart()
    rig.turn()
    rig.tick()
    assert row_of(rig)["messages"] == 2


def test_a_ttl_is_for_messages_that_come_later(rig: OperationRig) -> None:
    declare(rig)
    rig.put("q", b"old")
    put_policy(rig, message_ttl=100)
    rig.put("q", b"new")
    rig.tick(0.2)
    assert ready(rig) == [b"old", b"new"]  # behind the head
    rig.result("purge_queue", queue="q")
    rig.put("q", b"new")
    rig.tick(0.2)
    assert ready(rig) == []


def test_rejecting_begins_at_once(rig: OperationRig) -> None:
    declare(rig)
    rig.put("q", b"1", b"2")
    put_policy(rig, max_length=1, overflow="reject-publish")
    rig.tick()
    assert ready(rig) == [b"1", b"2"]
    with pytest.raises(AMQPError, match="a queue is full"):
        rig.put("q", b"3")


def test_expires_counts_from_the_change(rig: OperationRig) -> None:
    declare(rig)
    rig.tick(60)
    put_policy(rig, expires=5000)
    rig.tick(4.9)
    assert rig.vhost.table.has("q")
    rig.tick(0.2)
    assert not rig.vhost.table.has("q")


def test_expires_that_comes_and_goes(rig: OperationRig) -> None:
    declare(rig)
    for _ in range(500):
        put_policy(rig, expires=5000)
        rig.result("clear_policy", name="p")
    assert len(rig.vhost.timers._expiries) < 300
    rig.tick(10)
    assert rig.vhost.table.has("q")
    put_policy(rig, expires=5000)
    rig.restart()
    rig.turn()
    rig.tick(4.9)
    assert rig.vhost.table.has("q")
    rig.tick(0.2)
    assert not rig.vhost.table.has("q")


def test_an_alternate_exchange_comes_and_goes(rig: OperationRig) -> None:
    declare(rig)
    rig.result("declare_exchange", exchange="own", arguments={"alternate-exchange": "x"})
    rig.result("declare_exchange", exchange="source")
    rig.result("declare_exchange", exchange="rest", type="fanout")
    rig.result("bind_queue", queue="q", exchange="rest")
    client = rig.client().open()

    def publish(body: bytes) -> None:
        for name in ("source", "own"):  # each time by the same channel, which caches routes
            client.publish(1, name, "k", body)
        rig.turn()

    publish(b"1")
    put_policy(rig, alternate_exchange="rest", apply_to="exchanges")
    publish(b"2")
    assert ready(rig) == [b"2"]
    rig.restart()
    client = rig.client().open()
    publish(b"3")
    rig.result("clear_policy", name="p")
    publish(b"4")
    assert ready(rig) == [b"3"]  # b"2" was transient


def test_a_consumer_timeout(rig: OperationRig) -> None:
    declare(rig)
    rig.put("q", b"1")
    client = rig.client().open()
    client.call(1, BasicConsume(queue="q", consumer_tag="c"), BasicConsumeOk)
    put_policy(rig, consumer_timeout=5000)
    for _ in range(7):
        rig.tick(1.0)
    first, second = client.messages()
    assert isinstance(second.method, BasicDeliver)
    assert (first.body, second.body, second.method.redelivered) == (b"1", b"1", True)
    declare(rig, "never", consumer_timeout=0)
    declare(rig, "more", consumer_timeout=9000)
    found = [timeout_of(rig, name) for name in ("q", "never", "more")]
    assert found == [5.0, 5.0, 5.0]
    rig.result("clear_policy", name="p")
    found = [timeout_of(rig, name) for name in ("q", "never", "more")]
    assert found == [None, 0.0, 9.0]


def test_a_memory_limit(rig: OperationRig) -> None:
    declare(rig)
    put_policy(rig, queue_max_memory_bytes=4096)
    assert row_of(rig)["memory_max"] == 4096
    rig.result("clear_policy", name="p")
    assert row_of(rig)["memory_max"] is None


def test_a_strict_start_keeps_down_what_a_policy_gives_too_much() -> None:
    rig = OperationRig(memory_bytes=64 << 20)
    rig.settings = replace(rig.settings, is_strict=True)
    for name in "abc":
        rig.result("declare_queue", queue=name, durable=True)
        rig.put(name, b"x", delivery_mode=2)
    put_policy(rig, pattern=".", queue_max_memory_bytes=30 << 20)
    assert "come to 90 MiB" in rig.events[-1][1]
    rig.restart()

    def states() -> list[str]:
        return [row["state"] for row in rig.result("list_queues")]

    assert states() == ["running", "running", "down"]
    assert rig.vhost.table.kept_down["c"].startswith("its own memory limit is 30 MiB, expected ")
    put_policy(rig, pattern=".", queue_max_memory_bytes=20 << 20)
    assert states() == ["running"] * 3
    rig.restart()
    assert states() == ["running"] * 3
    put_policy(rig, pattern=".", queue_max_memory_bytes=60 << 20)
    rig.restart()
    assert states() == ["running", "down", "down"]
    rig.result("clear_policy", name="p")
    assert states() == ["running"] * 3


def test_alerts_and_retries(rig: OperationRig) -> None:
    declare(rig)
    rig.put("q", b"1", b"2")
    put_policy(rig, alert_count_up=2, retry_delay_min=0, delay=0)
    rig.tick()
    assert [row["is_on"] for row in rig.result("list_alerts")] == [True]
    assert amq_of(rig).options.retry_delay_ms_min == 0
    rig.result("clear_policy", name="p")
    rig.tick()
    assert [row for row in rig.result("list_alerts") if row["is_on"]] == []


def test_many_queues_in_slices(rig: OperationRig) -> None:
    for n in range(100):
        rig.vhost.declare_queue(f"q{n}")
    steps: list[int] = []
    changes = rig.vhost._policy_changes
    rig.ask("set_policy", name="p", pattern="q", definition={"max-length": 1})
    while changes._left:
        before = len(changes._left)
        changes.step()
        steps.append(before - len(changes._left))
    assert max(steps) == 1
    rig.turn()
    assert amq_of(rig, "q99").options.max_length == 1


def test_a_change_in_the_middle_of_another(rig: OperationRig) -> None:
    for n in range(50):
        rig.vhost.declare_queue(f"q{n}")
    first = rig.ask("set_policy", name="p", pattern="^q", definition={"max-length": 1})
    rig.vhost._policy_changes.step()
    second = rig.ask("set_policy", name="p", pattern="^q", definition={"max-length": 2})
    rig.turn()
    counts = {"queues": 50, "exchanges": 0}
    assert first.result == {**counts, "is_new": True}
    assert second.result == {**counts, "is_new": False}
    assert {amq_of(rig, f"q{n}").options.max_length for n in range(50)} == {2}


# --- kept ---


def test_they_are_kept(rig: OperationRig) -> None:
    put_policy(rig, "p", "^a", max_length=5, priority=3, apply_to="queues")
    put_policy(rig, "o", "^b", operator=True, max_length=6)
    rig.restart()
    assert rig.result("list_policies") == [
        {
            "vhost": "/", "name": "p", "pattern": "^a", "apply-to": "queues", "priority": 3,
            "definition": {"max-length": 5},
        }
    ]  # fmt: skip
    assert [row["name"] for row in rig.result("list_operator_policies")] == ["o"]
    rig.result("clear_policy", name="p")
    rig.result("clear_operator_policy", name="o")
    rig.restart()
    assert rig.result("list_policies") == rig.result("list_operator_policies") == []


def test_one_of_a_later_version_stays_stored(rig: OperationRig) -> None:
    engine = rig.vhost.engine
    record = policies.routing_table.set_parameter(
        b"policy", b"new", b'{"pattern": "", "definition": {"later": 1}}'
    )
    engine.apply_topology(record)
    rig.restart()
    assert rig.result("list_policies") == []
    assert [text for _, text in rig.events if "'new' applies to nothing" in text]
    assert engine.routing.parameters.keys() == rig.vhost.engine.routing.parameters.keys()
    rig.result("clear_policy", name="new")
    assert rig.vhost.engine.routing.parameters == {}


# --- bad input ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pattern": "("}, "policy 'p': option pattern: given '(', expected a regular"),
        ({"definition": {}}, "expected an object such as"),
        ({"definition": {"max-lenght": 1}}, "did you mean 'max-length'"),
        ({"definition": {"max-priority": 1}}, "max-priority"),
        ({"definition": {"max-length": "many"}}, "option max-length: given 'many', expected a"),
        ({"definition": {"max-length": 5, "overflow": "x"}}, "expected drop-head"),
        ({"definition": {"max-age": "7"}}, 'such as "7D"'),
        ({"definition": {"max-length": True}}, "given True"),
        ({"apply_to": "channels"}, "'apply_to': given 'channels', expected queues"),
        ({"priority": 1 << 40}, "'priority'"),
        ({"definition": {"dead-letter-exchange": "x" * 70_000}}, "expected at most 65536"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_changes(
    rig: OperationRig, given: dict[str, object], said: str
) -> None:
    put_policy(rig, max_length=5)
    before = rig.vhost.engine.log.last_lsn
    error = rig.refusal(
        "set_policy", **{"name": "p", "pattern": "", "definition": {"max-length": 1}, **given}
    )
    assert said in error.text
    assert error.code == 406
    assert rig.vhost.engine.log.last_lsn == before
    assert rig.result("list_policies")[0]["definition"] == {"max-length": 5}


@pytest.mark.parametrize("pattern", [r"^(a)\1$", "(?=a)a", "a" * 1025])
def test_a_pattern_that_cannot_be_matched_in_linear_time(rig: OperationRig, pattern: str) -> None:
    declare(rig, "a" * 200)
    error = rig.refusal("set_policy", name="p", pattern=pattern, definition={"max-length": 1})
    assert "expected a regular expression of RE2" in error.text


def test_operator_policies_have_limits_alone(rig: OperationRig) -> None:
    error = rig.refusal(
        "set_operator_policy", name="p", pattern="", definition={"overflow": "drop-head"}
    )
    assert "an operator policy with keys of expires, message-ttl, max-length" in error.text


def test_there_is_none(rig: OperationRig) -> None:
    error = rig.refusal("clear_policy", name="p")
    assert (error.code, error.text) == (404, "NOT_FOUND - no policy 'p'")


def test_too_many(rig: OperationRig) -> None:
    rig.vhost.policies._known[policies.POLICY] = dict.fromkeys(
        map(str, range(policies.POLICIES_MAX)), policies.Policy.of("policy", "x", VALUE)
    )
    error = rig.refusal("set_policy", name="p", pattern="", definition={"max-length": 1})
    assert f"expected at most {policies.POLICIES_MAX}" in error.text


VALUE = {"pattern": "", "definition": {"max-length": 1}}


def test_tags(rig: OperationRig) -> None:
    def channel(tag: str) -> Any:
        client = rig.client(Identity("u", frozenset({tag}), ".*", ".*", ".*")).open()
        return client.handler.channels[1]

    given: dict[str, Any] = {"name": "p", "pattern": "", "definition": {"max-length": 1}}
    assert rig.refusal("set_policy", channel("monitoring"), **given).code == 403
    assert rig.result("set_policy", channel("policymaker"), **given)["queues"] == 0
    assert rig.refusal("set_operator_policy", channel("policymaker"), **given).code == 403
    assert rig.result("set_operator_policy", channel("administrator"), **given)["queues"] == 0
    assert OPERATIONS["list_operator_policies"].tags == OPERATIONS["set_policy"].tags


# --- parameters ---


def test_parameters_are_kept(rig: OperationRig) -> None:
    value = {"src-queue": "q", "dest-uri": ["amqp://"]}
    rig.result("set_parameter", component="shovel", name="a", value=value)
    rig.result("set_parameter", component="federation-upstream", name="b", value=5)
    put_policy(rig, max_length=1)
    rig.restart()
    assert rig.result("list_parameters") == [
        {"component": "federation-upstream", "name": "b", "value": 5},
        {"component": "shovel", "name": "a", "value": value},
    ]
    rig.result("clear_parameter", component="shovel", name="a")
    rig.restart()
    assert [row["name"] for row in rig.result("list_parameters")] == ["b"]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"component": "creator"}, 406, "expected shovel, federation-upstream or"),
        ({"component": "policy"}, 406, "given 'policy'"),
        ({"value": "x" * 65_536}, 406, "'value': given 65538 bytes, expected at most 65536"),
    ],
)
def test_wrong_parameters(
    rig: OperationRig, given: dict[str, object], code: int, said: str
) -> None:
    error = rig.refusal(
        "set_parameter", **{"component": "shovel", "name": "a", "value": 1, **given}
    )
    assert error.code == code
    assert said in error.text
    assert rig.result("list_parameters") == []
    gone = rig.refusal("clear_parameter", component="shovel", name="a")
    assert (gone.code, gone.text) == (404, "NOT_FOUND - no parameter 'a' of shovel")


# --- the default queue type of a vhost ---


def test_a_queue_without_a_type_gets_the_default_one(rig: OperationRig) -> None:
    rig.vhost.limits.set({}, {}, {"/": "quorum"})
    declare(rig)
    assert row_of(rig)["type"] == "quorum"
    assert row_of(rig)["arguments"] == {"x-queue-type": "quorum"}
    declare(rig)  # again
    declare(rig, queue_type="quorum")
    declare(rig, "c", queue_type="classic")
    declare(rig, "c")
    assert row_of(rig, "c")["type"] == "classic"
    rig.vhost.limits.set({}, {}, {"/": "stream"})
    declare(rig, "s")
    assert row_of(rig, "s")["type"] == "stream"
    assert rig.result("declare_queue", queue="s")["queue"] == "s"


def test_who_cannot_have_the_default_type_does_not(rig: OperationRig) -> None:
    rig.vhost.limits.set({}, {}, {"/": "quorum"})
    for name, how in (("t", {"durable": False}), ("a", {"auto_delete": True})):
        rig.result("declare_queue", queue=name, **how)
        assert row_of(rig, name)["type"] == "classic"
    queue, _ = rig.vhost.declare_queue("x", exclusive=True, owner=self_of(rig))
    assert queue.arguments == {}
    found = rig.result("declare_queue", queue="")
    assert row_of(rig, found["queue"])["type"] == "classic"


def timeout_of(rig: OperationRig, queue: str) -> float | None:
    return rig.vhost.table.find_queue(queue).amq.options.consumer_timeout_s


def self_of(rig: OperationRig) -> object:
    return rig.client().handler


def test_consumer_timeouts_and_delayed_retries(rig: OperationRig) -> None:
    declare(rig, consumer_timeout=9000)
    assert not rig.vhost.has_timeouts
    put_policy(
        rig, consumer_timeout=5000, delayed_retry_type="all", delayed_retry_min=100,
        delayed_retry_max=300,
    )  # fmt: skip
    options = amq_of(rig).options
    assert (options.consumer_timeout_s, options.requeue_delay_ms) == (5.0, (100, 300))
    assert rig.vhost.has_timeouts
    rig.result("clear_policy", name="p")
    options = amq_of(rig).options
    assert (options.consumer_timeout_s, options.requeue_delay_ms) == (9.0, None)
