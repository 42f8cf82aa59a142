"""A process that speaks a vhost's part of the link to the supervisor, and behaves as it is told.

How it behaves stands in the path that it is given for its directory:

    good            serves: answers pings, echoes operations, stops when told
    corrupt         cannot start, and says that another start would fail the same way
    dies            ends at each start
    waits           waits for more disk, and is ready after a SIGUSR1
    hangs           is ready, and answers nothing from then on
    pauses          is stopped by a signal after it has said that it has heard the news
    stubborn        does not stop when told

Run as `python fake_vhost.py <descriptor>`. Operations, whatever it is: `die` ends it; `crash` ends
it by a signal while its shared memory says that it handles an operation of a user (signal,
operation and user are arguments); `refused` answers what it is to refuse.
"""

import mmap
import os
import signal
import socket
import sys
import threading
import time

from penstock.broker.in_flight import SIZE, InFlight
from penstock.operation_json import dumps, read
from penstock.server import control
from penstock.server.control import ANSWER, CALL, NEWS, ControlError, Facts, LinkMessage, Pieces


class Fake:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.behaviour = "good"
        self.refused: object = None
        self.limits: object = None
        self.memory: object = None
        self.in_flight = InFlight(time.monotonic)

    def send(self, facts: Facts) -> None:
        self.write(control.news(facts))

    def write(self, packets: list[control.Packet]) -> None:
        for packet in packets:
            self.sock.sendmsg(packet)

    def answer(self, message: LinkMessage, result: object) -> None:
        self.write(control.packets(ANSWER, message.number, b"", (dumps(result),)))

    def run(self) -> int:
        pieces = Pieces()
        held: list[int] = []
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 17, 4)
            if not packet:
                return 0
            held += descriptors
            message = pieces.add(packet)
            if message is not None:
                status: int | None = None
                if message.kind == NEWS:
                    status = self.take(message.facts(), message.data, held)
                elif message.kind == CALL:
                    self.called(message)
                else:
                    self.answered(message)
                held = []
                if status is not None:
                    return status

    def answered(self, message: LinkMessage) -> None:
        raise AssertionError(message)

    def called(self, message: LinkMessage) -> None:
        op, _ = message.called()
        args = read(message.data)
        if op == "die":
            os._exit(3)
        elif op == "crash":
            self.in_flight.begin(args["user"], args["operation"])
            if args.get("is_shared"):
                self.in_flight.share(b"events")
            if args["stays"]:
                self.in_flight.blameless()
            os.kill(os.getpid(), args["signal"])
        elif op == "refused":
            self.answer(message, self.refused)
        elif op == "limits":
            self.answer(message, self.limits)
        elif op == "memory":
            self.answer(message, self.memory)
        elif op == "refuse":
            self.write(control.refusal(message.number, ControlError(404, "NOT_FOUND - no")))
        else:
            self.answer(message, [op, args, os.getpid()])

    def take(self, facts: Facts, data: bytes, descriptors: list[int]) -> int | None:
        do = facts["do"]
        if do == "start":
            self.behaviour = str(facts["path"])
            self.refused = facts["refused"]
            (shared,) = descriptors
            self.in_flight = InFlight(time.monotonic, mmap.mmap(shared, SIZE))
            os.close(shared)
            if self.behaviour == "corrupt":
                self.send({"do": "failed", "why": "a.wal: at byte 7: bad", "is_final": True})
            if self.behaviour in ("corrupt", "dies"):
                return 74
            if self.behaviour == "waits":
                signal.signal(signal.SIGUSR1, lambda *_: self.send({"do": "ready"}))
            else:
                self.send({"do": "ready"})
            if self.behaviour == "hangs":
                threading.Event().wait()
        elif do == "ping":
            counts = {
                "depth_bytes": 5,
                "connections": 6,
                "rss_bytes": 7,
                "counted_bytes": 8,
                "returned_bytes": 9,
                "clients_max": 2,
            }
            number = facts["n"]
            self.send({"do": "pong", "n": number, "blocked_reason": "disk", **counts})
            if self.behaviour == "pauses" and isinstance(number, int) and number < 0:
                os.kill(os.getpid(), signal.SIGSTOP)
        elif do == "connection":
            with socket.socket(fileno=descriptors[0]) as handed:
                who, opened = facts["identity_bytes"], facts["facts_bytes"]
                assert isinstance(who, int)
                assert isinstance(opened, int)
                handed.sendall(b"got " + data[who + opened :])
        elif do == "limits":
            self.limits = facts["users"]
            self.send({"do": "tracing", "is_on": True})  # something that is seen outside
        elif do == "memory":
            self.memory = facts["bytes"]
            self.send({"do": "memory_is", "bytes": facts["bytes"]})
        elif do == "stop" and self.behaviour != "stubborn":
            self.send({"do": "stopped"})
            return 0
        return None


if __name__ == "__main__":
    END = socket.socket(fileno=int(sys.argv[1]))
    END.setblocking(True)
    sys.exit(Fake(END).run())
