"""The bench of the Spark source: its cell without a JVM, and the tables of what is measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

BENCH = Path(__file__).parent.parent / "bench"

WAITS = {
    "echo": [0.1, 0.5, 2.0], "loop": [0.2, 1.0, 24.0], "held": [0.1, 0.5, 12.0],
    "confirm": [1.0, 9.0, 40.0],
}  # fmt: skip
FIGURES = {
    "scan": {
        "count": 2_000_000, "size": 256,
        "seconds": {"penstock": [0.6, 0.7, 0.9], "parquet": [0.4] * 3, "text": [1.2] * 3,
                    "tuples": [4.0] * 3},
    },
    "parsing": {
        "count": 1_000_000, "size": 256, "seconds": {"penstock": [2.5], "parquet": [2.0]},
    },
    "arrow": {"three": [91.0, 95.0, 99.0], "all": [150.0], "crc": "zlib-ng"},
    "floor": {"batches": 3, "ms": [170, 180, 260]},
    "network": {"count": 1_000_000, "size": 256, "seconds": {"file": [1.0], "network": [1.25]}},
    "sink": {"count": 1_000_000, "size": 256, "seconds": {
        "stream": [1.6], "queue": [6.0], "stream to stream": [2.0],
    }},
    "commit": {"size_mib": 512} | {
        kind: {"quiet": WAITS, "busy": WAITS, "moved_s": 3.0, "memory": [50.0, 55.0, 60.0]}
        for kind in ("stream", "queue")
    },
}  # fmt: skip


def test_making_batches_is_measured(tmp_path: Path) -> None:
    given = json.dumps({"data": str(tmp_path / "data"), "count": 260_000, "runs": 2})
    done = subprocess.run(
        [sys.executable, str(BENCH / "spark_cells.py"), "arrow", given],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 200_000 < found["rows"] < 260_000
    assert all(0 < ns < 100_000 for ns in [*found["three"], *found["all"]])


def test_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import spark_report  # type: ignore[import-not-found]  # on the path of bench/ alone

    goals = spark_report.goals(FIGURES)
    assert [(goal.text, goal.is_met) for goal in goals] == [
        ("2.22 / 2.86 / 3.33 M rows/s", True),
        ("5.7 times", True),
        ("25 %", False),
        ("91 / 95 / 99 ns", True),
        ("170 / 180 / 260 ms", True),
        ("80 %", True),
        ("0.62 / 0.62 / 0.62 M rows/s", True),
        ("0.17 / 0.17 / 0.17 M rows/s", False),
        *[("12 ms", True), ("5 MiB", True)] * 2,
    ]
    text = "\n".join(spark_report.sections({"figures": FIGURES, **_facts()}, goals))
    assert "| penstock" in text
    assert "CRC-32 of zlib-ng" in text


BESIDE = {
    "rows": 1_000_000, "few": 20_000, "load": 1.5, "kafka": "4.1.0, connector 4.2.0", "why": "",
    "cells": {
        "scan, 1": {"kafka": [[1.0, 2.7]], "penstock": [[0.5, 1.4], [0.7, 1.6], [0.6, 1.5]]},
        "at-least-once sink, a job of few rows": {
            "kafka": [[0.5, 0.56]], "penstock": [[0.2, 0.3]],
        },
        "micro-batch of 1,000 rows, 4": {"kafka": [[0.148, 0.15]], "penstock": [[0.239, 0.385]]},
        "200 streams by pattern, 20,000 rows": {"penstock": [[8.0, 4.5]]},
    },
    "costs": {
        "scan, 1": [{"Python": 1.0}],
        "micro-batch of 1,000 rows, 4": [
            {"Python": 0.1, "JVM: tasks": 0.2, "JVM: others": 0.0}, {"Python": 0.12},
            {"Python": 0.14, "JVM: tasks": 0.3},
        ],
    },
}  # fmt: skip


def test_the_table_beside_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import kafka_report  # type: ignore[import-not-found]  # on the path of bench/ alone

    goals = kafka_report.goals(BESIDE)
    assert [(goal.goal, goal.text, goal.is_met) for goal in goals] == [
        ("≤ 20", "15.00", True),
        ("≤ 130 ms", "239 ms", False),
        ("≤ 150", "385 ms", False),
        ("≤ 3 s", "8.0 s", False),
        ("≤ 5", "4.5 s", True),
    ]
    few = kafka_report.goals({**BESIDE, "rows": 10_000})
    assert [goal.name for goal in few] == [goal.name for goal in goals[1:]]
    text = " ".join("\n".join(kafka_report.sections(BESIDE)).split())
    assert "| scan, 1 | 1,000,000 rows/s | 2.70 | 1,666,667 rows/s | 1.50 |" in text
    assert "| micro-batch of 1,000 rows, 4 | JVM: tasks 200; Python 120 |" in text
    assert "| scan, 1 | Python" not in text
    assert "Kafka is cheaper in: micro-batch of 1,000 rows, 4 (2.57 times Kafka's CPU)." in text


def test_a_run_whose_workers_took_their_cpu_with_them_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import kafka_report

    cells = {"scan, 1": {"penstock": [[1.0, -0.5], [2.0, 1.0], [3.0, 1.2]]}}
    found = {**BESIDE, "cells": cells}
    assert kafka_report.figures(found, "scan, 1", "penstock") == (500_000, pytest.approx(1.1))
    assert "left out (1 here)" in " ".join("\n".join(kafka_report.sections(found)).split())
    counted = "\n".join(kafka_report.sections({**found, "meter": "control group"}))
    assert "left out" not in counted


def test_a_group_counts_the_cpu_of_what_nobody_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from cpu_group import BY_GROUP, CpuGroup  # type: ignore[import-not-found]

    group = CpuGroup.make("penstock-test")
    if group.meter != BY_GROUP:
        pytest.skip("no control group may be made here")
    work = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from cpu_group import CpuGroup\n"
        "CpuGroup(Path(sys.argv[2])).join(); signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "read, write = os.pipe()\n"
        "if not os.fork(): sum(i * i for i in range(3_000_000)); os._exit(0)\n"
        "os.close(write); os.read(read, 1)"
    )
    try:
        subprocess.run([sys.executable, "-c", work, str(BENCH), str(group.path)], check=True)
        assert group.seconds() > 0.05
    finally:
        group.remove()
    assert group.path is not None
    assert not group.path.exists()


def test_the_cells_beside_kafka_alone_are_a_part_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import page  # type: ignore[import-not-found]  # on the path of bench/ alone

    monkeypatch.setattr(page, "results", lambda part: tmp_path / part)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    run = {"figures": FIGURES, **_facts(), "is_quick": False}
    beside = {**run, "figures": {"kafka": BESIDE}, "arguments": "--only kafka --rows 9 --save"}
    page.save("kafka", beside)
    page.save("spark", run)
    text = page.text()
    assert "`make bench-spark ARGS='--only kafka --rows 9 --save'`" in text
    for title in ("## The Spark source", "### Beside Kafka", "### Goals beside Kafka"):
        assert text.split("\n").count(title) == 1
    page.save("spark", {**run, "figures": {**FIGURES, "kafka": BESIDE}})
    assert page.text().split("\n").count("### Beside Kafka") == 1


def test_without_maven_the_table_says_why_it_has_no_kafka(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import kafka  # type: ignore[import-not-found]  # on the path of bench/ alone
    import kafka_report

    monkeypatch.setenv("PATH", "")
    with pytest.raises(kafka.NoKafkaError, match="no Maven") as raised:
        kafka.fetch(tmp_path)
    ours = {cell: {"penstock": its["penstock"]} for cell, its in BESIDE["cells"].items()}  # type: ignore[attr-defined]
    found = {**BESIDE, "cells": ours, "kafka": "", "why": str(raised.value)}
    text = "\n".join(kafka_report.sections(found))
    assert "Kafka was not measured: there is no Maven" in text
    assert "kafka, CPU" not in text


def _facts() -> dict[str, object]:
    return {
        "version": "0", "build": "pure", "commit": "c", "date": "d", "cpu": "x", "cores": 2,
        "kernel": "k", "filesystem": "f", "python": "3", "is_quick": True, "seconds": 1.0,
    }  # fmt: skip
