"""The lines of objects, of which only those that have changed are made again."""

import gzip
from typing import Any

from penstock.http.metrics_text import CHUNK, MetricsText, ObjectTexts
from penstock.metric_table import FAMILIES
from tests.helpers.prometheus import families

START = "rabbitmq_"
READY = 'rabbitmq_queue_messages_ready{{vhost="{}",queue="{}"}} {}'


def texts(*names: str) -> ObjectTexts:
    return ObjectTexts([FAMILIES[name] for name in names], [START] * len(names))


def take(of: ObjectTexts, vhost: str = "/", **given: Any) -> None:
    answer = {"stamp": "1:2", "now_s": 100.0, "is_part": False, "gone": [], **given}
    of.update(vhost, answer)


def lines(of: ObjectTexts, *vhosts: str) -> list[str]:
    text = MetricsText(is_openmetrics=False)
    of.write(text, vhosts or ("/",))
    found = text.text()
    assert gzip.decompress(text.gzipped()) == found
    assert text.size() == len(found)
    for size in (1, 100, 1 << 20):
        runs = list(text.runs(size))
        assert b"".join(runs) == found
        assert all(len(run) >= size for run in runs[:-1])
    families(found.decode())
    return [line for line in found.decode().splitlines() if not line.startswith("#")]


def ready(of: ObjectTexts) -> list[str]:
    return [line for line in lines(of) if line.startswith("rabbitmq_queue_messages_ready{")]


def test_a_part_changes_some_lines_and_takes_others_away() -> None:
    of = texts("queue_coarse_metrics")
    assert of.stamp("/") == ""
    take(of, queue_coarse_metrics=[[["a", 1, 0, 1], ["b", 2, 0, 2]], [["c", 3, 0, 3]]])
    assert of.stamp("/") == "1:2"
    take(
        of, stamp="1:9", is_part=True, gone=["a", "never"],
        queue_coarse_metrics=[[["b", 7, 0, 7], ["d", 4, 0, 4]]],
    )  # fmt: skip
    assert of.stamp("/") == "1:9"
    wanted = [READY.format("/", name, n) for name, n in (("b", 7), ("c", 3), ("d", 4))]
    assert ready(of) == wanted
    take(of, queue_coarse_metrics=[[["z", 1, 0, 1]]])
    assert ready(of) == [READY.format("/", "z", 1)]


def test_places_of_what_is_gone_are_used_again() -> None:
    of = texts("queue_coarse_metrics")
    names = [f"q{n}" for n in range(3 * CHUNK)]
    take(of, queue_coarse_metrics=[[[name, 1, 0, 1] for name in names]])
    assert len(ready(of)) == 3 * CHUNK
    take(of, is_part=True, gone=names[: 2 * CHUNK], queue_coarse_metrics=[])
    assert ready(of) == [READY.format("/", name, 1) for name in names[2 * CHUNK :]]
    take(of, is_part=True, gone=names[2 * CHUNK : -2], queue_coarse_metrics=[[["new", 5, 0, 5]]])
    last = [(name, 1) for name in names[-2:]]
    assert ready(of) == [READY.format("/", name, n) for name, n in (*last, ("new", 5))]
    take(of, is_part=True, gone=["new", *names[-2:]], queue_coarse_metrics=[])
    assert lines(of) == []


def test_pieces_without_a_change_are_the_same_ones() -> None:
    of = texts("queue_coarse_metrics")
    rows = [[f"q{n}", 1, 0, 1] for n in range(2 * CHUNK)]
    take(of, queue_coarse_metrics=[rows])
    (family,) = of._vhosts["/"]
    before = [list(family.column(n, 0)) for n in range(3)]
    take(of, is_part=True, queue_coarse_metrics=[[["q0", 2, 0, 1], ["q1", 1, 0, 1]]])
    after = [list(family.column(n, 0)) for n in range(3)]
    same = [[old is new for old, new in zip(*both)] for both in zip(before, after)]  # noqa: B905
    assert same == [[False, True], [True, True], [True, True]]


def test_what_is_no_queue_comes_whole_each_time() -> None:
    of = texts("readers", "queue_coarse_metrics")
    take(of, readers=[[["s", "r", 1, 0.5], ["s", "t", 2, 0]]])
    take(of, is_part=True, readers=[[["s", "t", 3, 0]]])
    found = lines(of)
    assert found == [
        'rabbitmq_reader_lag_records{vhost="/",stream="s",reader="t"} 3',
        'rabbitmq_reader_lag_seconds{vhost="/",stream="s",reader="t"} 0',
    ]


def test_ages_grow_though_nothing_has_changed() -> None:
    of = texts("queue_age")
    take(of, queue_age=[[["a", 40, 99.5, 0.25], ["empty", 0, 0, 0]]])
    take(of, now_s=103.0, is_part=True, queue_age=[])
    names = (
        "queue_oldest_message_age_seconds", "queue_oldest_unacked_age_seconds",
        "queue_slowest_consumer_seconds",
    )  # fmt: skip
    assert lines(of) == [
        f'rabbitmq_{name}{{vhost="/",queue="{queue}"}} {value}'
        for name, values in zip(names, ((63.0, 0), (3.5, 0), (0.25, 0)), strict=True)
        for queue, value in zip(("a", "empty"), values, strict=True)
    ]


def test_vhosts_that_do_not_answer_are_left_out() -> None:
    of = texts("queue_coarse_metrics")
    for vhost in ("/", "b"):
        take(of, vhost, queue_coarse_metrics=[[["a", 1, 0, 1]]])
    assert READY.format("b", "a", 1) in lines(of, "/", "b")
    assert READY.format("b", "a", 1) not in lines(of, "/")
