"""Own limits: which do not fit, and what is said of them."""

from penstock.queues.queue_options import QueueOptions
from penstock.queues.queue_set import limits_beyond, limits_warning, may_have_limit

MIB = 1 << 20


def test_the_older_ones_come_first_and_small_ones_behind_a_large_one_fit() -> None:
    limits = {"a": 60 * MIB, "b": 60 * MIB, "c": 40 * MIB, "d": 1}
    assert limits_beyond(limits, 100 * MIB) == {"b": 40 * MIB, "d": 0}
    assert limits_beyond(limits, 160 * MIB + 1) == {}
    assert limits_beyond({"a": 1}, 0) == {"a": 0}


def test_a_warning_names_the_largest_and_is_one_line() -> None:
    limits = {f"q{i}": (i + 1) * MIB for i in range(8)}
    assert limits_warning(limits, 45 * MIB) is None
    told = limits_warning(limits, 44 * MIB)
    assert told == (
        "the queues' own memory limits come to 36 MiB, 82 % of it: 44 MiB; 'q7' 8 MiB, 'q6' 7 MiB, "
        "'q5' 6 MiB, 'q4' 5 MiB, 'q3' 4 MiB, and 3 more"
    )
    assert limits_warning({"a\n": MIB}, 0) == (
        r"the queues' own memory limits come to 1 MiB, too much: 0 B; 'a\n' 1 MiB"
    )
    assert limits_warning({}, 0) is None


def test_which_queues_have_one() -> None:
    limited = QueueOptions(max_memory_bytes=5)
    assert may_have_limit(limited.encode())
    assert not may_have_limit(QueueOptions(max_length=5).encode())
