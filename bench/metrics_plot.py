"""docs/guides/monitoring.png: a broker's /metrics while a backlog comes and goes.

    make plot-metrics                                  400,000 messages of 1 kB, a budget of 64 MiB
    make plot-metrics ARGS='--count 20000 --out /tmp/monitoring.png'

A broker of its own, on free ports, in mode `os`: messages are put until all are there, then got and
acked until none is. Twice a second /metrics is scraped, as Prometheus does.
"""

import argparse
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import penstock

ROOT = Path(__file__).parent.parent
BATCH = 100
EVERY_S = 0.5
MIB = 1 << 20
SAMPLE = re.compile(r"^penstock_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
STATES = {"alpha": "#3a7d44", "beta": "#8a5a00", "gamma": "#c9902b", "delta": "#7b8794"}

Scrape = dict[str, float]


def scrape(url: str) -> Scrape:
    """Return the values of the vhost "/", by name and the other label."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    found = {}
    for name, labels, value in SAMPLE.findall(text):
        parts = labels.split(",")
        if 'vhost="/"' in parts:
            other = [part.partition('"')[2][:-1] for part in parts if part != 'vhost="/"']
            found[".".join([name, *other])] = float(value)
    return found


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(data: Path, count: int, size: int, memory: str) -> list[tuple[float, Scrape]]:
    """Put `count` messages and get them all. Return the scrapes by seconds since the start."""
    port, metrics = free_port(), free_port()
    options = ["--port", str(port), "--data", str(data), "--durability", "os", "--memory", memory]
    ports = {"PENSTOCK_HTTP_PORT": "0", "PENSTOCK_PROMETHEUS_PORT": str(metrics)}
    url = f"http://127.0.0.1:{metrics}/metrics"
    broker = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", *options], env=os.environ | ports
    )
    try:
        while True:
            try:
                scrape(url)
                break
            except OSError:
                if broker.poll() is not None:
                    sys.exit("the broker ended before it was ready")
                time.sleep(EVERY_S)
        loading = threading.Thread(
            target=load, args=(f"amqp://guest:guest@127.0.0.1:{port}/", count, size)
        )
        loading.start()
        began_s = time.monotonic()
        found: list[tuple[float, Scrape]] = []
        while loading.is_alive():
            found.append((time.monotonic() - began_s, scrape(url)))
            loading.join(EVERY_S)
        return found
    finally:
        broker.terminate()
        broker.wait()


def load(address: str, count: int, size: int) -> None:
    """Put all messages, then get and ack them."""
    with penstock.open(address) as box:
        queue = box.queue("plot")
        for _ in range(0, count, BATCH):
            queue.put_many([b"b" * size] * BATCH)
        got = 0
        while got < count:
            jobs = queue.get_many(BATCH, timeout=60)
            queue.ack(jobs)
            got += len(jobs)


def rates(found: list[tuple[float, Scrape]], name: str) -> list[float]:
    """Return the rate of a counter between each scrape and the one before it, per second."""
    pairs = itertools.pairwise(found)
    return [0.0, *((b[name] - a[name]) / (b_s - a_s) for (a_s, a), (b_s, b) in pairs)]


def draw(found: list[tuple[float, Scrape]], out: Path) -> None:
    """Three panels over one time: where the messages are, what they take of RAM, how fast it
    goes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    at = [at_s for at_s, _ in found]
    figure, (upper, middle, lower) = pyplot.subplots(
        3, 1, figsize=(9, 8), sharex=True, layout="constrained"
    )
    upper.stackplot(
        at, *[[one[f"messages.{state}"] / 1e3 for _, one in found] for state in STATES],
        labels=STATES, colors=list(STATES.values()),
    )  # fmt: skip
    upper.set_ylabel("penstock_messages, thousand")
    for name, color in (
        ("backlog_as_alphas_bytes", "#7b8794"), ("memory_budget_bytes", "#1f5fa8"),
        ("memory_counted_bytes", "#b3362c"),
    ):  # fmt: skip
        middle.plot(at, [one[name] / MIB for _, one in found], color=color, label=name)
    middle.set_ylabel("MiB")
    for name, color in (
        ("messages_published_total", "#3a7d44"), ("messages_delivered_total", "#8a5a00"),
        ("paged_in_total", "#7b8794"),
    ):  # fmt: skip
        lower.plot(at, [n / 1e3 for n in rates(found, name)], color=color, label=name)
    lower.set_ylabel("thousand per second")
    lower.set_xlabel("seconds")
    lower.set_xlim(0, at[-1])
    for part in (upper, middle, lower):
        part.set_ylim(bottom=0)
        part.legend(loc="upper right", frameon=False)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    print(f"drawn to {out}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400_000, help="a multiple of 100")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a body")
    parser.add_argument("--memory", default="64MiB", help="the broker's budget")
    parser.add_argument("--data", type=Path, default=ROOT / "run-data" / "metrics-plot")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "guides" / "monitoring.png")
    given = parser.parse_args()
    shutil.rmtree(given.data, ignore_errors=True)
    given.data.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = run(given.data, given.count, given.size, given.memory)
    finally:
        shutil.rmtree(given.data, ignore_errors=True)
    draw(found, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
