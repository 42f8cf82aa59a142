"""Threads for what is slow: syncs, the preparing of log files, reads ahead of a queue.

A sync takes milliseconds in which the loop could do other work, and Python lets go
of its lock during it, so a thread is all that is needed. One pool belongs to one
``OsFileSystem`` and its owner: ``submit``, ``completed`` and ``close`` are called by
one thread, so the counters need no lock; what crosses the threads goes through two
``SimpleQueue``s.

Operations begin in the order in which they came; with more than one worker they may
end in any. An operation's exception is its result: nothing is retried and nothing is
lost, and the owner gets one answer for each token.

Threads start with the first operations, one for each, up to the number allowed. They
are daemons, because an interpreter that ends without ``close`` must not hang on them;
a sync cut off so is a crash like any other.
"""

import queue
import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

Completions: TypeAlias = list[tuple[int, object]]  # (token, result or the exception raised)


class WorkerPool:
    """At most ``workers`` threads; 0 means that each operation runs in ``submit`` itself.

    ``wake`` is called after each completion, from the worker's thread.
    """

    def __init__(self, workers: int, wake: Callable[[], None]) -> None:
        if workers < 0:
            raise ValueError(f"workers must be 0 or more, not {workers}")
        self.workers = workers
        self._wake = wake
        self._next_token = 0
        self._outstanding = 0  # submitted and not yet handed out by completed()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], object]] | None]
        self._waiting = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

    def submit(self, op: Callable[[], object]) -> int:
        """Queue the operation; returns its token. RuntimeError after ``close``."""
        if self._closed:
            raise RuntimeError("the file system is closed")
        token = self._next_token
        self._next_token += 1
        if self.workers == 0:
            # Only an Exception is a result here: an interrupt belongs to the caller's thread.
            try:
                result: object = op()
            except Exception as error:
                result = error
            self._outstanding += 1
            self._finished.put((token, result))
            self._call_wake()
            return token
        self._waiting.put((token, op))
        self._outstanding += 1
        if len(self._threads) < self.workers:
            self._start()
        return token

    def _start(self) -> None:
        """One thread more. An interrupt may come at any step of it: what was submitted waits then
        for a thread that runs, or for the next one to be started."""
        name = f"penstock-disk-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def completed(self, wait: bool) -> Completions:
        """What has finished since the last call; with ``wait`` at least one, if any is to come."""
        results: Completions = []
        try:
            while self._outstanding:
                results.append(self._finished.get(block=wait and not results))
                self._outstanding -= 1
        except queue.Empty:
            pass
        return results

    def close(self) -> None:
        """Let all operations finish and end the threads; a second call does nothing."""
        self._closed = True
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        """One worker: operations until the None of close(), which each leaves for the next."""
        while (item := self._waiting.get()) is not None:
            token, op = item
            try:
                result: object = op()
            except BaseException as error:  # whatever it was, the owner waits for an answer
                result = error
            self._finished.put((token, result))
            del item, op, result  # a worker that waits keeps nothing of the last one alive
            self._call_wake()
        self._waiting.put(None)

    def _call_wake(self) -> None:
        try:
            self._wake()
        except Exception:
            # Shown as any thread's uncaught exception; but the worker lives, for operations
            # that wait for it would otherwise never be answered.
            error_type, error, trace = sys.exc_info()
            assert error_type is not None
            threading.excepthook(
                threading.ExceptHookArgs((error_type, error, trace, threading.current_thread()))
            )
