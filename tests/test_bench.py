"""The bench itself: a run of its smallest scenarios, and what it makes of their results."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"

pytestmark = pytest.mark.real


def scenario(
    name: str, data: Path, *, script: str = "storage.py", **given: object
) -> dict[str, object]:
    """What a scenario prints, run as run.py runs it."""
    done = subprocess.run(
        [sys.executable, str(BENCH / script), name, json.dumps({"data": str(data), **given})],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_cpu_per_message(tmp_path: Path) -> None:
    found = scenario("cpu_os", tmp_path / "data", groups=3, runs=2, size=256, group=100)
    for name in ("append", "dequeue"):
        values = found[name]
        assert isinstance(values, list)
        assert len(values) == 2
        assert all(0 < value < 1000 for value in values)


def test_bytes_and_syncs(tmp_path: Path) -> None:
    found = scenario("bytes_and_syncs", tmp_path / "data", size=100, group=10, groups=3)
    assert found["log_syncs"] == 0.1
    # Ten records of 52 bytes and the body, and 32 of the group's header, to a multiple of 64; and
    # what vouches for the sync: 64 bytes in the next segment or after the group.
    assert found["log"] == 166.4
    assert found["store"] == 0
    found = scenario("bytes_and_syncs", tmp_path / "large", size=64 << 10, group=10, groups=1)
    assert found["log"] == 134.4
    assert found["store"] == (64 << 10) + 16
    assert found["store_syncs"] == 0.1


def test_a_queue_that_has_flowed_writes_and_reads_no_more(tmp_path: Path) -> None:
    given = {"mode": 1, "size": 100, "limit": 1 << 20, "count": 40_000}  # it reads back meanwhile
    for has_flowed in (False, True):
        data = tmp_path / str(has_flowed)
        found = scenario("returns", data, script="queues.py", has_flowed=has_flowed, **given)
        assert (found["is_flowed"], found["writes"], found["reads"]) == (False, 0, 0)
        assert number(found, "drain_us") > 0


def test_opening(tmp_path: Path) -> None:
    assert scenario("fill", tmp_path / "data", count=1000, size=256)["count"] == 1000
    found = scenario("open_store", tmp_path / "data", traced=True)
    assert (found["count"], found["clean"], found["replayed"]) == (1000, True, 0)


def number(found: dict[str, object], *names: str) -> float:
    """A figure inside of others."""
    value: object = found
    for name in names:
        assert isinstance(value, dict)
        value = value[name]
    assert isinstance(value, int | float)
    return value


def test_put_and_get(tmp_path: Path) -> None:
    found = scenario("cpu", tmp_path / "data", script="queues.py", size=100, runs=2, count=200)
    for name in ("put", "get", "put_batch", "get_batch"):
        values = found[name]
        assert isinstance(values, list)
        assert len(values) == 2
        assert all(0 < value < 5000 for value in values)


def test_backlogs_and_acks(tmp_path: Path) -> None:
    found = scenario(
        "flat", tmp_path / "data", script="queues.py", size=100, backlogs=[200, 400], sample=100,
        runs=1,
    )  # fmt: skip
    rows = found["rows"]
    assert isinstance(rows, list)
    assert [row["backlog"] for row in rows] == [200, 400]
    assert number(found, "after", "acked") == 700


def test_threads(tmp_path: Path) -> None:
    found = scenario(
        "threads", tmp_path / "data", script="queues.py", size=100, counts=[1, 4], seconds=0.1,
        runs=1,
    )  # fmt: skip
    rows = found["rows"]
    assert isinstance(rows, list)
    assert [row["threads"] for row in rows] == [1, 4]
    assert all(row["per_s"][0] > 0 for row in rows)


def test_a_backlog_is_on_disk_and_is_opened_again(tmp_path: Path) -> None:
    found = scenario(
        "backlog", tmp_path / "data", script="queues.py", count=2000, size=100, warm=500
    )
    # A slot of 32 bytes, and in the file of bodies what frames each, and the body.
    assert 132 < number(found, "disk_bytes") / 2000 < 160
    assert scenario("reopen", tmp_path / "data", script="queues.py")["count"] == 2000


def test_ram_in_each_state(tmp_path: Path) -> None:
    found = scenario("ram_states", tmp_path / "data", script="queues.py", count=8192, size=100)
    alpha, gamma = number(found, "bytes", "alpha"), number(found, "bytes", "gamma")
    assert 200 < alpha < 450
    assert 32 <= gamma < 48
    assert 32 <= number(found, "bytes", "beta") < 48
    assert number(found, "bytes", "delta") < 8
    assert number(found, "counted", "gamma") == 32


def test_past_a_limit(tmp_path: Path) -> None:
    given: dict[str, Any] = {"script": "queues.py", "size": 1024, "limit": 256 << 10, "count": 1000}
    steps = scenario("cliff", tmp_path / "steps", policy="steps", **given)
    assert number(steps, "ram_bytes_max") <= 256 << 10
    assert number(steps, "on_disk") > 700
    at_once = scenario("cliff", tmp_path / "once", policy="at once", **given)
    assert number(at_once, "bursts") >= 4
    unlimited = scenario("cliff", tmp_path / "unlimited", policy="unlimited", **given)
    assert (number(unlimited, "on_disk"), number(unlimited, "bursts")) == (0, 0)


@pytest.mark.parametrize(("peer", "mode"), [("penstock", "disk"), ("SQLite", "os")])
def test_a_peer(tmp_path: Path, peer: str, mode: str) -> None:
    found = scenario(
        "measure", tmp_path / "data", script="peers.py", peer=peer, mode=mode, size=100,
        seconds=0.03, depths=[100, 200],
    )  # fmt: skip
    gets = found["get"]
    assert isinstance(gets, list)
    assert [get["depth"] for get in gets] == [100, 200]
    for one in [found["put"], found["batch"], *gets]:
        assert isinstance(one, dict)
        assert len(one["cpu_us"]) == len(one["per_s"]) == 3
        assert min(one["cpu_us"]) > 0


def bench_code(code: str) -> subprocess.CompletedProcess[str]:
    """Runs Python that finds the bench's modules."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, 'bench'); {code}"],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip


def lines_of(code: str) -> list[str]:
    """What this code of several lines prints."""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator is in C")
def test_a_cell_of_the_broker(tmp_path: Path) -> None:
    """The load generator compiles, the server starts, stops and is killed, nothing is lost."""
    code = f"""
import json
from pathlib import Path
import load
from broker_cells import measured, persistent, shapes, transient
from penstock_node import PenstockNode
load.build()
node = PenstockNode(Path({str(tmp_path / "node")!r}), "os", is_pure=False)
try:
    node.start()
    rows = {{}}
    for cell in (transient(0.01)[3], persistent(0.01)[-1], shapes(0.02)[1]):
        rows.update(measured(node, cell))
    node.restart()
    node.load()("publish", "-q", "kept", "-d", "-D", "-w", 100, "-n", 50)
    node.kill()
    node.start()
    there = node.load()("consume", "-q", "kept", "--passive", "-n", 50)
    rows["after kill -9"] = {{"is_ok": there["exit"] == 0, "server_us_per_msg": 1}}
    rows["memory"] = {{"is_ok": node.memory()[0] > node.memory()[1] > 0, "server_us_per_msg": 1}}
    rows["disk"] = {{"is_ok": node.disk() > 0, "server_us_per_msg": 1}}
    node.stop()
finally:
    node.end()
print(json.dumps(rows))
"""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {name for name, row in rows.items() if not row["is_ok"]} == set(), done.stderr
    assert all(0 < row["server_us_per_msg"] < 10_000 for row in rows.values())
    assert len(rows) == 7


def test_cells_of_single_messages(tmp_path: Path) -> None:
    """Each cell runs against a server, and takes CPU of it."""
    code = f"""
import json, subprocess, sys
from pathlib import Path
from penstock_node import PenstockNode
import load, single
load.build()
node = PenstockNode(Path({str(tmp_path / "node")!r}), "os", is_pure=False)
try:
    node.start()
    cells = single.cells(0.01)
    print(json.dumps({{
        name: single.measured(cell, node.port, node.pid)["us"]
        for name, cell in cells.items() if "1,000 connections" not in name
    }}))
    node.stop()
finally:
    node.end()
"""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 21
    assert all(us > 0 for us in rows.values()), rows


def test_bytes_written(tmp_path: Path) -> None:
    """Each shape of each size has a row, and what is published reaches the disk."""
    code = f"""
from pathlib import Path
from penstock_node import PenstockNode
import writes
writes.SIZES = (1024, 65536)
writes.all_brokers = lambda data, say: [PenstockNode(data, "os", is_pure=False)]
bench = writes.WritesBench(Path({str(tmp_path)!r}), is_quick=True, say=lambda text: None)
bench.writes()
rows = bench.figures["writes"]
assert [row["size"] for row in rows] == [1024] * 3 + [65536] * 3, rows
found = {{"figures": bench.figures, "version": "", "build": "", "commit": "", "time": ""}}
writes.where = lambda found: ""
print(writes.sections(found, writes.goals(found["figures"]))[-1])
"""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("|").split("|") for line in done.stdout.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == ["steady", "published", "drained"] * 2
    on_tmpfs = all(float(row[2]) == 0 for row in rows)  # which writes nothing to a disk
    assert on_tmpfs or all(float(row[2]) >= 1 for row in rows[1::3])


def test_cells_of_tls(tmp_path: Path) -> None:
    """Each cell runs against a server, plain and over TLS, and its factor has a goal."""
    code = f"""
import json
from pathlib import Path
from penstock_node import PenstockNode
import load, tls_bench, tls_report
load.build()
tls_bench.all_brokers = lambda data, say: [
    PenstockNode(data / mode, mode, is_pure=False) for mode in ("os", "disk")
]
bench = tls_bench.TlsBench(Path({str(tmp_path)!r}), is_quick=True, say=lambda text: None)
bench.tls()
rows = bench.figures["tls"]
assert [len(row["us"]) for row in rows] == [2] * 7, rows
for row in rows:
    row["us"]["Penstock os"] = {{"plain": [10.0, 20.0, 30.0], "TLS": [30.0, 50.0, 31.0]}}
for goal in tls_report.goals(bench.figures)[::2]:
    print(goal.name, goal.mode, goal.goal, goal.text, goal.is_met)
"""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    cells = [
        f"{kind}, {what}"
        for kind in ("transient", "persistent")
        for what in ("published", "consumed", "one at a time")
    ]
    assert done.stdout.splitlines() == [
        f"{cell}, CPU over TLS os ≤ 1.6 times plain 1.55 times True"
        for cell in (*cells, "RPC, one client")
    ]


def test_what_the_table_of_publishers_says() -> None:
    rows = [
        {"what": "one at a time", "us": {"penstock": [300.0], "pika": [500.0]}},
        {"what": "append_many, window of 1,000", "us": {"penstock": [9.0]}},
    ]
    code = f"""
import single_report
for goal in single_report.goals({{'publishers': {rows!r}}}):
    print(goal.name, '|', goal.mode, '|', goal.text, '|', goal.is_met)
print(single_report.publishers({rows!r}))
"""
    assert lines_of(code) == [
        "penstock.open, one at a time, CPU | disk | 300.0 µs | True",
        "penstock.open, one at a time, CPU | disk | 0.60 times | False",
        "| what                         | penstock.open | pika  |",
        "|------------------------------|---------------|-------|",
        "| one at a time                | 300.0         | 500.0 |",
        "| append_many, window of 1,000 | 9.0           | -     |",
    ]


def test_what_the_tables_of_single_messages_say() -> None:
    """A goal that is missed, and a rival that is cheaper, are named; LavinMQ may be missing."""
    prefetch = {"Penstock os": [20.0, 15.0, 10.0], "RabbitMQ": [40.0]}
    persistent = {"Penstock os": [30.0], "Penstock disk": [44.0], "LavinMQ": [20.0]}
    rows = [
        {"what": "prefetch 1, transient", "us": prefetch},
        {"what": "prefetch 1, persistent", "us": persistent},
    ]
    code = f"""
import single_report
for goal in single_report.goals({{'single': {rows!r}}}):
    print(goal.name, '|', goal.mode, '|', goal.text, '|', goal.is_met)
for rival in single_report.rivals({{'single': {rows!r}}}):
    print(*rival, sep=' | ')
print(single_report.rivals({{'single': {rows[:1]!r}}}))
"""
    assert lines_of(code) == [
        "prefetch 1, transient, CPU | os | 15.0 µs | True",
        "prefetch 1, persistent, CPU | os | 30.0 µs | False",
        "prefetch 1, persistent, CPU | disk | 44.0 µs | False",
        "single messages: prefetch 1, persistent | µs | 30.0 | LavinMQ | 20.0",
        "[]",
    ]


def test_the_table_of_a_profile() -> None:
    """Shares of the median; a cell or broker that was not measured has none."""
    parts = {"kernel": 0.5, "interpreter": 0.25, "own code": 0.2, "libraries": 0.05}
    rows = [
        {"what": "a", "parts": {"Penstock os": parts, "LavinMQ": parts}},
        {"what": "b", "parts": {"Penstock os": parts}},
    ]
    single = [{"what": "a", "us": {"Penstock os": [10.0, 20.0, 30.0], "LavinMQ": [4.0]}}]
    code = f"""
import cpu_profile, single_report
for place in ('[kernel.kallsyms]', '/usr/lib/libpython3.11.so.1.0', '/x/_socket.cpython-311.so',
              '/x/penstock__mypyc.cpython-311.so', '/usr/bin/lavinmq', '[vdso]', '/x/libc.so.6'):
    print(cpu_profile.part_of(place))
print(single_report.profile_table({rows!r}, {{'single': {single!r}}}))
"""
    *places, head, _, a, b = lines_of(code)
    assert places == [
        "kernel", "interpreter", "interpreter", "own code", "own code", "libraries", "libraries",
    ]  # fmt: skip
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (head, a, b)]
    assert cells == [
        ["what", "Penstock os: kernel", "Penstock os: interpreter", "Penstock os: own code",
         "Penstock os: libraries", "LavinMQ: kernel", "LavinMQ: interpreter", "LavinMQ: own code",
         "LavinMQ: libraries"],
        ["a", "10.0", "5.0", "4.0", "1.0", "2.0", "1.0", "0.8", "0.2"],
        ["b"] + ["-"] * 8,
    ]  # fmt: skip


def test_a_profile_of_a_busy_process() -> None:
    """Where `perf` can be run its samples make up the whole; else a profile says why not."""
    code = """
import subprocess, sys
import cpu_profile
problem = cpu_profile.missing()
if problem:
    print('without:', problem)
else:
    busy = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    try:
        with cpu_profile.CpuProfile([busy.pid]) as profile:
            for _ in range(3_000_000):
                pass
    finally:
        busy.kill()
    parts = profile.parts()
    print(tuple(parts) == cpu_profile.PARTS, sum(parts.values()) > 0.99)
"""
    (line,) = lines_of(code)
    assert line == "True True" or line.startswith("without: ")


def test_the_table_of_rivals() -> None:
    """Only a rival that takes less is in it, with one that takes nothing too."""
    code = """
from report import best_rival, rival_table
found = best_rival('a', 'µs', 3.0, {'X': 2.0, 'Y': 4.0}) + best_rival('b', 'B', 1.0, {'X': 1.0})
found += best_rival('c', 'B', 5.0, {'X': 0.0}) + best_rival('d', 'B', 5.0, {})
print(rival_table(found + best_rival('e', 'B', None, {'X': 1.0})))
"""
    assert lines_of(code) == [
        "| what | unit | Penstock | who is better | its figure | times |",
        "|------|------|----------|---------------|------------|-------|",
        "| a    | µs   | 3        | X             | 2          | 1.50  |",
        "| c    | B    | 5        | X             | 0          | > 100 |",
    ]


def test_where_each_part_names_a_rival() -> None:
    """Each part of the page that has rivals names the one that takes less, by its kept shape."""
    code = """
import broker_report, kafka_report, management_report, queue_report, redis_bench, tls_report
import writes

def run(us): return {'server_us_per_msg': [us]}
def late(us): return [{'latency_us': {'p50': us, 'p99': 9, 'p99_9': 9}}]
def tls(us): return {'plain': [1], 'TLS': [us]}
def broker(cpu, p99):
    return {'asked': {'page': {'cpu_s': cpu}}, 'confirm_ms': {'alone': [1, p99, 9]}}
def library(name, us):
    return {'peer': name, 'size': 100, 'mode': 'os', 'put': {'cpu_us': [us]}, 'batch': None,
            'get': [{'depth': 1000, 'cpu_us': [1]}]}

shape = {'what': 'w', 'peers': {'Penstock disk': run(3), 'RabbitMQ': run(2)}}
latency = {'what': 'idle', 'peers': {'Penstock disk': late(300), 'RabbitMQ': late(200)}}
million = [{'peer': 'Penstock disk', 'first_s_after_kill': 2},
           {'peer': 'RabbitMQ', 'first_s_after_kill': 1}]
over_tls = {'what': 'w', 'us': {'Penstock os': tls(2), 'LavinMQ': tls(1)}}
redis = {'versions': {'Penstock os': '', 'Redis everysec': ''},
         'rows': [{'what': 'w', 'values': {'Penstock os': [2], 'Redis everysec': [1]}}]}
written = {'size': 16, 'shape': 'steady', 'times': {'Penstock os': 2, 'RabbitMQ': 1}}
brokers = {'Penstock': broker(2, 5), 'RabbitMQ': broker(1, 4)}
cells = {'micro-batch of 1 row': {'kafka': [[1, 0.1]], 'penstock': [[1, 0.2]]}}
for found in (
    broker_report.rivals({'shapes': [shape], 'latency': [latency], 'million': million}),
    tls_report.rivals({'tls': [over_tls]}),
    queue_report.rivals({'peers': [library('penstock', 2), library('SQLite', 1)]}),
    redis_bench.rivals({'redis': redis}),
    writes.rivals({'writes': [written]}),
    management_report.rivals({'management': {'brokers': brokers}}),
    kafka_report.rivals({'cells': cells, 'rows': 1, 'few': 1}),
):
    for rival in found:
        print(*rival, sep=' | ')
"""
    assert lines_of(code) == [
        "shapes: w | µs | 3 | RabbitMQ | 2",
        "latency, idle, p50 | ms | 0.3 | RabbitMQ | 0.2",
        "million: first s after kill | s | 2 | RabbitMQ | 1",
        "over TLS: w | µs | 2 | LavinMQ | 1",
        "library: put, 100 B, os | µs | 2 | SQLite | 1",
        "beside Redis streams, os: w | µs | 2 | Redis everysec | 1",
        "written to the disk: 16 B, steady | B per B | 2 | RabbitMQ | 1",
        "management: page | CPU ms | 2000 | RabbitMQ | 1000",
        "management: confirm, alone, p99 | ms | 5 | RabbitMQ | 4",
        "Spark: micro-batch of 1 row | ms | 200.0 | Kafka | 100.0",
    ]


def broker_run(us: float, *, is_ok: bool = True) -> dict[str, object]:
    return {"server_us_per_msg": [us, us + 1], "msgs_s": [1e4, 2e4], "is_ok": is_ok}


def test_what_the_broker_s_tables_say() -> None:
    """A goal missed is told, so is a row in which RabbitMQ is better, and one with losses."""
    peers = {
        "Penstock disk": broker_run(5.0),
        "Penstock os": broker_run(5.0),
        "RabbitMQ": broker_run(4.0, is_ok=False),
    }
    figures = {
        "persistent": [{"what": "256 B, confirms and acks", "peers": peers}],
        "shapes": [{"what": "varied", "peers": peers}],
    }
    code = f"""
import broker_report
for goal in broker_report.goals({figures!r}):
    print(goal.name, '|', goal.mode, '|', goal.goal, '|', goal.is_met)
print(broker_report.wrong_rows({figures!r}))
"""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    name = "persistent, 256 B, confirms and acks: CPU per message"
    assert done.stdout.splitlines() == [
        f"{name} | disk | ≤ 7 µs, aim 3 | True",
        f"{name} | os | ≤ 8.3 µs | True",
        "persistent: 256 B, confirms and acks | disk | ≤ RabbitMQ, 4.50 µs | False",
        "shapes: varied | disk | ≤ RabbitMQ, 4.50 µs | False",
        "persistent, 256 B, confirms and acks, RabbitMQ; shapes, varied, RabbitMQ",
    ]


def test_what_the_plot_is_made_of(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'bench'); import memory_plot; from pathlib import Path;"
        f"watch = memory_plot.run(Path({str(tmp_path / 'data')!r}), 3000, 100, '256 KiB');"
        "last = watch.samples[-1]; print(last.waiting, last.rss > 0 < watch.turn_s < last.at_s)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 True"


def test_what_the_plot_of_metrics_is_made_of(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'bench'); import metrics_plot; from pathlib import Path;"
        f"found = metrics_plot.run(Path({str(tmp_path / 'data')!r}), 300, 100, '64MiB');"
        "print(found[0][1]['memory_budget_bytes'], 'messages.alpha' in found[-1][1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{float(64 << 20)} True"


def test_the_page_names_goal_mode_and_machine() -> None:
    """docs/reference/performance.md is what the last kept full runs render to."""
    code = "import sys; sys.path.insert(0, 'bench'); import page; print(page.text(), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "reference" / "performance.md").read_text(encoding="utf-8")
    assert done.stdout == page
    for text in ("`make bench`", "commit", "cores", "| goal", "≤ 1.0 µs", "| os "):
        assert text in page


def test_what_the_tables_of_the_management_api_say() -> None:
    asked = {"s": 0.1, "cpu_s": 0.02, "bytes": 4000, "turn_ms": 3.0}
    slow = {**asked, "cpu_s": 2.0, "turn_ms": None}
    figures = {
        "management": {
            "queues": 1000, "connections": 10,
            "brokers": {
                "Penstock": {
                    "asked": {"page of 50 queues": asked, "all queues": {**asked, "cpu_s": 2.0}},
                    "confirm_ms": {"alone": [1, 2, 9], "beside a poller": [1, 3, 9]},
                },
                "RabbitMQ": {
                    "asked": {"page of 50 queues": slow, "all queues": slow},
                    "confirm_ms": {"alone": [1, 2, 9], "beside a poller": [1, 3, 9]},
                },
            },
        }
    }  # fmt: skip
    code = f"""
import management_report as its
figures = {figures!r}
for goal in its.goals(figures):
    print(goal.name, '|', goal.text, '|', goal.is_met)
print(its.asked(figures["management"]).splitlines()[-1])
print(its.delays(figures["management"]).splitlines()[-1])
"""
    done = bench_code(f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "page of 50 queues, CPU | 0.0200 s | False",
        "longest turn | 3.0 ms | True",
        "confirm beside a poller, p99 | 1.50 times | True",
        "| all queues | 0.100 | 2.0000 | 4 | 0.100 | 2.0000 | 4 | 3.0 |",
        "| RabbitMQ | beside a poller | 1.00 | 3.00 | 9.00 |",
    ]
