"""The management API with many queues and connections: what its lists cost, and whom they delay.

Penstock and, where the package is installed, RabbitMQ with its management plugin, each alone. All
queues are declared, every tenth has a message, and the connections are open and idle. Then each
address is asked once, and then several times: seconds until the answer is there and CPU of all
processes of the broker, both the mean of these several, and bytes. After that a client publishes
one persistent message at a time, at a steady pace, without and with a poller that asks what a
dashboard asks each 5 s: the time until each confirm.

Of Penstock also (scenario `dashboard`): the CPU of each of its processes while nobody looks at its
dashboard, while one page is open, and while ten are; when nobody else does anything, and beside
that publisher. A page is its stream of events: the overview, and a queue.

Penstock tells the longest turn of its vhost's loop (CPU) while each address is asked.
"""

import base64
import http.client
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import load
import rabbitmq
from brokers import Broker, free_port, tree
from runner import Result, Runner
from scaling import ScalingNode
from single import Client, cpu_s, method, publish, short, table

from penstock.native import build_kind
from penstock.server.control import ControlClient

ASKED_EVERY_S = 5.0
SETTLED_S = 3.0  # after a page was opened
PAGES = (0, 1, 10)  # of the dashboard that are open
NOBODY, PUBLISHER = "nobody else", "a publisher"  # beside the pages
PROCESSES = {"serve": "supervisor", "penstock vhost": "vhost", "penstock http": "HTTP"}
EVENTS = "penstock/events?topics=overview,queue:%252F:queue.00000"
PER_S = 200  # messages that the publisher sends
IN_FLIGHT = 500  # declares that are not answered yet
METRICS = "/metrics/per-object"
PAGES_ASKED = 20  # times that a page is asked for
ADDRESSES = {
    "page of 50 queues": "queues?page=1&page_size=50",
    "page of 50, the longest first": (
        "queues?page=1&page_size=50&sort=messages&sort_reverse=true&columns=name,messages"
    ),
    "page of 50, the busiest first": (
        "queues?page=1&page_size=50&sort=message_stats.publish_details.rate&sort_reverse=true"
        "&columns=name,messages"
    ),
    "page of 50 whose name matches": "queues?page=1&page_size=50&name=9.*7$&use_regex=true",
    "all queues, name and messages": "queues?columns=name,messages",
    "all queues, without statistics": "queues?disable_stats=true&enable_queue_totals=true",
    "all queues": "queues",
    "page of 50 connections": "connections?page=1&page_size=50",
    "overview": "overview",
    "metrics of all queues": METRICS,
}
POLLED = ("page of 50, the longest first", "page of 50 connections", "overview")


class ManagedPenstock(ScalingNode):
    """A broker with its HTTP process, that measures its loops."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.is_pure = build_kind() == "pure"
        self.name = "Penstock"

    def command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super().command()
        return command, {**environment, "PENSTOCK_MEASURE_LOOP": "1"}

    def longest_ms(self) -> float:
        """The longest turn of the vhost since this was asked last."""
        with ControlClient(str(self.files / "control.sock")) as control:
            return float(control.call("loop", "/")["longest_s"]) * 1000


class ManagedRabbitMQ(rabbitmq.RabbitMQ):
    """A node with its management plugin."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.http_port = free_port()

    def command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super().command()
        (self.data / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.data / "rabbitmq.conf").write_text(f"management.tcp.port = {self.http_port}\n")
        return command, environment


class ManagementBench(Runner):
    """`figures` has the rows of each broker, and those of the dashboard."""

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {"management": self.management, "dashboard": self.dashboard}

    def management(self) -> None:
        load.build()
        queues, connections = self.pick((1_000, 100), (10_000, 2_000))
        nodes: list[Broker] = [ManagedPenstock(self.data / "penstock")]
        reason = rabbitmq.install()
        if reason:
            self.say(f"without RabbitMQ: {reason}")
        else:
            nodes.append(ManagedRabbitMQ(self.data / "rabbitmq"))
        rows: Result = {}
        for node in nodes:
            try:
                node.start()
                rows[node.name] = self._measured(node, queues, connections)
            finally:
                node.end()
        self.figures["management"] = {
            "queues": queues, "connections": connections, "brokers": rows,
        }  # fmt: skip

    def _measured(self, node: Broker, queues: int, connections: int) -> Result:
        assert isinstance(node, ManagedPenstock | ManagedRabbitMQ)
        self.say(f"management: {node.name}, {queues:,} queues, {connections:,} connections")
        first = Client(node.port)
        declare(first, [f"queue.{n:05}" for n in range(queues)])
        idle = [Client(node.port) for _ in range(connections)]
        time.sleep(ASKED_EVERY_S + 1)  # RabbitMQ's statistics come each 5 s
        ask(node.http_port, "whoami")  # the password is checked once
        asked: Result = {}
        for what, address in ADDRESSES.items():
            self.say(f"management: {node.name}, {what}")
            if address != METRICS or isinstance(node, ManagedPenstock):  # RabbitMQ: another plugin
                asked[what] = self._asked(node, address)
        delays: Result = {}
        seconds = self.pick(12, 60)
        for what, polled in (("alone", ()), ("beside a poller", POLLED)):
            self.say(f"management: {node.name}, a publisher {what}")
            delays[what] = self._delays(node, seconds, [ADDRESSES[one] for one in polled])
        for one in (first, *idle):
            one.sock.close()
        return {"asked": asked, "confirm_ms": delays}

    def dashboard(self) -> None:
        """Parts of a core by process, rounds of all numbers of pages in turn."""
        load.build()
        queues, connections = self.pick((1_000, 20), (10_000, 200))
        node = ManagedPenstock(self.data / "penstock")
        cpu: dict[str, dict[str, list[dict[str, float]]]] = {}
        try:
            node.start()
            first = Client(node.port)
            declare(first, [f"queue.{n:05}" for n in range(queues)])
            idle = [Client(node.port) for _ in range(connections)]
            ask(node.http_port, "whoami")
            time.sleep(ASKED_EVERY_S)
            for run in range(self.pick(1, 3)):
                for beside in (NOBODY, PUBLISHER):
                    for pages in PAGES:
                        self.say(f"dashboard: {pages} open beside {beside}, run {run + 1}")
                        found = self._watched(node, pages, is_published=beside == PUBLISHER)
                        cpu.setdefault(beside, {}).setdefault(str(pages), []).append(found)
            for one in (first, *idle):
                one.sock.close()
        finally:
            node.end()
        self.figures["dashboard"] = {"queues": queues, "connections": connections, "cpu": cpu}

    def _watched(
        self, node: ManagedPenstock, pages: int, *, is_published: bool
    ) -> dict[str, float]:
        """Part of a core that each process takes while so many pages of the dashboard are open."""
        seconds = self.pick(10, 40)
        with multiprocessing.Pool(1) as pool:
            if is_published:
                publishing = pool.apply_async(confirms, (node.port, seconds + 2 * SETTLED_S))
            socks = [opened(node.http_port, EVENTS).sock for _ in range(pages)]
            readers = [threading.Thread(target=drain, args=(sock,)) for sock in socks]
            for reader in readers:
                reader.start()
            time.sleep(SETTLED_S)
            before, started = cpu_by_process(node.pid), time.monotonic()
            time.sleep(seconds)
            taken, took_s = cpu_by_process(node.pid), time.monotonic() - started
            for sock, reader in zip(socks, readers, strict=True):
                sock.shutdown(socket.SHUT_RDWR)
                reader.join()
            if is_published:
                publishing.get()
        return {name: (taken[name] - before[name]) / took_s for name in taken}

    def _asked(self, node: "ManagedPenstock | ManagedRabbitMQ", address: str) -> Result:
        count = self.pick(2, 3 if "page=" not in address else PAGES_ASKED)
        began = time.monotonic()
        size = ask(node.http_port, address)
        first_s = time.monotonic() - began
        if isinstance(node, ManagedPenstock):
            node.longest_ms()
        before, began = cpu_s(node.pid), time.monotonic()
        for _ in range(count):
            size = ask(node.http_port, address)
        found: Result = {
            "first_s": first_s, "s": (time.monotonic() - began) / count,
            "cpu_s": (cpu_s(node.pid) - before) / count, "bytes": size,
        }  # fmt: skip
        turn_ms = node.longest_ms() if isinstance(node, ManagedPenstock) else None
        return {**found, "turn_ms": turn_ms}

    def _delays(
        self, node: "ManagedPenstock | ManagedRabbitMQ", seconds: float, polled: list[str]
    ) -> list[float]:
        """Milliseconds until a confirm: the median, the 99th of a hundred, the longest."""
        with multiprocessing.Pool(1) as pool:
            found = pool.apply_async(confirms, (node.port, seconds))
            while polled and not found.ready():
                for address in polled:
                    ask(node.http_port, address)
                found.wait(ASKED_EVERY_S)
            times = sorted(found.get())
        return [times[len(times) * part // 100] for part in (50, 99)] + [times[-1]]


def cpu_by_process(root: int) -> dict[str, float]:
    """Seconds of CPU of the broker's processes."""
    found: dict[str, float] = {}
    for pid in tree(root):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for word, name in PROCESSES.items():
            if word in words:
                found[name] = cpu_s(pid)
    found["supervisor"] -= sum(found.values()) - found["supervisor"]  # it is above them
    return found


def declare(client: Client, names: list[str]) -> None:
    """Declare durable queues, and put a message into every tenth."""
    for at in range(0, len(names), IN_FLIGHT):
        some = names[at : at + IN_FLIGHT]
        asked = [method(1, 50, 10, b"\x00\x00" + short(name) + b"\x02" + table()) for name in some]
        client.sock.sendall(b"".join(asked))
        for _ in some:
            client.wait((50, 11))
    client.sock.sendall(b"".join(publish("", name, b"x") for name in names[::10]))
    client.ready(names[0])


def opened(port: int, address: str) -> http.client.HTTPConnection:
    """Ask an address of the API, or another; the connection on which the answer comes."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    token = base64.b64encode(b"guest:guest").decode()
    address = address if address.startswith("/") else f"/api/{address}"
    link.request("GET", address, headers={"Authorization": f"Basic {token}"})
    return link


def ask(port: int, address: str) -> int:
    """Ask an address of the API; bytes of the answer."""
    link = opened(port, address)
    answer = link.getresponse()
    data = answer.read()
    link.close()
    if answer.status != 200:
        sys.exit(f"{address}: {answer.status} {data[:200]!r}")
    return len(data)


def drain(sock: socket.socket) -> None:
    """Read until there is no more."""
    while sock.recv(1 << 16):
        pass


def confirms(port: int, seconds: float) -> list[float]:
    """Publish one message after another; milliseconds until each confirm."""
    client = Client(port)
    queue = client.fresh(f"bench.{os.getpid()}", is_durable=True)
    client.confirms()
    message = publish("", queue, b"b" * 256, is_persistent=True)
    found: list[float] = []
    started = time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        client.call(message, (60, 80))
        found.append((time.perf_counter() - now) * 1000)
        time.sleep(max(started + len(found) / PER_S - time.perf_counter(), 0))
    client.delete(queue)
    client.close()
    return found
