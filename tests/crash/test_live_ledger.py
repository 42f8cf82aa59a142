"""The judge of the kill loop notices each sort of mistake: histories with one mistake each."""

import pytest

from tests.crash.live_clients import ALL_QUEUES
from tests.crash.live_ledger import TX_QUEUES, Ledger, Transaction, make_body, read_body

Found = dict[str, list[int]]


def history() -> tuple[Ledger, Found]:
    """Everything as it should be: confirmed, settled, committed, moved."""
    ledger = Ledger()
    for queue in ("plain", "work", "retry", "brief"):
        for _ in range(4):
            number = ledger.new_number()
            ledger.sending(queue, number)
            ledger.confirm(queue, number, True)
    found: Found = {queue: [] for queue in ALL_QUEUES}
    found["plain"], found["work"] = [2, 3, 4], [6, 7, 8]
    found["retry"], found["dead"] = [10, 11, 12], [9]
    found["expired"] = [13, 14, 15, 16]
    ledger.see("plain", make_body("plain", 1, b""), False)
    ledger.settle("plain", 1)
    for number, state, taken in ((17, "committed", 5), (18, "asked", -1), (19, "open", 6)):
        ledger.transactions[number] = Transaction(number, taken, state)
    for queue in TX_QUEUES:
        found[queue] = [17, 18]
    return ledger, found


def test_a_good_history_has_no_mistakes() -> None:
    ledger, found = history()
    assert ledger.audit(found) == []


@pytest.mark.parametrize(
    ("queue", "numbers", "mistake"),
    [
        ("plain", [3, 4], "plain: 2 was confirmed and is lost"),
        ("plain", [2, 2, 3, 4], "plain: 2 is there 2 times"),
        ("work", [6, 8], "work: 7 was confirmed and is lost"),
        ("work", [5, 6, 7, 8], "transaction 17"),
        ("work", [7, 8], "transaction 19"),
        ("tx.a", [17], "transaction 18"),
        ("tx.b", [18], "transaction 17"),
        ("tx.c", [17, 18, 19], "transaction 19"),
        ("dead", [9, 10], "10 is in retry and in dead"),
        ("dead", [], "retry: 9 was confirmed and is neither"),
        ("expired", [13, 14, 15], "brief: 16 was confirmed and is neither"),
    ],
)
def test_one_mistake_is_noticed(queue: str, numbers: list[int], mistake: str) -> None:
    ledger, found = history()
    found[queue] = numbers
    assert [told for told in ledger.audit(found) if mistake in told]


def test_what_is_over_never_comes_back() -> None:
    ledger, found = history()
    assert ledger.audit(found) == []
    ledger.see("plain", make_body("plain", 2, b""), True)
    assert ledger.mistakes == ["plain: 2 was taken in a transaction and came again"]


def test_what_was_seen_is_never_fresh_again() -> None:
    ledger, _ = history()
    ledger.see("plain", make_body("plain", 1, b""), True)
    assert ledger.mistakes == []
    ledger.see("plain", make_body("plain", 1, b""), False)
    assert ledger.mistakes == ["plain: 1 came again and looked fresh"]


def test_what_was_never_sent_and_what_is_out_of_order() -> None:
    ledger, found = history()
    for number in (3, 2, 99):
        ledger.see("plain", make_body("plain", number, b""), False)
    assert ledger.mistakes == ["plain: 99 was never sent"]
    assert "plain: first 3, then 2" in ledger.audit(found)


def test_one_wrong_byte_is_noticed() -> None:
    data = make_body("plain", 7, b"padding with spaces")
    assert read_body(data) == ("plain", 7)
    with pytest.raises(AssertionError, match="damaged"):
        read_body(data[:-1] + b"!")
