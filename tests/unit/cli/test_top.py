"""penstock top: what a screen shows of a broker's answers, and what keys do."""

from typing import Any

import pytest
from rich.text import Text

from penstock.cli.main import CommandRefusedError, UnavailableError
from penstock.cli.top import ORDERS, Screen
from tests.helpers.fake_control import FakeControl
from tests.unit.cli.test_node_verbs import STATUS, WRONG


def rate(**rates: float) -> dict[str, Any]:
    return {f"{name}_details": {"rate": value} for name, value in rates.items()}


TOTALS = {
    "message_stats": rate(publish=1234.5, deliver_get=2.25, ack=0.0),
    "queue_totals": {"messages_ready": 90_300, "messages_unacknowledged": 12},
    "object_totals": {"connections": 3},
}
VALUES = {
    "memory_counted_bytes": 3 << 20, "memory_budget_bytes": 64 << 20,
    "backlog_as_alphas_bytes": 3 << 30,
    "messages": {
        "alpha": 300, "beta": 0, "gamma": 0, "delta": 90_000, "unacked": 12, "delayed": 0
    },
}  # fmt: skip


def queue(name: str, **given: Any) -> dict[str, Any]:
    return {
        "name": name, "vhost": "/", "type": "classic", "messages": 0, "messages_ready": 0,
        "messages_unacknowledged": 0, "consumers": 0, "consumer_utilisation": None,
        "state": "running", "memory": 0, "penstock": {},
    } | given  # fmt: skip


ORDERS_QUEUE = queue(
    "orders", messages=90_012, messages_ready=90_000, messages_unacknowledged=12, consumers=2,
    consumer_utilisation=0.0, memory=2 << 20,
    message_stats=rate(publish=1200.0, deliver_get=2.25, ack=0.4),
    penstock={"alphas": 100, "betas": 0, "gammas": 1, "delta": 89_899, "oldest_ready_s": 7300},
)  # fmt: skip
QUEUES = [
    ORDERS_QUEUE,
    queue(
        "no\x1b[2Jbody", messages=300, messages_ready=300, type="quorum",
        penstock={"alphas": 150, "betas": 150, "gammas": 0, "delta": 0},
    ),
    queue("a_very_long_name_of_a_queue_that_does_not_fit", state="down"),
]  # fmt: skip


def page(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"items": items, "total_count": len(items)}


def broker(**answers: Any) -> FakeControl:
    found = FakeControl(
        **{
            "status": STATUS, "vhost_totals": TOTALS, "metrics": {"values": VALUES},
            "list_rows": page(QUEUES),
        }
        | answers
    )  # fmt: skip
    found.is_open = True
    return found


def screen(control: FakeControl, columns: int = 140, lines: int = 24) -> Screen:
    return Screen(control, "/", "messages", (columns, lines))


def shown(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def test_a_frame_says_what_is_wrong_how_much_passes_and_where_messages_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "135")
    assert broker().run("top", "--once") == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "healthy: 1 vhost of 1 opened, 1 connection",
        "1,234/s published, 2.2/s delivered, 0/s acked; 90,300 ready, 12 unacked; 3 connections",
        "memory 3 MiB of 64 MiB; disk 5 GiB free; the whole backlog in RAM: 3 GiB",
        "alpha 300, beta 0, gamma 0, delta 90,000, unacked 12, delayed 0",
        "3 queues, by messages",
        "name                            type      ready    unacked    in/s   out/s acked/s "
        "consumers     memory  oldest    a b g d      blocks",
        "orders                       classic     90,000         12   1,200     2.2     0.4 "
        "        2      2 MiB     2 h agdddddddd at prefetch",
        "no\\x1b[2Jbody                 quorum        300          0       0       0       0 "
        "        0        0 B         aaaaabbbbb no consumer",
        "a_very_long_na…_does_not_fit classic          0          0       0       0       0 "
        "        0        0 B                           down",
    ]


def test_a_row_has_what_blocks_its_queue() -> None:
    lines = shown(screen(broker()).lines())
    ends = [line[-22:] for line in lines[6:9]]
    assert ends == ["agdddddddd at prefetch", "aaaaabbbbb no consumer", "                  down"]


def test_a_narrow_screen_has_fewer_columns_and_names_are_cut_in_the_middle() -> None:
    for columns in (20, 60, 80, 100, 200):
        for line in screen(broker(), columns).lines():
            assert line.overflow == "ellipsis"
    lines = shown(screen(broker(), 80).lines())
    assert "acked/s" not in lines[5]
    assert lines[5].split()[:3] == ["name", "ready", "unacked"]
    assert lines[8].startswith("a_very_long_nam…")


def test_of_several_problems_the_first_is_shown() -> None:
    lines = shown(screen(broker(status=WRONG)).lines())
    assert lines[0] == (
        "not healthy: vhost '/' is low on disk: publishers wait - make room on its disk; 1 more: "
        "penstock status"
    )


def test_the_vhost_is_asked_for_the_rows_that_fit_in_the_order_that_keys_chose() -> None:
    control = broker()
    one = screen(control, lines=17)
    for _ in ORDERS:
        assert one.press("s")
    assert one.press("s")
    assert one.press("r")
    one.refresh()
    asked = [args for op, _, args in control.asked if op == "list_rows"]
    assert [(args["sort"], args["reverse"], args["page_size"]) for args in asked] == [
        ("messages", True, 10), ("messages_ready", False, 10),
    ]  # fmt: skip
    lines = shown(one.lines())
    assert lines[4] == "3 queues, by ready, the least first"
    assert lines[6].startswith("a_very")
    assert not one.press("x")
    assert not one.press(" ")
    assert shown(one.lines())[-1].endswith("(paused)")
    assert one.press(" ")


def test_all_vhosts_in_one_order() -> None:
    vhosts = [STATUS["vhosts"][0] | {"name": name} for name in ("/", "shop")]
    vhosts.append(vhosts[0] | {"name": "gone", "state": "down"})
    shop = queue("orders", vhost="shop", messages=500, messages_ready=500)
    pages = [page(QUEUES), page([shop])]
    control = broker(status=STATUS | {"vhosts": vhosts}, list_rows=lambda **_: pages.pop(0))
    lines = shown(Screen(control, None, "messages", (140, 9)).lines())
    assert lines[4] == "4 queues, by messages"
    assert [line[:12].rstrip() for line in lines[6:8]] == ["/ orders", "shop orders"]
    assert lines[1].startswith("2,469/s published")
    assert len(lines) == 9


def test_while_there_is_no_broker_its_last_numbers_stay() -> None:
    answers = [STATUS, UnavailableError("gone"), CommandRefusedError(541, "starting"), STATUS]

    def status() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    one = screen(broker(status=status))
    before = shown(one.lines())
    one.refresh()
    lines = shown(one.lines())
    assert lines[0] == "no broker there, waiting for it; these are its last numbers"
    assert lines[1:] == before[1:]
    one.refresh()
    assert shown(one.lines())[0] == "no new numbers: starting"
    one.refresh()
    assert shown(one.lines()) == before


def test_without_a_broker_at_the_start_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert FakeControl(status=UnavailableError("no broker answers")).run("top") == 69
    assert capsys.readouterr().err == "penstock: no broker answers\n"
