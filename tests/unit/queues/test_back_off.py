"""Back-off: doubling, from the least to the greatest delay."""

import pytest

from penstock.queues.amq_queue import retry_delay_ms


@pytest.mark.parametrize(
    ("attempts", "delay_ms"), [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (900, 1000)]
)
def test_it_doubles_up_to_the_greatest(attempts: int, delay_ms: int) -> None:
    assert retry_delay_ms(attempts, 100, 1000) == delay_ms


def test_none_means_at_once_however_often() -> None:
    assert [retry_delay_ms(n, 0, 1000) for n in (1, 2, 99)] == [0, 0, 0]


def test_an_attempt_that_was_not_counted_waits_the_least() -> None:
    assert retry_delay_ms(0, 100, 1000) == 100
