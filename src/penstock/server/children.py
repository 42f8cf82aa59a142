"""Children: how the processes below the supervisor are started and waited for.

On Linux a child is a copy, by `fork`, of the **template**: a process that has imported the modules
of a vhost and does nothing but make copies. What neither of two processes changes is in RAM once:
of 37 MB for modules a copy takes 1.2 of its own, and it serves 0.4 s earlier than a program that
imports them. The supervisor itself could not be copied: it has threads and a loop, and a copy has
only the thread that called `fork`, with the locks that the others held.

    supervisor -- fork, before its first thread --> template -- fork --> between -- fork --> child
        ^                                                          ends at once            |
        +------------ its parent from then on, as the child's nearest subreaper -----------+

So the supervisor waits for each child and may signal it, whatever becomes of the template. Where
there is no template (other systems, programs of tests, or once it has ended) the program is
executed, as `python -P -m MODULE DESCRIPTOR`. Both ways a child has no descriptors but the first
three and its end of the link, and its standard input is empty.

A packet to the template is JSON, {"module": str, "environment": {str: str}}, with the descriptor.
Its answer is two big-endian numbers of 4 bytes: the pid, and 0 or the errno of a failed `fork`.

Names of variables for glibc's allocator (`environment`) have an effect at the start of a program
only; a copy sets the same with `mallopt`. Those that the operator has set win.
"""

import asyncio
import ctypes
import errno
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from setproctitle import setproctitle

from penstock.server.heap import find_trim

# -P: modules in the current directory are not imported.
PYTHON: Final = (sys.executable, "-P", "-m")
IMPORTED: Final = "penstock.server.vhost_process"
ENTRY: Final = "run_process"  # of each module: takes the arguments, returns the exit status
LINK: Final = 3  # the descriptor of a copy's end of the link
ANSWER_S: Final = 5.0  # for a fork
PACKET_BYTES_MAX: Final = 64 << 10
PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
ANSWER: Final = struct.Struct(">ii")

# glibc's variables, and the parameter of mallopt with the same meaning (malloc.h).
MALLOPT: Final = {
    "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_ARENA_MAX": -8,
}  # fmt: skip


class Child:
    """A process that was started, on the running loop. wait: called in a thread; waits for its end
    and returns its exit status. `status`: that, negative for a signal; None while it runs."""

    def __init__(self, pid: int, wait: Callable[[], int]) -> None:
        self.pid: Final = pid
        self.status: int | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(
            target=self._wait_for, args=(wait,), name=f"penstock-wait-{pid}", daemon=True
        ).start()

    def _wait_for(self, wait: Callable[[], int]) -> None:
        status = wait()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end, status)

    def _end(self, status: int) -> None:
        self.status = status
        if not self._ended.done():
            self._ended.set_result(status)

    async def wait(self) -> int:
        """Return its exit status, once it has ended."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


# (program, descriptor, environment): start a program with a descriptor as its last argument.
StartChild = Callable[[Sequence[str], int, Mapping[str, str]], Child]


def executed(program: Sequence[str], descriptor: int, environment: Mapping[str, str]) -> Child:
    """Return a child that executes the program. environment: variables; those already set win.
    Raises OSError."""
    started = subprocess.Popen(  # noqa: S603 - one of our own modules
        [*program, str(descriptor)], pass_fds=[descriptor], stdin=subprocess.DEVNULL,
        env={**environment, **os.environ},
    )  # fmt: skip
    return Child(started.pid, started.wait)


class Template:
    """The supervisor's side of the template. sock: its end of their link."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self._sock = sock
        self.pid: Final = pid
        self._has_ended = False

    @classmethod
    def begun(cls) -> "Template | None":
        """Return a template that was started, None where there is none. Called before this process
        has a loop, threads, or files that children must not have."""
        if sys.platform != "linux" or threading.active_count() > 1:
            return None
        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            return None
        importlib.import_module(IMPORTED)
        gc.collect()
        gc.freeze()  # the collector writes to no object of now, in any of the processes
        trim = find_trim()
        if trim is not None:
            trim()  # 2 MiB that only the imports needed
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _make_copies(theirs)
        theirs.close()
        ours.settimeout(ANSWER_S)
        return cls(ours, pid)

    def start(
        self, program: Sequence[str], descriptor: int, environment: Mapping[str, str]
    ) -> Child:
        """Return a child that runs the program, a copy of the template if it can be. As StartChild.
        Raises OSError; TimeoutError if the template does not answer: it may have made a copy, and
        two processes must not have one link, so nothing is executed in its place."""
        if self._has_ended or tuple(program[:-1]) != PYTHON:
            return executed(program, descriptor, environment)
        request = json.dumps({"module": program[-1], "environment": dict(environment)}).encode()
        try:
            socket.send_fds(self._sock, [request], [descriptor])
            answer = self._sock.recv(ANSWER.size)
        except TimeoutError:
            self._end()
            raise
        except OSError:
            answer = b""
        if len(answer) < ANSWER.size:
            self._end()
            return executed(program, descriptor, environment)
        pid, failure = ANSWER.unpack(answer)
        if failure:
            raise OSError(failure, os.strerror(failure))
        return Child(pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _end(self) -> None:
        """Use it no more."""
        self._has_ended = True
        self._sock.close()
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _use_allocator(environment: Mapping[str, str]) -> None:
    """Do in this process what glibc's variables would have done at its start; nothing where the C
    library has no `mallopt` (musl), which would not have known the variables either."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, value in environment.items():
        if mallopt is not None and name in MALLOPT and name not in os.environ:
            mallopt(MALLOPT[name], int(value))


def _make_copies(sock: socket.socket) -> NoReturn:
    """The template: make copies of this process until the supervisor has gone."""
    if not sys.flags.safe_path:
        del sys.path[0]  # of the program, or the current directory: as with -P
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    setproctitle("penstock template")
    try:
        while True:
            request, descriptors, _, _ = socket.recv_fds(sock, PACKET_BYTES_MAX, 1)
            if not request:
                break
            try:
                answer = ANSWER.pack(_copied(request, descriptors[0]), 0)
            except OSError as error:
                answer = ANSWER.pack(0, error.errno or errno.EAGAIN)
            os.close(descriptors[0])
            sock.send(answer)
    except OSError:
        pass
    finally:
        os._exit(0)


def _copied(request: bytes, descriptor: int) -> int:
    """Return the pid of a new copy of this process, whose parent the supervisor is. Raises
    OSError."""
    reading, writing = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            try:
                pid = os.fork()
                if pid == 0:
                    _run(request, descriptor)
                os.write(writing, ANSWER.pack(pid, 0))
            except OSError as error:
                os.write(writing, ANSWER.pack(0, error.errno or errno.EAGAIN))
            finally:
                os._exit(0)
        os.waitpid(between, 0)
        pid, failure = ANSWER.unpack(os.read(reading, ANSWER.size))
    finally:
        os.close(reading)
        os.close(writing)
    if failure:
        raise OSError(failure, os.strerror(failure))
    return int(pid)


def _run(request: bytes, descriptor: int) -> NoReturn:
    """The copy: run the program, and end as the interpreter does, without what is above."""
    status = 1
    try:
        asked = json.loads(request)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, LINK)
        os.closerange(LINK + 1, os.sysconf("SC_OPEN_MAX"))
        _use_allocator(asked["environment"])
        status = getattr(importlib.import_module(asked["module"]), ENTRY)([str(LINK)])
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        # What threads of executors still have to do is done, as at the end of every program; there
        # is no public name for that, multiprocessing's children call the same.
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
