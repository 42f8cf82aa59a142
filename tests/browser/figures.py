"""`make dashboard-figures`: how fast pages of the dashboard are, and whether open ones leak.

    make dashboard-figures ARGS="speed --queues 10000"
    make dashboard-figures ARGS="leaks --minutes 60"

**speed**: a broker with so many queues, every tenth with a message, and their list in Chromium:
from the navigation until its rows are painted, with an empty cache (`first`) and again (`again`);
from a key in the filter until only what matches is painted (`filter`); from a click on a heading
until the rows are in that order (`sort`). Milliseconds of ROUNDS, beside what they may be (SPEEDS).

**leaks**: a broker under light load (helpers/browser.py) is looked at by three tabs: one stays on
the overview, one on a queue, whose charts move each second, and one goes over all pages, PAGE_S on
each. Each minute the browser collects its garbage and says what is left; the walker stands at the
overview then. Of each process of the broker it is the RSS and the open files. A line a minute, and
at the end what has grown since minute FIRST, when everything has been shown once, beyond ALLOWED.

The exit code is 1 if something is slower or larger than it may be.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.browser.test_every_page import PAGES, TABS
from tests.helpers.browser import Load, Tab, running_chromium
from tests.helpers.live_broker import LiveBroker, memory_bytes

ROUNDS = 15
SPEEDS = {"first": 300, "again": 300, "filter": 100, "sort": 100}  # ms, the median
SHOWN = """new Promise((done) => {
    const end = () => done(performance.now());
    const look = () => requestAnimationFrame(document.querySelector("main tbody a") ? end : look);
    look();
})"""
# CHANGE and IS_DONE are JavaScript: the page's policy forbids eval.
DONE = """new Promise((done) => {
    const began = performance.now();
    CHANGE;
    const end = () => done(performance.now() - began);
    const look = () => requestAnimationFrame(IS_DONE ? end : look);
    look();
})"""
FILTER = """{ const input = document.querySelector("main input.filter"); input.value = "TEXT";
    input.dispatchEvent(new Event("input", {bubbles: true})) }"""
ROWS = """((rows) => rows.length && rows.every((row) => IS_WANTED))(
    [...document.querySelectorAll("main tbody tr a")])"""
IS_FILTERED = ROWS.replace("IS_WANTED", 'row.textContent.slice(6).includes("TEXT")')
SORT = """[...document.querySelectorAll("main th button")].find(
    (one) => one.textContent.startsWith("ready")).click()"""
# Every tenth queue has a message, so the shortest ones have none.
IS_SORTED = ROWS.replace("IS_WANTED", '!row.textContent.endsWith("0")')
FIRST = 5
PAGE_S = 2.0
# Part of what was there at minute FIRST, and how much more: charts keep samples of ten minutes.
ALLOWED = {
    "heap_bytes": (0.1, 1 << 20), "nodes": (0.05, 100), "listeners": (0.05, 50),
    "documents": (0.0, 2), "rss_bytes": (0.05, 4 << 20), "files": (0.0, 4),
}  # fmt: skip
METRICS = {
    "JSHeapUsedSize": "heap_bytes", "Nodes": "nodes", "JSEventListeners": "listeners",
    "Documents": "documents",
}  # fmt: skip
TITLES = {"penstock vhost": "vhost", "penstock http": "http"}

Found = dict[tuple[str, str], float]


def measured(name: str, tab: Tab) -> Found:
    """What the page of the tab holds, without garbage."""
    session = tab.context.new_cdp_session(tab.page)
    session.send("Performance.enable")
    session.send("HeapProfiler.enable")
    for _ in range(2):  # what the first found to be finalised
        session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    values = {one["name"]: one["value"] for one in metrics}
    return {(name, ours): values[theirs] for theirs, ours in METRICS.items()}


def of_broker(broker: LiveBroker) -> Found:
    """RSS and open files of its processes; there is one vhost."""
    found: Found = {}
    for pid in broker.pids():
        title = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
        name = TITLES.get(title, "supervisor" if pid == broker.pid else "other")
        found[name, "rss_bytes"] = memory_bytes(pid, "VmRSS")
        found[name, "files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return found


def shown(minute: int, found: Found) -> str:
    """A line of what was found."""
    parts: dict[str, list[str]] = {}
    for (name, what), value in found.items():
        text = f"{value / 1e6:.2f} MB" if what.endswith("bytes") else f"{value:.0f} {what}"
        parts.setdefault(name, []).append(text)
    return f"{minute:3} min  " + "; ".join(
        f"{name}: {', '.join(texts)}" for name, texts in parts.items()
    )


def watch(broker: LiveBroker, tabs: dict[str, Tab], minutes: int) -> list[Found]:
    """Let the tabs be open for so long, and the walker walk; what was found after each minute."""
    walker = tabs["walker"]
    addresses = [(names, {}) for names in PAGES if not any("<" in name for name in names)]
    addresses += [(("queues", "/", "busy"), {"tab": tab}) for tab in TABS]
    ways = itertools.cycle(addresses)
    found: list[Found] = []
    began_s = time.monotonic()
    for minute in range(1, minutes + 1):
        while time.monotonic() < began_s + minute * 60:
            names, params = next(ways)
            walker.go(*names, **params)
            walker.page.wait_for_timeout(PAGE_S * 1000)
        walker.go("overview")
        walker.page.wait_for_timeout(PAGE_S * 1000)
        now = of_broker(broker)
        for name, tab in tabs.items():
            now |= measured(name, tab)
        print(shown(minute, now), flush=True)
        found.append(now)
    return found


def grown(then: Found, now: Found) -> list[str]:
    """What has grown more than ALLOWED."""
    texts: list[str] = []
    for key, value in now.items():
        part, more = ALLOWED[key[1]]
        if value > then[key] * (1 + part) + more:
            texts.append(f"{key[0]}: {key[1]} was {then[key]:,.0f} and is {value:,.0f}")
    return texts


def leaks(minutes: int) -> int:
    """See the head of this module."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running_chromium() as browser,
        LiveBroker(Path(directory) / "data", has_http=True) as broker,
        Load(broker),
    ):
        tabs = {name: Tab(browser, broker) for name in ("overview", "queue", "walker")}
        for tab in tabs.values():
            tab.sign_in("guest")
        tabs["overview"].go("overview")
        tabs["queue"].go("queues", "/", "busy")
        found = watch(broker, tabs, minutes)
        complaints = [text for tab in tabs.values() for text in tab.complaints if "401" not in text]
    texts = grown(found[FIRST - 1], found[-1]) + complaints
    print("\n".join(texts) or f"nothing has grown from minute {FIRST} to minute {minutes}")
    return 1 if texts else 0


def took(change: str, is_done: str) -> str:
    """JavaScript: the milliseconds from a change until it is done and painted."""
    return DONE.replace("CHANGE", change).replace("IS_DONE", is_done)


def speed(queues: int) -> int:
    """See the head of this module."""
    times: dict[str, list[float]] = {name: [] for name in SPEEDS}
    with (
        tempfile.TemporaryDirectory() as directory,
        running_chromium() as browser,
        LiveBroker(Path(directory) / "data", has_http=True) as broker,
    ):
        declared = [{"name": f"queue.{n:05}", "durable": True} for n in range(queues)]
        broker.control("import_definitions", "/", definitions=json.dumps({"queues": declared}))
        for queue in declared[::10]:
            broker.control("publish", "/", routing_key=queue["name"], bodies=["x"])
        tab = Tab(browser, broker)
        tab.sign_in("guest")
        cookies = tab.context.storage_state()
        for number in range(ROUNDS):
            fresh = Tab(browser, broker, storage_state=cookies)
            for name in ("first", "again"):
                fresh.page.goto("about:blank")
                fresh.page.goto("/#/queues", wait_until="commit")
                times[name].append(fresh.page.evaluate(SHOWN))
            fresh.close()
            tab.go("queues")
            text = f"{number * 7 % 100:02}"
            tab.page.evaluate(SHOWN)
            script = took(FILTER, IS_FILTERED).replace("TEXT", text)
            times["filter"].append(tab.page.evaluate(script))
            tab.go("queues")
            tab.page.evaluate(SHOWN)
            times["sort"].append(tab.page.evaluate(took(SORT, IS_SORTED)))
        tab.close()
    is_slow = False
    for name, found in times.items():
        median_ms = statistics.median(found)
        is_slow = is_slow or median_ms > SPEEDS[name]
        print(f"{name:7} {median_ms:6.0f} ms, longest {max(found):.0f}; at most {SPEEDS[name]}")
    return int(is_slow)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_speed = commands.add_parser("speed")
    of_speed.add_argument("--queues", type=int, default=10_000)
    of_leaks = commands.add_parser("leaks")
    of_leaks.add_argument("--minutes", type=int, default=60, help=f"more than {FIRST}")
    given = parser.parse_args()
    if given.command == "speed":
        return speed(given.queues)
    if given.minutes <= FIRST:
        parser.error(f"--minutes: given {given.minutes}, expected more than {FIRST}")
    return leaks(given.minutes)


if __name__ == "__main__":
    sys.exit(main())
