"""Events of the dashboard, the samples of its charts, the problems that it shows."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.counts import DISK_S, Histogram
from penstock.http import live
from penstock.http.api import Api
from penstock.server.control import ControlError
from tests.helpers.asgi_client import NOTICED_TURNS, Reply, ask
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

pytestmark = pytest.mark.real


def row(name: str = "/", **more: object) -> dict[str, Any]:
    return {
        "name": name, "state": "running", "restarts": 2, "connections": 3, "rss_bytes": 5,
        "blocked_reason": None, **more,
    }  # fmt: skip


STATUS = {
    "disk_free_bytes": 9, "disk_free_limit_bytes": 4, "counted_bytes": 1, "memory_bytes": 2,
    "problems": [], "kinds": [], "about": [], "advice": [], "http": {"rss_bytes": 7}, "tls": None,
    "vhosts": [row(), row("other")],
}  # fmt: skip


class Counters:
    """What a vhost answers to `metrics`."""

    def __init__(self) -> None:
        self.published = 100
        self.syncs = Histogram(DISK_S)

    def __call__(self, _vhost: str | None, **_: object) -> dict[str, Any]:
        states = {"alpha": 1, "beta": 2, "gamma": 3, "delta": 4, "unacked": 5, "delayed": 0}
        values = {
            "messages_published_total": self.published, "messages_delivered_total": 7,
            "messages_acked_total": 7, "messages_unroutable_total": 0, "messages": states,
            "oldest_ready_seconds": 8,
            "memory_counted_bytes": 10, "memory_budget_bytes": 20, "backlog_as_alphas_bytes": 30,
            "sync_seconds": self.syncs.facts(),
        }  # fmt: skip
        return {"values": values}


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def rig(tmp_path: Path, counters: Counters) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.users.take(users_facts(boss=EVERYTHING, ann=EVERYTHING))
    rig.node.answers |= {"status": STATUS, "why": [], "metrics": counters}
    rig.node.answers["describe_row"] = lambda _vhost, **_: {
        "state": "running", "consumers": 1, "messages_ready": 2, "messages_unacknowledged": 3,
        "message_stats": {"publish": 10, "deliver_get": 11, "ack": 12},
        "penstock": {"alphas": 1, "delta": 1, "ram_bytes": 99},
    }  # fmt: skip
    yield rig
    rig.close()


def events_of(reply: Reply) -> list[tuple[str, dict[str, Any]]]:
    """The topic and data of each event."""
    found = []
    for block in reply.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def watch(
    rig: HttpRig, topics: str, ticks: int, user: str = "boss", between: Any = lambda _tick: None
) -> list[tuple[str, dict[str, Any]]]:
    """The events of so many ticks, a second apart. between(n): is called before tick n."""

    async def scenario(app: Api) -> Reply:
        address = f"/api/penstock/events?topics={topics}"
        asked = asyncio.ensure_future(ask(app, address, user=user, leaves_after=ticks + 1))
        for n in range(ticks):
            while not rig.live._streams.total and not asked.done():
                await asyncio.sleep(0)
            for _ in range(NOTICED_TURNS):
                await asyncio.sleep(0)
            between(n)
            await rig.live.tick()
            rig.clock.advance(1)
        for _ in range(NOTICED_TURNS):
            await asyncio.sleep(0)
        rig.live.close()
        return await asked

    return events_of(rig.run(scenario))


def test_the_overview_has_rates_of_each_vhost(rig: HttpRig, counters: Counters) -> None:
    def publish(tick: int) -> None:
        counters.published += 40 * tick
        counters.syncs.record(0.002)

    (_, first), (topic, second) = watch(rig, "overview", 2, between=publish)
    assert topic == "overview"
    assert "published" not in first["vhosts"]["/"]  # one tick is no rate
    assert second["vhosts"]["/"] == {
        "state": "running", "restarts": 2, "published": 40.0, "delivered": 0, "acked": 0,
        "unroutable": 0, "ready": 10, "unacked": 5, "connections": 3, "alpha": 1, "beta": 2,
        "gamma": 3, "delta": 4, "counted_bytes": 10, "budget_bytes": 20,
        "backlog_as_alphas_bytes": 30, "oldest_ready_s": 8, "sync_p99_ms": 2.5,
    }  # fmt: skip
    assert second["vhosts"].keys() == {"/", "other"}
    assert second["node"] == {
        "disk_free": 9, "disk_limit": 4, "memory": {"counted": 1, "budget": 2, "rss": 17},
    }  # fmt: skip
    assert second["problems"] == []
    assert second["time"] - first["time"] == pytest.approx(1)


def test_a_user_sees_its_vhosts_and_nothing_of_the_node(rig: HttpRig) -> None:
    ((_, found),) = watch(rig, "overview", 1, user="ann")
    assert found["vhosts"].keys() == {"/"}
    assert "node" not in found
    reply = rig.ask("/api/penstock/events?topics=queue:other:q", user="ann")
    assert (reply.status, reply.json()["error"]) == (401, "not_authorised")
    assert rig.ask("/api/penstock/events?topics=queue:none:q", user="ann").status == 404


def test_a_queue(rig: HttpRig) -> None:
    found = watch(rig, "queue:%252F:a%252Fb,overview", 2)
    assert [topic for topic, _ in found] == ["queue:%2F:a%2Fb", "overview"] * 2
    queue = found[2][1]
    assert (queue["vhost"], queue["name"], queue["ready"]) == ("/", "a/b", 2)
    assert (queue["published"], queue["alpha"], queue["penstock"]["ram_bytes"]) == (0, 1, 99)
    asked = [args["name"] for op, _, args in rig.node.asked if op == "describe_row"]
    assert asked == ["a/b"] * 2
    rig.node.answers["describe_row"] = ControlError(404, "NOT_FOUND - no queue")
    ((_, gone),) = watch(rig, "queue:%252F:q", 1)
    assert gone["error"] == "NOT_FOUND - no queue"


@pytest.mark.parametrize(
    "topics", ["", "other", "queue:a", "queue:a:b:c", "queue:%252F:q%0Aid", "%C3%A9"]
)
def test_other_topics_are_refused(rig: HttpRig, topics: str) -> None:
    assert rig.ask(f"/api/penstock/events?topics={topics}", user="boss").status == 400
    many = ",".join(f"queue:%252F:{n}" for n in range(live.QUEUE_TOPICS_MAX + 1))
    assert rig.ask(f"/api/penstock/events?topics={many}", user="boss").status == 400


def test_a_stream_ends_when_the_user_may_no_more(rig: HttpRig) -> None:
    def forget(tick: int) -> None:
        if tick == 1:
            rig.users.take(users_facts(ann=EVERYTHING))

    assert len(watch(rig, "overview", 3, between=forget)) == 1
    assert not rig.live._streams.total


def test_the_number_of_streams_is_bounded(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAMS_MAX", "USER_STREAMS_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(live, name, 0)
            reply = rig.ask("/api/penstock/events?topics=overview", user="boss")
            assert (reply.status, reply.headers["retry-after"]) == (503, "10")
    watch(rig, "overview", 1)
    assert not rig.live._streams.total


def problems(rig: HttpRig, user: str = "boss") -> list[Any]:
    ((_, found),) = watch(rig, "overview", 1, user=user)
    return list(found["problems"])


def said(problem: Any) -> str:
    return f"{problem['text']}: {problem['do']}"


def test_a_problem_links_to_where_it_is_mended(rig: HttpRig) -> None:
    about = ["stream 's'", "queue 'it's'", "vhost '/'"]
    findings = [{"about": one, "text": "x", "do": "", "since": None} for one in about]
    rig.node.answers["why"] = lambda vhost, **_: findings if vhost == "/" else []
    rig.node.answers["status"] = {
        **STATUS, "problems": ["vhost 'x' is down"], "advice": ["restart it"], "kinds": ["vhost"],
        "about": ["x"],
    }  # fmt: skip
    assert [one["href"] for one in problems(rig)] == [
        "#/vhosts/x", "#/streams/%2F/s", "#/queues/%2F/it%27s", "#/alarms",
    ]  # fmt: skip


def test_what_is_wrong_is_said_the_worst_first(rig: HttpRig) -> None:
    finding = {"about": "queue 'a/b'", "text": "3 messages and no consumer", "do": "start one",
               "since": "2026-11-27T18:00:00Z"}  # fmt: skip
    rig.node.answers["why"] = lambda vhost, **_: [finding] if vhost == "/" else []
    warning = {
        "level": "warning", "text": "queue 'a/b': 3 messages and no consumer", "do": "start one",
        "href": "#/queues/%2F/a%2Fb", "since": 1795802400.0,
    }  # fmt: skip
    assert problems(rig) == [warning]
    wrong = {
        **STATUS, "problems": ["the disk is full"], "advice": ["make room there"],
        "kinds": ["alarm"], "about": [None],
    }  # fmt: skip
    rig.node.answers["status"] = wrong
    assert [said(one) for one in problems(rig)] == [
        "the disk is full: make room there", said(warning),
    ]  # fmt: skip
    assert problems(rig, "ann") == []
    rig.node.answers["status"] = {
        **wrong, "vhosts": [row(blocked_reason="disk"), row("other", blocked_reason="disk")],
        "problems": [f"vhost '{name}' is low on disk: publishers wait" for name in "/x"],
        "advice": ["make room", "make room"], "kinds": ["alarm", "alarm"], "about": ["/", "x"],
    }  # fmt: skip
    ((_, found),) = watch(rig, "overview", 1)
    assert found["vhosts"]["/"]["blocked"] == "disk"
    blocked = {**finding, "about": "vhost '/'", "text": "publishers wait, low on disk"}
    rig.node.answers["why"] = lambda vhost, **_: [finding, blocked] if vhost == "/" else []
    assert [(one["level"], said(one)) for one in problems(rig)] == [
        ("danger", "vhost '/': publishers wait, low on disk: start one"),
        ("danger", "vhost 'x' is low on disk: publishers wait: make room"),
        ("warning", said(warning)),
    ]
    assert [said(one) for one in problems(rig, "ann")] == [
        "vhost '/': publishers wait, low on disk: ask an administrator"
    ]
    rig.node.answers["status"] = ControlError(541, "gone")
    assert [one["text"] for one in problems(rig)] == ["The broker does not answer."]


def test_a_certificate_that_expires_soon_is_a_problem(rig: HttpRig) -> None:
    def said(days: float) -> list[tuple[str, str]]:
        expires_ms = rig.clock.wall_ms() + int(days * 86_400_000)
        one = {"file": "/etc/broker.pem", "names": ["localhost"], "expires_ms": expires_ms}
        tls = {"rss_bytes": 1, "certificates": [one]}
        rig.node.answers["status"] = {**STATUS, "tls": tls}
        return [(one["level"], f"{one['text']}: {one['do']}") for one in problems(rig)]

    assert said(31) == []
    ((level, text),) = said(3)
    assert level == "warning"
    assert text.startswith("the certificate /etc/broker.pem expires in 3 days, at 20")
    assert text.endswith("put a new one in its place, the broker reads it by itself")
    ((level, text),) = said(-1)
    assert level == "danger"
    assert "has expired" in text


def test_the_past_is_kept_in_three_steps(rig: HttpRig, counters: Counters) -> None:
    async def scenario(app: Api) -> Reply:
        for _ in range(700):
            await rig.live.tick()
            rig.clock.advance(1)
            counters.published += 2
        found = {}
        for step in (1, 10, 60):
            reply = await ask(app, f"/api/penstock/history/%2F?step={step}", user="boss")
            found[step] = reply.json()["samples"]
        assert [len(found[step]) for step in (1, 10, 60)] == [600, 70, 12]
        last = found[1][-1]
        assert (last["published"], last["ready"], last["delta"]) == (2, 10, 4)
        assert "sync_p99_ms" not in last
        times = [one["time"] for one in found[10]]
        assert times == sorted(times)
        empty = await ask(app, "/api/penstock/history/%2F/never", user="boss")
        assert empty.json() == {"step": 1, "samples": []}
        wrong = await ask(app, "/api/penstock/history/%2F?step=2", user="boss")
        assert wrong.status == 400
        return await ask(app, "/api/penstock/history/other", user="ann")

    assert rig.run(scenario).status == 401


def test_while_nobody_looks_only_some_vhosts_are_asked(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "VHOSTS_MAX", 1)

    async def scenario(app: Api) -> Reply:
        await rig.live.tick()
        assert [vhost for op, vhost, _ in rig.node.asked if op == "metrics"] == ["/"]
        return await ask(app, "/api/penstock/history/other", user="boss")

    assert rig.run(scenario).json()["samples"] == []
    (_, found) = watch(rig, "overview", 2)[1]
    assert found["vhosts"]["other"]["published"] == 0


def test_a_vhost_that_began_again_has_no_rate(rig: HttpRig, counters: Counters) -> None:
    def restart(tick: int) -> None:
        counters.published = 100 if tick == 0 else 3

    found = watch(rig, "overview", 2, between=restart)
    assert "published" not in found[1][1]["vhosts"]["/"]


def test_a_vhost_that_does_not_answer_keeps_its_state(rig: HttpRig) -> None:
    rig.node.answers["metrics"] = ControlError(541, "down")
    ((_, found),) = watch(rig, "overview", 1)
    assert found["vhosts"]["/"] == {"state": "running", "restarts": 2}


def test_who_does_not_answer_does_not_stop_the_others(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ANSWER_S", 0.001)

    async def never() -> None:
        await asyncio.Event().wait()

    rig.node.waits["describe_row"] = never
    found = watch(rig, "overview,queue:%252F:q", 3)
    assert [topic for topic, _ in found] == ["overview"] * 3
    assert [op for op, _, _ in rig.node.asked].count("describe_row") == 1


def test_the_past_is_kept_while_the_supervisor_does_not_answer(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        await rig.live.tick()
        rig.node.answers["status"] = ControlError(541, "busy")
        await rig.live.tick()
        return await ask(app, "/api/penstock/history/%2F", user="boss")

    assert len(rig.run(scenario).json()["samples"]) == 1
