"""A query owns its reader: it waits for a query that has gone, and not for one that runs."""

from typing import Any

import pytest

from penstock.errors import ReaderTakenError
from penstock.spark.catalog import ReaderOwner, taken_error
from penstock.spark.http_link import LinkError, RefusedError
from penstock.spark.options import Place

PLACE = Place("http://h")
MINE = {"is_owner": True, "renewals": 1, "expires_s": 15}


def taken(renewals: int, expires_s: float = 15) -> dict[str, Any]:
    return {"is_owner": False, "renewals": renewals, "expires_s": expires_s}


class Asked:
    """A broker that answers one after the other, the last for ever, and a clock."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.now_s = 0.0
        self.owner = ReaderOwner(
            self.ask, 15, ask_once=self.ask, sleep=self.sleep, now=lambda: self.now_s
        )
        self.owner._ended.set()  # the thread ends at once: tests renew by themselves

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds

    def ask(self, method: str, parts: Any, query: Any, body: Any) -> Any:
        self.asked.append((method, parts, query, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_reader_that_nobody_owns_is_owned_at_once() -> None:
    broker = Asked(MINE)
    for _ in range(3):
        broker.owner.own("q", "r")
    token = broker.owner.token
    body = {"owner": token, "seconds": 15, "is_held": False}
    assert broker.asked == [("PUT", ("q", "r", "owner"), None, body)]
    assert len(token) == 32
    broker.owner.renew()
    assert broker.asked[1][3] == body | {"is_held": True}
    broker.owner.end()
    assert broker.asked[2] == ("DELETE", ("q", "r", "owner"), {"owner": token}, None)
    broker.owner.end()
    assert len(broker.asked) == 3


def test_one_that_runs_is_not_waited_for() -> None:
    broker = Asked(taken(3), taken(3, 11), taken(4))
    with pytest.raises(
        ReaderTakenError, match="reader 'r' of queue 'q' belongs to another running query"
    ):
        broker.owner.own("q", "r")
    assert broker.now_s < 15
    broker.owner.renew()
    broker.owner.end()
    assert len(broker.asked) == 3


def test_one_that_has_gone_is_waited_for() -> None:
    broker = Asked(taken(3), taken(3, 8), taken(3, 1), MINE)
    broker.owner.own("q", "r")
    assert len(broker.asked) == 4
    assert broker.now_s < 15


def test_one_that_is_never_free_is_an_error() -> None:
    broker = Asked(taken(0))
    with pytest.raises(ReaderTakenError):
        broker.owner.own("q", "r")
    assert 15 < broker.now_s < 45


def test_a_broker_that_is_away_while_it_is_renewed_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = LinkError(PLACE, "away")
    broker = Asked(MINE, away, taken(1), away)
    broker.owner.own("q", "r")
    broker.owner.renew()
    assert "was not renewed: http://h" in caplog.text
    broker.owner.renew()
    assert "was lost to another query" in caplog.text
    broker.owner.end()
    assert "is still owned" in caplog.text


def test_what_the_broker_refuses() -> None:
    error = RefusedError(PLACE, "PUT", 409, {"error": "reader_taken", "reason": "another"})
    assert isinstance(taken_error(error), ReaderTakenError)
    assert taken_error(RefusedError(PLACE, "PUT", 409, {"error": "is_a_stream"})) is None
