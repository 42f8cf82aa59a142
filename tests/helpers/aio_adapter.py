"""AioAdapter: a box of `penstock.aio`, used as a blocking one, so that one contract asks both.

A loop runs in a thread of its own. Each thread of a test has one task there, which does its calls
one after the other: so what belongs to a task, as a transaction does, belongs to that thread.
"""

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import aio
from penstock.aio.box import AsyncReader


class Tasks:
    """A loop in a thread, and a task in it for each thread that calls."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._local = threading.local()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, make: Callable[[], Any]) -> Any:
        """make() in the task of this thread, awaited if it is to be."""
        inbox = getattr(self._local, "inbox", None)
        if inbox is None:
            begin = asyncio.run_coroutine_threadsafe(self._begin(), self.loop)
            inbox = self._local.inbox = begin.result()
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.loop.call_soon_threadsafe(inbox.put_nowait, (make, done))
        return done.result()

    async def _begin(self) -> Any:
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._tasks.append(self.loop.create_task(self._serve(inbox)))
        return inbox

    async def _serve(self, inbox: Any) -> None:
        while True:
            make, done = await inbox.get()
            try:
                result = make()
                if inspect.isawaitable(result):
                    result = await result
                done.set_result(result)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                done.set_exception(error)
            del make, done

    def close(self) -> None:
        """End the tasks, the loop and the thread."""

        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.loop.shutdown_default_executor()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Adapter:
    """An object of the loop: attributes and calls go to the task of the caller's thread."""

    def __init__(self, tasks: Tasks, inner: Any) -> None:
        self.__dict__.update(tasks=tasks, inner=inner)

    def __getattr__(self, name: str) -> Any:
        value = self.tasks.call(lambda: getattr(self.inner, name))
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            return self.wrap(self.tasks.call(lambda: value(*map(unwrap, args), **options)))

        return call

    def wrap(self, value: Any) -> Any:
        """What is of the loop is wrapped too."""
        if isinstance(value, list):
            return [self.wrap(one) for one in value]
        if isinstance(value, aio.Job):
            return JobAdapter(self.tasks, value)
        if isinstance(value, aio.Queue):
            return QueueAdapter(self.tasks, value)
        if isinstance(value, (aio.Stream, AsyncReader)):
            return StreamAdapter(self.tasks, value)
        return value


def unwrap(value: Any) -> Any:
    """The other way round, for arguments."""
    if isinstance(value, list):
        return [unwrap(one) for one in value]
    return value.inner if isinstance(value, Adapter) else value


class JobAdapter(Adapter):
    def __enter__(self) -> "JobAdapter":
        self.tasks.call(self.inner.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self.tasks.call(lambda: self.inner.__aexit__(*error))


class IterableAdapter(Adapter):
    """What has a length and an async iterator."""

    def __len__(self) -> int:
        return int(self.tasks.call(lambda: len(self.inner)))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return self._drain(self.inner.__aiter__())

    def _drain(self, stream: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self.wrap(self.tasks.call(stream.__anext__))
                except StopAsyncIteration:
                    return
        finally:
            self.tasks.call(stream.aclose)


class QueueAdapter(IterableAdapter):
    def consume(self, timeout: float | None = None) -> Iterator[Any]:
        return self._drain(self.inner.consume(timeout))


class StreamAdapter(IterableAdapter):
    """A stream, or a reader of one."""

    def read(self, *args: Any, **options: Any) -> Iterator[Any]:
        return self._drain(self.tasks.call(lambda: self.inner.read(*args, **options)))


class AioAdapter(Adapter):
    """A box. Closing it ends the loop as well."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        tasks = Tasks()
        try:
            box = tasks.call(lambda: aio.open(path, **options))
        except BaseException:
            tasks.close()
            raise
        super().__init__(tasks, box)

    def __contains__(self, name: object) -> bool:
        return bool(self.tasks.call(lambda: name in self.inner))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tasks.call(lambda: list(self.inner)))

    @contextmanager
    def transaction(self, **options: Any) -> Iterator[None]:
        scope = self.inner.transaction(**options)
        self.tasks.call(scope.__aenter__)
        try:
            yield
        except BaseException as error:
            given = (type(error), error, error.__traceback__)
            self.tasks.call(lambda: scope.__aexit__(*given))
            raise
        self.tasks.call(lambda: scope.__aexit__(None, None, None))

    def __enter__(self) -> "AioAdapter":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def end(self) -> None:
        """Close it, and end the loop."""
        try:
            self.close()
        finally:
            self.tasks.close()
