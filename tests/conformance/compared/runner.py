"""Running scripts on a broker: one transcript for each, a list of lines for each step.

A line is a frame of the broker's, with the connection (none for the first, B, C for the others) and
the channel before it. The lines of a step are in the order of their channels, and in one channel as
they came. What differs from run to run is replaced: names that the server makes, times, and what
makes the script's names its own. A connection that ends without connection.close is "gone".

How long a step listens: while an answer is due at most LIMIT_S; then until a channel.flow, which
changes nothing, is answered behind it, if the step leaves room for one; then until `patience_s` of
silence, for what queues send by themselves.
With a guide (the transcript that is expected) it listens until so many lines have come as the guide
has for the step, so that no time goes in silence; what comes beyond that is found in the next step,
and after the last one in "end", when the channels have been closed.
"""

import re
import select
import socket
import struct
import time
from collections.abc import Iterable

from tests.conformance.compared.amqp import frame, frame_line, method_payload
from tests.conformance.compared.script import Call, Script
from tests.helpers.live_broker import Broker

LIMIT_S = 20.0
JANITOR = 1999
GENERATED = re.compile(r"amq\.gen-[-\w]+|amq\.ctag-[-\w]+|amq\.rabbitmq\.reply-to\.[-\w.+/=]+")
# What is wrong with a value is told in Erlang's words there and in plain ones here. That it is
# wrong, and which it is, is compared.
DETAIL = re.compile(
    r"(invalid arg '[^']*' for queue '.*' in vhost '/':|Invalid x-match field [a-z]+"
    r"|invalid expiration '[^']*':|invalid message:) .*(' class=)"
)

Transcript = list[list[str]]


class Talk:
    """One connection. lines: (channel, text) of what came and has not been taken."""

    def __init__(self, broker: Broker, *, is_bare: bool = False) -> None:
        self.broker = broker
        self.sock = socket.create_connection((broker.host, broker.port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_alive = True
        self.is_bare = is_bare
        self.open: set[int] = set()
        self.lines: list[tuple[int, str, str]] = []
        self.answered: dict[int, int] = {}  # frames that may be answers, by channel
        self.flows = 0  # how many were answered
        self._unread = b""
        if not is_bare:
            self._log_in()

    def _log_in(self) -> None:
        secret = f"\0{self.broker.user}\0{self.broker.password}"
        capabilities = {
            "publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True,
            "authentication_failure_close": True, "connection.blocked": True,
        }  # fmt: skip
        self.send(b"AMQP\x00\x00\x09\x01")
        self.wait_for("connection.start")
        self.say("connection.start-ok", {"capabilities": capabilities}, "PLAIN", secret, "en_US")
        self.wait_for("connection.tune")
        self.say("connection.tune-ok", 2047, 131072, 0)
        self.say("connection.open", "/", "", 0)
        self.wait_for("connection.open-ok")

    def say(self, name: str, *values: object, channel: int = 0) -> None:
        self.send(frame(1, channel, method_payload(name, *values)))

    def send(self, data: bytes) -> None:
        if not self.is_alive:
            return
        try:
            self.sock.sendall(data)
        except OSError:
            self._end("gone")

    def open_channel(self, number: int) -> None:
        self.say("channel.open", "", channel=number)
        self.wait_for("channel.open-ok")

    def wait_for(self, *names: str) -> str:
        """The next of these methods; all lines until then are forgotten."""
        deadline = time.monotonic() + LIMIT_S
        while self.is_alive and time.monotonic() < deadline:
            while self.lines:
                _, name, _ = self.lines.pop(0)
                if name in names:
                    return name
            self.read(deadline - time.monotonic())
        return self.lines[-1][1] if self.lines else "nothing"

    def flow(self, channel: int) -> None:
        """channel.flow, which must be answered unless the channel ends; other lines are kept."""
        before = self.flows
        self.say("channel.flow", 1, channel=channel)
        deadline = time.monotonic() + LIMIT_S
        while self.is_alive and channel in self.open and self.flows == before:
            if time.monotonic() > deadline:
                return
            self.read(deadline - time.monotonic())
        answers = [at for at, line in enumerate(self.lines) if line[1] == "channel.flow-ok"]
        if self.flows != before:
            del self.lines[answers[-1]]

    def read(self, limit_s: float) -> bool:
        """Take what comes within the time; whether anything did."""
        if not self.is_alive or not select.select([self.sock], [], [], max(0.0, limit_s))[0]:
            return False
        try:
            data = self.sock.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._end("gone")
            return True
        self._unread += data
        self._parse()
        return True

    def _parse(self) -> None:
        while self.is_alive and len(self._unread) >= 8:
            if self._unread.startswith(b"AMQP"):
                self._unread = self._unread[8:]
                self.lines.append((0, "header", "protocol header"))
                continue
            kind, channel, size = struct.unpack_from(">BHI", self._unread)
            if len(self._unread) < size + 8:
                return
            payload, self._unread = self._unread[7 : 7 + size], self._unread[size + 8 :]
            if kind != 8:
                self._take(kind, channel, payload)

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        name, line = frame_line(kind, payload)
        self.lines.append((channel, name, line))
        if name == "channel.flow-ok":
            self.flows += 1
        if name == "channel.open-ok":
            self.open.add(channel)
        elif name in ("channel.close", "channel.close-ok"):
            self.open.discard(channel)
            if name == "channel.close":
                self.say("channel.close-ok", channel=channel)
                self.answered[channel] = 1 << 30  # nothing else will be answered
        if name.endswith(("-ok", "-empty")):
            self.answered[channel] = self.answered.get(channel, 0) + 1
        if name == "connection.close":
            self.say("connection.close-ok")
            self._end("")
        elif name == "connection.close-ok":
            self._end("")

    def _end(self, line: str) -> None:
        if self.is_alive:
            self.is_alive = False
            self.open.clear()
            self.sock.close()
            if line:
                self.lines.append((0, line, line))

    def lose(self) -> None:
        self._end("")


class Runner:
    """Runs scripts one by one on a broker; connections that are still good are used again."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._spare: list[Talk] = []

    def close(self) -> None:
        for talk in self._spare:
            talk.lose()

    def _talk(self) -> Talk:
        talk = self._spare.pop() if self._spare else Talk(self.broker)
        talk.open_channel(1)
        talk.lines.clear()
        return talk

    def run(self, script: Script, guide: Transcript | None = None) -> Transcript:
        """What the broker says to each step, and at the end."""
        talks = [
            Talk(self.broker, is_bare=True) if script.is_bare and not at else self._talk()
            for at in range(script.connections)
        ]
        renames: dict[str, str] = {}
        found: Transcript = []
        for at, calls in enumerate(script.steps):
            asked = self._say(talks, calls)
            wanted = None if guide is None or at >= len(guide) else len(guide[at])
            if wanted == 0 and script.connections > 1:
                self._settle(talks, calls)
            self._listen(talks, asked, script.patience_s, wanted)
            if wanted is None and not script.is_bare:
                self._settle(talks, calls)
                self._listen(talks, {}, script.patience_s, wanted)
            found.append(_taken(talks, script, renames))
        self._finish(talks)
        found.append(_taken(talks, script, renames))
        made = [name for name, shown in renames.items() if shown.startswith("<gen")]
        self._clean(talks, [*script.names, *made])
        return found

    def _say(self, talks: list[Talk], calls: tuple[Call, ...]) -> dict[tuple[int, int], int]:
        """Send a step. How many answers are due, by connection and channel."""
        asked: dict[tuple[int, int], int] = {}
        for at, talk in enumerate(talks):
            talk.answered.clear()
            out = b""
            for one in calls:
                if one.connection != at:
                    continue
                if one.special == "lose":
                    talk.send(out)
                    talk.lose()
                elif one.special == "connect":
                    talk.lose()
                    talk = talks[at] = Talk(self.broker, is_bare=True)
                elif one.operation is not None:
                    done = "done" if self.broker.operate(*one.operation) else "refused"
                    talk.lines.append((0, "", f"{one.operation[0]} {done}"))
                elif one.special != "open" or one.channel not in talk.open:
                    out += one.build(one.channel)
                    if one.is_asking:
                        asked[at, one.channel] = asked.get((at, one.channel), 0) + 1
            if out:
                talk.send(out)
        return asked

    def _settle(self, talks: list[Talk], calls: tuple[Call, ...]) -> None:
        """Wait until the broker has handled what was sent, as far as a client can ask for it."""
        places = {(one.connection, one.channel) for one in calls}
        for at, channel in sorted(places):
            here = [one for one in calls if (one.connection, one.channel) == (at, channel)]
            talk = talks[at]
            if here[-1].special == "lose":
                time.sleep(0.05)  # no client sees when its loss was noticed
            elif here[-1].is_whole and channel in talk.open:
                talk.flow(channel)

    def _listen(
        self, talks: list[Talk], asked: dict[tuple[int, int], int], patience_s: float,
        wanted: int | None,
    ) -> None:  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if wanted is not None:
                if sum(len(talk.lines) for talk in talks) >= wanted:
                    return
                is_due = True
            else:
                is_due = any(
                    talks[at].is_alive and talks[at].answered.get(channel, 0) < count
                    for (at, channel), count in asked.items()
                )
            alive = [talk for talk in talks if talk.is_alive]
            if not alive:
                return
            limit_s = deadline - time.monotonic() if is_due else patience_s
            ready = select.select([talk.sock for talk in alive], [], [], max(0.0, limit_s))[0]
            if not ready and not is_due:
                return
            for talk in alive:
                if talk.sock in ready:
                    talk.read(0)

    def _finish(self, talks: list[Talk]) -> None:
        """Close the channels; what came before their close-ok is still seen."""
        for talk in talks:
            for number in sorted(talk.open):
                talk.say("channel.close", 200, "", 0, 0, channel=number)
            deadline = time.monotonic() + LIMIT_S
            while talk.is_alive and talk.open and time.monotonic() < deadline:
                talk.read(deadline - time.monotonic())
            talk.lines = [line for line in talk.lines if line[1] != "channel.close-ok"]

    def _clean(self, talks: list[Talk], names: Iterable[str]) -> None:
        """Everything the script may have made goes; connections that are good are kept."""
        names = list(names)
        for talk in talks:
            if talk.is_bare:
                talk.lose()
        alive = [talk for talk in talks if talk.is_alive]
        if not alive:
            alive = [self._spare.pop() if self._spare else Talk(self.broker)]
        for talk in alive if names else ():
            for name in names:
                for what in ("queue.delete", "exchange.delete"):
                    self._delete(talk, what, name)
            if JANITOR in talk.open:
                talk.say("channel.close", 200, "", 0, 0, channel=JANITOR)
                talk.wait_for("channel.close-ok")
            talk.lines.clear()
        self._spare += [talk for talk in alive if talk.is_alive]

    def _delete(self, talk: Talk, what: str, name: str) -> None:
        if JANITOR not in talk.open:
            talk.open_channel(JANITOR)
        more = (0, 0, 0) if what == "queue.delete" else (0, 0)
        talk.say(what, 0, name, *more, channel=JANITOR)
        talk.wait_for(f"{what}-ok", "channel.close")


def _taken(talks: list[Talk], script: Script, renames: dict[str, str]) -> list[str]:
    """The lines that came, as they are compared."""
    found: list[str] = []
    for at, talk in enumerate(talks):
        who = "" if at == 0 else "ABCDEFGH"[at]
        for channel, _, line in sorted(talk.lines, key=lambda one: one[0]):
            found.append(f"{who}{channel} {_plain(line, script, renames)}")
        talk.lines.clear()
    return found


def _plain(line: str, script: Script, renames: dict[str, str]) -> str:
    def renamed(match: re.Match[str]) -> str:
        kind = {"g": "gen", "c": "ctag", "r": "reply"}[match[0][4]]
        if match[0] not in renames:
            count = sum(name.startswith(f"<{kind}") for name in renames.values())
            renames[match[0]] = f"<{kind}{count + 1}>"
        return renames[match[0]]

    line = DETAIL.sub(r"\1 <detail>\2", line.replace(script.prefix, ""))
    return GENERATED.sub(renamed, line)
