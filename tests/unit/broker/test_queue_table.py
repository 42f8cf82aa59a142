"""Queues of a vhost: declared, found, deleted; who may have them; what comes back after a stop."""

import pytest

from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.vhost import VHostSettings
from penstock.errors import AMQPError, ChannelError, DiskFullError
from penstock.queues import priority_queue
from penstock.storage.files.durability import DISK
from penstock.storage.index.routing_table import DurableQueue
from tests.helpers.builds import pure_only
from tests.helpers.list_rows import rows_of_list
from tests.helpers.routed import route
from tests.helpers.vhost_rig import TakingChannel, VHostRig, classic

MIB = 1 << 20


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def refused(call: object, *given: object, **how: object) -> AMQPError:
    """The error that the call ends in."""
    assert callable(call)
    try:
        call(*given, **how)
    except AMQPError as error:
        return error
    raise AssertionError("it was not refused")


# --- declaring ---


def test_a_durable_queue_is_there_after_a_crash(rig: VHostRig) -> None:
    arguments: dict[str, object] = {
        "x-max-length": 5, "x-overflow": "drop-head", "x-mine": b"\xff", "x-expires": 1 << 40,
    }  # fmt: skip
    queue, lsn = rig.vhost.declare_queue(
        "q", durable=True, auto_delete=True, arguments=arguments, owner="me"
    )
    assert lsn == rig.vhost.engine.log.last_lsn
    assert queue.owner is None
    rig.answered(lsn)
    rig.put(queue, b"one")
    rig.crash()
    again, lsn = rig.vhost.declare_queue(
        "q", durable=True, auto_delete=True, arguments=arguments, owner="you"
    )
    assert lsn == 0
    assert rig.bodies(again) == [b"one"]
    assert again.arguments == arguments
    assert classic(again).amq.options.max_length == 5


def test_other_queues_are_not(rig: VHostRig) -> None:
    assert rig.vhost.declare_queue("passing")[1] == 0
    assert rig.vhost.declare_queue("mine", durable=True, exclusive=True, owner="me")[1] == 0
    rig.put(rig.queue("kept"), b"x")
    assert rig.vhost.table.names() == ["kept", "mine", "passing"]
    assert rig.restart().table.names() == ["kept"]
    rig.vhost.declare_queue("passing")
    assert rig.crash().table.names() == ["kept"]


def test_the_server_finds_a_name(rig: VHostRig) -> None:
    names = [rig.vhost.declare_queue("", exclusive=True, owner="me")[0].name for _ in range(20)]
    assert len(set(names)) == 20
    for name in names:
        assert name.startswith("amq.gen-")
        assert len(name) == len("amq.gen-") + 22
        assert not set(name[8:]) & set("+/=")
        assert route(rig.vhost.router, "", name) == [name]


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({"durable": False}, "durable", "received 'false' but current is 'true'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        (
            {"arguments": {"x-max-priority": 5}}, "x-max-priority",
            "received '5' but current is '10'",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_fresh", [True, False])
def test_declaring_again_must_be_the_same(
    rig: VHostRig, change: dict[str, object], name: str, text: str, is_fresh: bool
) -> None:
    queue = rig.queue(arguments={"x-max-priority": 10})
    if is_fresh:
        assert rig.queue(arguments={"x-max-priority": 10}) is queue
    else:
        rig.restart()
    given = {"durable": True, "arguments": {"x-max-priority": 10}, **change}
    error = refused(rig.vhost.declare_queue, "q", **given)
    assert isinstance(error, ChannelError)
    what = f"inequivalent arg '{name}' for queue 'q' in vhost 'test'"
    assert error.text == f"PRECONDITION_FAILED - {what}: {text}"


def test_names_that_nobody_may_declare(rig: VHostRig) -> None:
    generated = rig.vhost.declare_queue("", durable=True)[0].name
    for name in ("amq.mine", generated):
        error = refused(rig.vhost.declare_queue, name, durable=True)
        assert (
            error.text == f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"
        )
    assert rig.vhost.table.find_queue(generated).name == generated
    rig.vhost.delete_queue(rig.vhost.table.find_queue(generated))
    for name in ("a\0b", "x" * 256):
        assert refused(rig.vhost.declare_queue, name, durable=True).code == 406
    assert rig.vhost.table.names() == []


def test_wrong_arguments_leave_nothing_behind(rig: VHostRig) -> None:
    before = rig.vhost.engine.log.last_lsn
    for arguments in ({"x-message-ttl": -1}, {"x-queue-type": "quorum"}):
        error = refused(rig.vhost.declare_queue, "q", durable=False, arguments=arguments)
        assert error.code == 406
    given: dict[str, object] = {"x-queue-type": "stream", "x-max-age": "soon"}
    assert refused(rig.vhost.declare_queue, "q", durable=True, arguments=given).code == 406
    assert not rig.vhost.table.has("q")
    assert rig.vhost.engine.log.last_lsn == before


def test_a_quorum_queue_is_a_durable_classic_one(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    assert queue.amq.options.max_attempts == 3
    assert refused(rig.vhost.declare_queue, "q", durable=True).code == 406


@pure_only
def test_a_full_disk_refuses_a_declare_and_nothing_is_changed(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> object:
        raise DiskFullError("/", 0, 1)

    monkeypatch.setattr(rig.vhost.engine, "declare_queues", full)
    monkeypatch.setattr(rig.vhost.engine, "apply_topology", full)
    for call in (
        lambda: rig.vhost.declare_queue("q", durable=True),
        lambda: rig.vhost.topology.declare_exchange("x", "direct", durable=True),
    ):
        error = refused(call)
        assert isinstance(error, ChannelError)
        assert "no space for" in error.text
    assert not rig.vhost.table.has("q")
    assert "x" not in rig.vhost.exchanges


# --- who may have it ---


def test_an_exclusive_queue_is_its_connection_s_alone(rig: VHostRig) -> None:
    vhost = rig.vhost
    queue, _ = vhost.declare_queue("mine", durable=True, exclusive=True, owner="me")
    assert not queue.is_durable
    text = (
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost 'test'. "
        "It could be originally declared on another connection or the exclusive property value "
        "does not match that of the original declaration."
    )
    assert vhost.table.find_queue("mine", "me") is queue
    for durable in (True, False):  # which an exclusive queue never is
        again = vhost.declare_queue("mine", durable=durable, exclusive=True, owner="me")
        assert again == (queue, 0)
    for call in (
        lambda: vhost.table.find_queue("mine", "you"),
        lambda: vhost.declare_queue("mine", exclusive=True, owner="you"),
        lambda: vhost.declare_queue("mine", owner="you"),
        lambda: vhost.declare_queue("mine", owner="me"),
    ):
        assert refused(call).text == text
    vhost.declare_queue("all", owner="me")
    assert refused(vhost.declare_queue, "all", exclusive=True, owner="me").code == 405


def test_with_its_connection_it_goes(rig: VHostRig) -> None:
    vhost = rig.vhost
    channel = TakingChannel()
    for name in ("a", "b"):
        queue, _ = vhost.declare_queue(name, durable=True, exclusive=True, owner="me")
        vhost.bind_queue(name, "amq.fanout", "", {}, "me")
        rig.consume(queue, channel, name)
    vhost.declare_queue("c", exclusive=True, owner="you")
    vhost.table.owner_gone("me")
    assert vhost.table.names() == ["c"]
    assert channel.gone == ["a", "b"]
    assert route(vhost.router, "amq.fanout", "") == []
    assert refused(vhost.table.find_queue, "a").text == "NOT_FOUND - no queue 'a' in vhost 'test'"
    vhost.table.owner_gone("me")
    vhost.declare_queue("a", exclusive=True, owner="you")
    vhost.table.owner_gone("you")
    assert vhost.table.names() == []


def test_a_stored_exclusive_queue_has_nobody_any_more(rig: VHostRig) -> None:
    priority_queue.open_backing(rig.vhost.engine, b"left", flags=1)
    rig.queue("kept")
    assert rig.restart().table.names() == ["kept"]
    assert rig.crash().table.names() == ["kept"]


# --- deleting ---


def test_delete_takes_everything_along(rig: VHostRig) -> None:
    queue = rig.queue()
    channel = TakingChannel()
    woken: list[str] = []
    rig.put(queue, b"a", b"b")
    rig.vhost.bind_queue("q", "amq.direct", "k")
    queue.waiters.append(lambda: woken.append("it"))
    channel.can_deliver = False
    rig.consume(queue, channel)
    version = rig.vhost.router.version
    count, lsn = rig.vhost.delete_queue(queue)
    assert count == 2
    assert queue.is_deleted
    assert channel.gone == ["c"]
    assert woken == ["it"]
    assert rig.vhost.router.version > version
    assert route(rig.vhost.router, "", "q") == route(rig.vhost.router, "amq.direct", "k") == []
    rig.answered(lsn)
    vhost = rig.crash()
    assert not vhost.table.has("q")
    assert not vhost.engine.state.routing.bindings
    assert vhost.delete_queue(queue) == (0, 0)


@pytest.mark.parametrize("priorities", [0, 3])
def test_its_bindings_do_not_come_back_with_a_queue_of_its_name(
    rig: VHostRig, priorities: int
) -> None:
    arguments = {"x-max-priority": priorities} if priorities else {}
    queue = rig.queue(arguments=arguments)
    rig.put(queue, b"late", delay_ms=5000)
    rig.vhost.bind_queue("q", "amq.direct", "k")
    rig.vhost.delete_queue(queue)
    rig.queue(arguments=arguments)
    assert route(rig.crash().router, "amq.direct", "k") == []
    rig.tick(10)
    assert rig.bodies(rig.vhost.table.find_queue("q")) == []


def test_if_unused_and_if_empty(rig: VHostRig) -> None:
    queue = rig.queue()
    channel = TakingChannel()
    consumer = rig.consume(queue, channel)
    error = refused(rig.vhost.delete_queue, queue, if_unused=True)
    assert error.text == "PRECONDITION_FAILED - queue 'q' in vhost 'test' in use"
    rig.leave(consumer)
    rig.put(queue, b"x")
    error = refused(rig.vhost.delete_queue, queue, if_unused=True, if_empty=True)
    assert error.text == "PRECONDITION_FAILED - queue 'q' in vhost 'test' not empty"
    assert rig.vhost.purge_queue(queue)[0] == 1
    rig.vhost.delete_queue(queue, if_unused=True, if_empty=True)
    assert not rig.vhost.table.has("q")


def test_an_auto_delete_queue_goes_with_its_last_consumer(rig: VHostRig) -> None:
    queue = rig.queue(auto_delete=True)
    channel = TakingChannel()
    consumers = [rig.consume(queue, channel, tag) for tag in "ab"]
    rig.leave(consumers[0])
    assert rig.vhost.table.has("q")
    rig.leave(consumers[1])
    assert not rig.vhost.table.has("q")
    rig.vhost.engine.sync()
    assert not rig.crash().table.has("q")


def test_purge(rig: VHostRig) -> None:
    queue = rig.queue()
    rig.put(queue, b"a", b"b", b"c")
    assert queue.amq.fetch() is not None
    count, lsn = rig.vhost.purge_queue(queue)
    assert count == 2
    rig.answered(lsn)
    assert rig.bodies(rig.crash().table.find_queue("q")) == [b"a"]
    passing = rig.queue("p", durable=False)
    rig.put(passing, b"x")
    assert rig.vhost.purge_queue(passing) == (1, 0)
    assert rig.vhost.purge_queue(passing) == (0, 0)


# --- memory ---


def test_strict_memory_limits(rig: VHostRig) -> None:
    strict = VHostRig(memory_bytes=1 << 20, is_strict=True)
    error = refused(
        strict.vhost.declare_queue, "q", durable=True,
        arguments={"x-queue-max-memory-bytes": 2 << 20},
    )  # fmt: skip
    assert error.code == 406
    assert not strict.vhost.table.has("q")
    lax = VHostRig(memory_bytes=1 << 20)
    lax.queue(arguments={"x-queue-max-memory-bytes": 2 << 20})
    assert "memory limits" in lax.told("warning")[0]


def test_limits_of_queues_that_nobody_has_opened_yet_count(rig: VHostRig) -> None:
    strict = VHostRig(memory_bytes=10 * MIB, is_strict=True)
    strict.queue("old", arguments={"x-queue-max-memory-bytes": 8 * MIB})
    strict.restart()
    error = refused(
        strict.vhost.declare_queue, "new", durable=True,
        arguments={"x-queue-max-memory-bytes": 3 * MIB},
    )  # fmt: skip
    assert "the 2 MiB that other queues leave of 10 MiB" in error.text


def over_the_budget(*, is_strict: bool) -> VHostRig:
    """A vhost that is started with less memory than its queues may have together."""
    rig = VHostRig(memory_bytes=100 * MIB)
    for name, most in (("big", 20 * MIB), ("bigger", 30 * MIB), ("small", MIB)):
        rig.put(rig.queue(name, arguments={"x-queue-max-memory-bytes": most}), b"x")
    rig.queue("free")
    rig.settings = VHostSettings(DISK, 40 * MIB, is_strict, rig.settings.storage)
    rig.events.clear()
    rig.restart()
    return rig


def test_limits_beyond_the_budget_are_told_at_the_start() -> None:
    rig = over_the_budget(is_strict=False)
    assert rig.told("warning") == [
        "the queues' own memory limits come to 51 MiB, 128 % of it: 40 MiB; 'bigger' 30 MiB, "
        "'big' 20 MiB, 'small' 1 MiB"
    ]
    assert rig.bodies(rig.vhost.table.find_queue("bigger")) == [b"x"]


def test_strict_keeps_a_queue_down_whose_limit_does_not_fit() -> None:
    rig = over_the_budget(is_strict=True)
    vhost = rig.vhost
    why = (
        "its own memory limit is 30 MiB, expected at most the 20 MiB that other queues leave of "
        "40 MiB"
    )
    assert rig.told("warning")[1:] == [f"queue 'bigger' in vhost 'test' stays down: {why} (strict)"]
    rows = {row["name"]: row for row in rows_of_list(vhost, "list_queues")}
    for _ in range(2):  # before it is opened, and after
        assert (rows["bigger"]["state"], rows["bigger"]["why"]) == ("down", why)
        assert rows["bigger"]["messages"] == 1
        assert rows["big"]["state"] == "running"
        error = refused(vhost.table.find_queue, "bigger")
        assert (error.code, error.text) == (
            404, "NOT_FOUND - queue 'bigger' in vhost 'test' has crashed and failed to restart"
        )  # fmt: skip
        assert vhost.table.usable("bigger") is None
        rows = {row["name"]: row for row in rows_of_list(vhost, "list_queues")}
    assert rig.bodies(vhost.table.find_queue("big")) == [b"x"]
    assert refused(
        vhost.declare_queue, "bigger", durable=True,
        arguments={"x-queue-max-memory-bytes": 30 * MIB},
    ).code == 404  # fmt: skip
    # Its limit takes nothing from others.
    rig.queue("new", arguments={"x-queue-max-memory-bytes": 10 * MIB})


def test_a_queue_that_was_kept_down_starts_when_there_is_room() -> None:
    rig = over_the_budget(is_strict=True)
    assert rig.vhost.table.usable("bigger") is None
    rig.vhost.set_memory(50 * MIB)
    assert rig.vhost.table.usable("bigger") is None
    rig.vhost.set_memory(51 * MIB)
    assert rig.bodies(rig.vhost.table.find_queue("bigger")) == [b"x"]
    assert rig.told("queue_started") == ["queue 'bigger' in vhost 'test' starts: there is room"]
    (row,) = [row for row in rows_of_list(rig.vhost, "list_queues") if row["name"] == "bigger"]
    assert (row["state"], row["why"]) == ("running", "")
    assert rig.restart().table.usable("bigger") is None  # the settings are what they were

    rig = over_the_budget(is_strict=True)  # never named: nothing to open
    rig.vhost.delete_queue(rig.vhost.table.find_queue("big"))
    assert rig.bodies(rig.vhost.table.find_queue("bigger")) == [b"x"]


def test_a_queue_that_is_kept_down_can_be_deleted_and_declared_smaller() -> None:
    rig = over_the_budget(is_strict=True)
    queue = rig.vhost.table.find_queue("bigger", is_crashed_allowed=True)
    rig.vhost.delete_queue(queue)
    rig.queue("bigger", arguments={"x-queue-max-memory-bytes": 19 * MIB})
    assert rig.bodies(rig.restart().table.find_queue("bigger")) == []


# --- stored queues ---


def test_a_queue_is_opened_when_it_is_named(rig: VHostRig) -> None:
    rig.queue("a")
    rig.put(rig.queue("b"), b"x")
    vhost = rig.restart()
    assert vhost.queues == {}
    assert route(vhost.router, "", "b") == ["b"]
    assert vhost.queues == {}
    queue = vhost.table.usable("b")
    assert isinstance(queue, BrokerQueue)
    assert vhost.table.usable("b") is queue
    assert list(vhost.queues) == ["b"]
    assert vhost.table.usable("c") is None


@pytest.mark.large
def test_ten_thousand_queues_are_not_opened_at_the_start(rig: VHostRig) -> None:
    engine = rig.vhost.engine
    declared = [(b"q%d" % n, b'{"x-max-length":5}', 0) for n in range(10_000)]
    engine.declare_queues(declared)
    rig.vhost.queue_set.stored.update(dict.fromkeys(name.decode() for name, _, _ in declared))
    for n in range(0, 10_000, 100):
        rig.vhost.topology.bind("amq.topic", "q", f"q{n}", f"k.{n}", {}, is_durable=True)
    engine.sync()
    vhost = rig.crash()
    assert vhost.queues == {}
    assert len(vhost.table.names()) == 10_000
    assert route(vhost.router, "amq.topic", "k.500") == ["q500"]
    queue = vhost.table.usable("q500")
    assert queue is not None
    assert classic(queue).amq.options.max_length == 5


def test_what_cannot_be_understood_is_left_out_and_the_messages_are_there(rig: VHostRig) -> None:
    rig.put(rig.queue(), b"x")
    known = rig.vhost.engine.state.routing.queues[b"q"]
    for arguments in (b"no JSON", b'{"x-max-length":-5}', b'{"x-overflow":"from the future"}'):
        changed = DurableQueue(known.name, known.number, 0, arguments)
        rig.vhost.engine.apply_topology(changed.record(), DISK)
        queue = rig.restart().table.find_queue("q")
        assert rig.bodies(queue) == [b"x"]
        assert queue.arguments == {}
        assert "its arguments are left out" in rig.told("warning")[-1]
