"""A process that speaks a vhost's part of the link to the supervisor, and behaves as it is told.

How it behaves stands in the path that it is given for its directory:

    good            serves: answers pings, echoes operations, stops when told
    corrupt         cannot start, and says that another start would fail the same way
    dies            ends at each start
    waits           waits for more disk, and is ready after a SIGUSR1
    hangs           is ready, and answers nothing from then on
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
from penstock.server.process_link import Facts, decode, encode


class Fake:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.behaviour = "good"
        self.refused: object = None
        self.in_flight = InFlight(time.monotonic)

    def send(self, facts: Facts) -> None:
        for packet in encode(facts, b""):
            self.sock.sendall(packet)

    def run(self) -> int:
        whole = b""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 17, 4)
            if not packet:
                return 0
            whole += packet[1:]
            if packet[0] == 0:
                facts, data = decode(whole)
                whole = b""
                status = self.take(facts, data, descriptors)
                if status is not None:
                    return status

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
            self.send({"do": "pong", "n": facts["n"], "blocked_reason": "disk", **counts})
        elif do == "connection":
            with socket.socket(fileno=descriptors[0]) as handed:
                handed.sendall(b"got " + data)
        elif do == "memory":
            self.send({"do": "memory_is", "bytes": facts["bytes"]})
        elif do == "call" and facts["op"] == "die":
            os._exit(3)
        elif do == "call" and facts["op"] == "crash":
            args = facts["args"]
            assert isinstance(args, dict)
            self.in_flight.begin(args["user"], args["operation"])
            if args.get("is_shared"):
                self.in_flight.share(b"events")
            if args["stays"]:
                self.in_flight.blameless()
            os.kill(os.getpid(), args["signal"])
        elif do == "call" and facts["op"] == "refused":
            self.send({"do": "result", "id": facts["n"], "result": self.refused})
        elif do == "call" and facts["op"] == "refuse":
            error = {"code": 404, "text": "NOT_FOUND - no"}
            self.send({"do": "result", "id": facts["n"], "error": error})
        elif do == "call":
            result = [facts["op"], facts["args"], os.getpid()]
            self.send({"do": "result", "id": facts["n"], "result": result})
        elif do == "stop" and self.behaviour != "stubborn":
            self.send({"do": "stopped"})
            return 0
        return None


if __name__ == "__main__":
    END = socket.socket(fileno=int(sys.argv[1]))
    END.setblocking(True)
    sys.exit(Fake(END).run())
