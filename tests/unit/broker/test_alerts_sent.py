"""AlertManager: what is logged of alerts, how much, and what clients get of them."""

import json
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker import alerts, background_tasks
from penstock.broker.alerts import (
    ALL_BURST,
    FILES_MAX,
    KEY_BURST,
    OUTBOX_MAX,
    WAITING_MAX,
    routing_key,
)
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.topology import ALERTS
from penstock.codec.properties import BasicProperties
from penstock.errors import CorruptionError, damaged_at
from penstock.storage.files.durability import NONE
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig
from tests.helpers.steps import cost_of
from tests.helpers.vhost_rig import TakingChannel, VHostRig, classic


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def bind(rig: VHostRig, name: str, key: str = "#", **how: object) -> BrokerQueue:
    """A queue that gets alerts."""
    queue = rig.queue(name, **how)
    rig.answered(rig.vhost.bind_queue(name, ALERTS, key))
    return queue


def flow(rig: VHostRig, queue: str, n: int = 1, *, ends: bool = True) -> None:
    """As a queue that swings around its limit."""
    for _ in range(n):
        rig.vhost.event("flowed", f"queue {queue!r}: flows", queue)
        if ends:
            rig.vhost.event("recovered", f"queue {queue!r}: is back", queue)


def keys(rig: VHostRig, queue: BrokerQueue) -> list[str]:
    """Routing keys of all that is ready in it."""
    found = []
    for delivery in queue.amq.browse(None, 10_000):
        address, _ = rig.vhost.headers.parts(delivery.message.header, queue.name)
        cut = 1 + address[0]
        assert address[1:cut] == ALERTS.encode()
        found.append(address[cut + 1 :].decode("utf-8", "surrogateescape"))
    return found


def told(rig: VHostRig, queue: BrokerQueue) -> list[dict[str, Any]]:
    """What the bodies of all that is ready in it say."""
    return [json.loads(body) for body in rig.bodies(queue)]


# ---- how much ------------------------------------------------------------------------------------


def test_no_queue_floods_the_log_and_the_last_that_it_tells_is_how_it_is(rig: VHostRig) -> None:
    for _ in range(100):
        flow(rig, "q", 100)
        rig.tick()
    lines = [text for kind, text in rig.events if kind in ("flowed", "recovered")]
    assert len(lines) <= KEY_BURST + 2
    rig.vhost.event("flowed", "queue 'q': flows at last", "q")
    rig.tick(20)
    kind, text = rig.events[-1]
    assert kind == "flowed"
    assert text.startswith("queue 'q': flows at last (")
    assert text.endswith(" changes before this one were left out)")
    left_out = sum(
        int(text.rpartition(" (")[2].split()[0]) for _, text in rig.events if "(" in text
    )
    assert left_out + sum(1 for kind, _ in rig.events if kind in ("flowed", "recovered")) == 20_001
    rows = rig.vhost.alerts.list.rows()
    assert [(row["kind"], row["is_on"], row["count"]) for row in rows] == [
        ("recovered", None, 10_000), ("flowed", True, 10_001)
    ]  # fmt: skip


def test_all_queues_together_do_not_and_the_vhosts_own_are_told_at_once(rig: VHostRig) -> None:
    for n in range(5000):
        flow(rig, f"q{n}", ends=False)
    rig.vhost.event("memory_alarm", "memory: 7 counted in RAM are above 5")
    assert [kind for kind, _ in rig.events].count("flowed") == ALL_BURST
    left_out = 5000 - ALL_BURST - WAITING_MAX
    assert rig.events[-1] == (
        "memory_alarm",
        f"memory: 7 counted in RAM are above 5 ({left_out} alerts of other queues were left out)",
    )
    assert len(rig.vhost.alerts.list.rows()) == 5001
    for _ in range(WAITING_MAX):
        rig.tick(2.5)
        if rig.told("flowed")[-1].startswith("queue 'q4999'"):
            break
    assert len(rig.told("flowed")) == ALL_BURST + WAITING_MAX == 5000 - left_out


def test_an_alert_that_is_no_alert_is_logged_as_it_was(rig: VHostRig) -> None:
    for _ in range(10):
        rig.vhost.event("warning", "of something else")
    assert rig.told("warning") == ["of something else"] * 10
    assert rig.vhost.alerts.list.rows() == []


# ---- damage --------------------------------------------------------------------------------------


def damage(rig: VHostRig, file: str, n: int, queue: str = "q") -> None:
    for i in range(n):
        error = CorruptionError(file, 64 + 32 * i, "the checksum is wrong")
        text = f"queue {queue!r}: seq {i} of queue 3 set aside: {error}"
        rig.vhost.alerts.queue_event(queue, "corruption", text)


def test_a_damaged_file_is_one_line_whatever_it_held(rig: VHostRig) -> None:
    damage(rig, "/vhost/queues/ab.3/0.qs", 8192)
    damage(rig, "/vhost/queues/ab.3/1.qs", 1)
    assert rig.told("corruption") == []
    rig.turn()
    first = "queue 'q': seq 0 of queue 3 set aside: /vhost/queues/ab.3/"
    assert rig.told("corruption") == [
        f"{first}0.qs: at byte 64: the checksum is wrong; and 8191 more in this file so far",
        f"{first}1.qs: at byte 64: the checksum is wrong",
    ]
    damage(rig, "/vhost/queues/ab.3/0.qs", 5)
    rig.tick(1000)
    assert len(rig.told("corruption")) == 2
    assert [(r["queue"], r["count"], r["is_on"]) for r in rig.vhost.alerts.list.rows()] == [
        ("q", 1, None), ("q", 8197, None)
    ]  # fmt: skip


def test_a_real_queue_whose_files_are_damaged(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-queue-max-memory-bytes": 1000})
    rig.put(queue, *[b"%060d" % n for n in range(64)])
    for _ in range(20):
        rig.tick(0.1)
    rig.restart()
    queue = classic(rig.vhost.table.find_queue("q"))
    directory = queue.amq.backing.indexes()[0].path
    files = [f"{directory}/{name}" for name in rig.fs.list(directory) if name.endswith(".qs")]
    assert len(files) > 5
    for file in files:
        for position in range(70, rig.fs.size(file), 40):
            rig.fs.damage_flip(file, position, 3)
    channel = TakingChannel()
    rig.consume(queue, channel)
    for _ in range(50):
        rig.tick(1)
    lost = 64 - len(channel.bodies())
    assert lost > len(files)
    assert len(rig.told("corruption")) == len(files)
    assert all(any(file in text for text in rig.told("corruption")) for file in files)
    rows = [row for row in rig.vhost.alerts.list.rows() if row["kind"] == "corruption"]
    assert sum(int(str(row["count"])) for row in rows) == lost
    assert {row["queue"] for row in rows} == {"q"}


def test_damage_is_logged_when_there_is_no_other_turn(rig: VHostRig) -> None:
    damage(rig, "/a.qs", 3)
    rig.vhost.event("stopped", "the disk failed")
    assert [kind for kind, _ in rig.events] == ["corruption", "stopped"]
    damage(rig, "/b.qs", 2)
    for n in range(3 * ALL_BURST):
        damage(rig, f"/c{n}.qs", 1)
    rig.vhost.close()
    assert "/b.qs" in rig.told("corruption")[1]
    assert len(rig.told("corruption")) <= ALL_BURST
    (text,) = rig.told("warning")
    left_out = 3 * ALL_BURST + 2 - len(rig.told("corruption"))
    assert text == f"{left_out} alerts were left out"


def test_any_number_of_damaged_files_takes_little(rig: VHostRig) -> None:
    for n in range(FILES_MAX + 100):
        damage(rig, f"/{n}.qs", 1)
    assert len(rig.vhost.alerts._damaged) == FILES_MAX + 1
    assert rig.vhost.alerts.list.rows()[-1]["count"] == 100
    rig.turn()
    assert len(rig.told("corruption")) == ALL_BURST


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (str(CorruptionError("/a b/0.qs", 7, "bad: at that")), "/a b/0.qs"),
        (f"queue 'x: at byte 5: y': seq 1: {CorruptionError('/q/1.qi', 7, 'r')}", "/q/1.qi"),
        ("nothing of a file", "nothing of a file"),
    ],
)
def test_the_file_of_a_text(text: str, file: str) -> None:
    assert damaged_at(text) == file


# ---- to clients ----------------------------------------------------------------------------------


def test_whoever_has_bound_gets_it_in_a_later_turn(rig: VHostRig) -> None:
    mine, others = bind(rig, "mine", "flowed.#"), bind(rig, "others", "flowed.a")
    flow(rig, "a.b")
    assert mine.len() == 0
    rig.turn()
    assert keys(rig, mine) == ["flowed.a.b"]
    assert keys(rig, others) == []
    (delivery,) = mine.amq.browse(None, 10)
    assert not delivery.message.persistent
    _, props = rig.vhost.headers.parts(delivery.message.header, "mine")
    properties = BasicProperties.decode(props)
    now_ms = rig.clock.wall_ms()
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 1)
    assert properties.timestamp == now_ms // 1000
    assert properties.headers == {
        "vhost": "test", "queue": "a.b", "kind": "flowed", "timestamp_in_ms": now_ms,
    }  # fmt: skip
    assert told(rig, mine) == [
        {"time": "2023-11-14T22:13:20.000+00:00", "first_time": "2023-11-14T22:13:20.000+00:00",
         "vhost": "test", "queue": "a.b", "kind": "flowed", "is_on": True, "count": 1,
         "text": "queue 'a.b': flows", "value": None, "threshold": None},
    ]  # fmt: skip


def test_it_costs_nothing_while_nobody_has_bound(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = rig.vhost.alerts
    monkeypatch.setattr(desk, "_publish", None)
    flow(rig, "q", 2)
    assert not desk._outbox
    assert not desk.is_due
    rig.turn()
    assert not rig.told("internal_error")


def test_no_alert_goes_to_the_queue_that_it_is_about(rig: VHostRig) -> None:
    arguments = {"x-alert-count-up": 1, "x-alert-repeat-gap": 0}
    own = bind(rig, "own", arguments=arguments)
    for _ in range(50):
        flow(rig, "other", 10)
        rig.tick(100)
    assert rig.told("count_up")
    assert "count_up.own" not in keys(rig, own)
    assert len(keys(rig, own)) == len(rig.told("flowed")) + len(rig.told("recovered"))


def test_queues_that_alert_about_each_other_come_to_rest(rig: VHostRig) -> None:
    arguments = {"x-alert-count-up": 1, "x-alert-repeat-gap": 0, "x-alert-age-up": 1000}
    a, b = bind(rig, "a", arguments=arguments), bind(rig, "b", "count_up.#", arguments=arguments)
    flow(rig, "other", ends=False)
    rig.turn()
    assert keys(rig, a)[0] == "flowed.other"
    assert keys(rig, b) == ["count_up.a"], "who watches a queue of alerts hears of it, and no more"
    assert "count_up.b" not in keys(rig, a)
    for _ in range(1000):
        rig.tick(0.1)
    assert keys(rig, b) == ["count_up.a"] + ["count_up.a"] * (len(keys(rig, b)) - 1)
    assert len(keys(rig, a)) + len(keys(rig, b)) <= 2 * (KEY_BURST + 100 * 0.1 * 3)


def test_nothing_is_published_while_the_disk_is_full(rig: VHostRig) -> None:
    queue = bind(rig, "alerts")
    rig.vhost.event("disk_full", "0 bytes are free")
    for n in range(3 * OUTBOX_MAX):
        flow(rig, f"q{n}", ends=False)
        if n % 5 == 0:
            rig.tick(1)
    rig.tick(1)
    assert queue.len() == 0
    assert len(rig.vhost.alerts._outbox) == OUTBOX_MAX
    rig.vhost.event("disk_free", "there is room")
    rig.turn()
    assert queue.len() == OUTBOX_MAX
    assert keys(rig, queue)[-2:] == ["disk_free", "unblocked"]


def test_who_refuses_does_not_keep_it_from_others(rig: VHostRig) -> None:
    full = bind(rig, "full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    last = bind(rig, "last")
    rig.put(full, b"x")
    flow(rig, "q")
    rig.turn()
    assert rig.bodies(full) == [b"x"]
    assert keys(rig, last) == ["flowed.q", "recovered.q"]


def test_a_mistake_costs_that_alert_alone(rig: VHostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = bind(rig, "alerts")

    def fails_once(*given: Any) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(alerts, "put", fails_once)
    flow(rig, "q")
    rig.turn()
    (text,) = rig.told("internal_error")
    assert "ZeroDivisionError: ours" in text
    assert keys(rig, queue) == ["recovered.q"]
    assert rig.vhost.alerts._depth == 0


def test_streams_headers_exchanges_and_consumers_get_them(rig: VHostRig) -> None:
    stream = rig.vhost.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
    rig.answered(stream[1])
    rig.answered(rig.vhost.bind_queue("s", ALERTS, "#"))
    rig.answered(rig.vhost.topology.declare_exchange("by headers", "headers", durable=True))
    rig.answered(rig.vhost.topology.bind_exchange("by headers", ALERTS, "#"))
    mine = rig.queue("mine")
    rig.answered(rig.vhost.bind_queue("mine", "by headers", "", {"x-match": "all", "queue": "q"}))
    channel = TakingChannel()
    rig.consume(mine, channel)
    flow(rig, "q")
    flow(rig, "other")
    rig.turn()
    assert [json.loads(body)["queue"] for body in channel.bodies()] == ["q", "q"]
    rig.answered(rig.vhost.engine.log.last_lsn)
    assert stream[0].len() == 4


@pytest.mark.parametrize(
    ("queue", "key"),
    [
        ("", "flowed"), ("a.b", "flowed.a.b"), ("q" * 255, "flowed." + "q" * 248),
        ("ä" * 127, "flowed." + "ä" * 124), ("\udc80" * 255, None),
    ],
)  # fmt: skip
def test_a_routing_key_is_never_too_long(rig: VHostRig, queue: str, key: str | None) -> None:
    found = routing_key("flowed", queue)
    assert len(found.encode("utf-8", "surrogateescape")) <= 255
    assert key in (None, found)
    mine = bind(rig, "mine")
    flow(rig, queue)
    rig.turn()
    assert keys(rig, mine)[0] == found
    assert not rig.told("internal_error")


# ---- from the vhost ------------------------------------------------------------------------------


def test_a_queue_that_flows_and_is_deleted_is_not_on(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-queue-max-memory-bytes": 3000, "x-alert-depth-up": 2000})
    for _ in range(20):
        queue.amq.publish(b"", bytes(500), NONE)
    rows = {row["kind"]: row for row in rig.vhost.alerts.list.rows()}
    assert rows["flowed"]["is_on"]
    assert rows["flowed"]["queue"] == rows["depth_up"]["queue"] == "q"
    rig.vhost.delete_queue(rig.vhost.table.find_queue("q"))
    assert not any(row["is_on"] for row in rig.vhost.alerts.list.rows())


def test_a_part_that_recovers_leaves_the_others_on(rig: VHostRig) -> None:
    arguments = {"x-queue-max-memory-bytes": 20_000, "x-max-priority": 2}
    queue = rig.queue(arguments=arguments)
    for n in range(300):
        queue.amq.publish(b"", bytes(500), NONE, priority=n % 3)
    on = {row["text"].split(":")[0] for row in rig.vhost.alerts.list.rows() if row["is_on"]}  # type: ignore[attr-defined]
    assert len(on) > 1
    assert all(row["queue"] == "q" for row in rig.vhost.alerts.list.rows())
    rig.vhost.purge_queue(queue)
    for _ in range(20):
        rig.tick(1)
    assert not any(row["is_on"] for row in rig.vhost.alerts.list.rows())


def test_a_queue_that_restarts_begins_anew(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-alert-count-up": 1})
    rig.put(queue, b"x")
    rig.vhost.dispatch.on_queue_error(queue, RuntimeError("its own"))  # type: ignore[misc]
    assert [row["is_on"] for row in rig.vhost.alerts.list.rows()] == [False]


def test_a_disk_that_does_not_read_is_told_now_and_then(rig: VHostRig) -> None:
    for _ in range(600):
        rig.vhost.alerts.queue_event("q", "page_in_failed", "queue 'q': I/O error")
        rig.tick(0.1)
    assert len(rig.told("page_in_failed")) <= KEY_BURST + 7
    (row,) = rig.vhost.alerts.list.rows()
    assert (row["queue"], row["is_on"], row["count"]) == ("q", None, 600)


def test_that_memory_is_short_is_published_all_the_same(rig: VHostRig) -> None:
    queue = bind(rig, "alerts", "blocked.#")
    rig.vhost.monitor.is_alarmed = True
    rig.vhost.event("memory_alarm", "memory: 2 of 1")
    rig.turn()
    assert rig.vhost.blocked_reason == "memory"
    assert keys(rig, queue) == ["blocked"]


def test_blocked_says_why_since_when_and_what_to_do(rig: VHostRig) -> None:
    rig.vhost.monitor.is_alarmed = True
    rig.vhost.event("memory_alarm", "memory: 2 of 1")
    rig.clock.advance(5)
    rig.vhost.event("disk_full", "0 bytes are free")
    rig.vhost.monitor.is_alarmed = False
    rig.vhost.event("memory_free", "memory: 0 of 1")
    (row,) = [row for row in rig.vhost.alerts.list.rows() if row["kind"] == "blocked"]
    rig.clock.advance(2.5)
    assert rig.vhost.blocked_reason == "disk"
    rig.vhost.event("disk_free", "there is room")
    since = "publishers wait since 2023-11-14 22:13:20+00:00, low on"
    lines = rig.told("blocked")
    assert len(lines) == 3
    assert lines[0].startswith(f"{since} memory: consume, purge or delete")
    assert str(row["text"]).startswith(f"{since} disk: make room")
    assert row["is_on"]
    assert rig.told("unblocked") == ["publishers go on, after 7.5 s"]
    assert not any(row["is_on"] for row in rig.vhost.alerts.list.rows())


def test_the_process_and_what_is_counted_alarm_each_for_itself(rig: VHostRig) -> None:
    rig.vhost.watch_rss(lambda: 0, lambda: None)
    assert rig.vhost.rss is not None
    rig.vhost.rss._on_event("memory_alarm", "memory: RSS")
    rig.vhost.event("memory_alarm", "memory: counted")
    rig.vhost.event("memory_free", "memory: counted")
    on = [row["text"] for row in rig.vhost.alerts.list.rows() if row["is_on"]]
    assert "memory: RSS" in on


def test_who_may_list_alerts() -> None:
    rig = OperationRig()
    rig.vhost.event("flowed", "queue 'q': flows", "q")
    (row,) = rig.result("list_alerts")
    assert (row["vhost"], row["queue"], row["kind"], row["is_on"]) == ("/", "q", "flowed", True)
    assert rig.refusal("list_alerts", of=1).code == 406
    client = rig.client(Identity("ann", frozenset(), ".*", ".*", ".*")).open()
    channel = client.handler.channels[1]
    assert rig.refusal("list_alerts", channel).code == 403


def test_what_recovery_found_is_logged_though_the_vhost_does_not_open(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.vhost.close()
    from penstock.broker import vhost as module

    def opens(self: Any, _rng: object) -> None:
        self.event("corruption", str(CorruptionError("/a.rdq", 5, "bad")))
        raise RuntimeError("no")

    monkeypatch.setattr(module.VHost, "_open", opens)
    with pytest.raises(RuntimeError):
        rig._open()
    assert rig.told("corruption") == ["/a.rdq: at byte 5: bad"]


def test_what_recovery_found_is_logged_in_the_first_turn(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.vhost.close()
    from penstock.broker import vhost as module

    really = module.VHost._open

    def opens(self: Any, rng: Any) -> None:
        self.event("corruption", str(CorruptionError("/a.rdq", 5, "bad")))
        self.event("flowed", "queue 'q': flows", "q")
        really(self, rng)

    monkeypatch.setattr(module.VHost, "_open", opens)
    rig.vhost = rig._open()
    rig.turn()
    assert rig.told("corruption") == ["/a.rdq: at byte 5: bad"]
    assert rig.told("flowed") == ["queue 'q': flows"]
    assert classic(rig.queue()).len() == 0


# ---- in slices -----------------------------------------------------------------------------------


@pure_only
def test_an_alert_for_very_many_bindings_is_routed_and_published_in_slices(
    rig: VHostRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    queues = [bind(rig, f"q{i}") for i in range(150)]
    router = rig.vhost.router
    for i in range(5000):
        router.bind(ALERTS, "q", "q0", f"*.*.{i}", {})
        router.bind(ALERTS, "q", "q0", f"#.{i}.#", {})
    flow(rig, "about", ends=False)
    flow(rig, "q7", ends=False)
    dearest = turns = 0
    while rig.vhost.dispatch.has_background:
        dearest = max(dearest, cost_of(rig.vhost.turn).lines)
        turns += 1
    assert turns > 2
    assert dearest < 60_000  # of 122,000 lines in all
    for queue in queues:
        wanted = ["flowed.about", "flowed.q7"]
        assert keys(rig, queue) == wanted[: 1 if queue.name == "q7" else 2]
