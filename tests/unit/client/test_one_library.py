"""One library: what opens a directory and what opens a broker give objects of the same classes."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from tests.helpers.live_broker import LiveBroker

# What an asyncio class has under another name, because Python calls it otherwise.
RENAMED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}


@pytest.fixture(params=["directory", "broker"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "box")
    broker: LiveBroker = request.getfixturevalue("broker")
    return broker.url


def test_threads_get_the_same_classes_from_both(place: str) -> None:
    with penstock.open(place) as box:
        queue = box.queue("one-library")
        queue.put(b"x")
        with queue.get() as job:
            assert type(box) is penstock.Box
            assert type(queue) is penstock.Queue
            assert type(job) is penstock.Job
        queue.put(b"y")
        assert type(queue.peek()) is penstock.Message
        assert [type(message) for message in queue] == [penstock.Message]
        assert type(box.stream("one-library-stream")) is penstock.Stream


def test_tasks_get_the_same_classes_from_both(place: str) -> None:
    async def check() -> None:
        async with aio.open(place) as box:
            queue = await box.queue("one-library-aio")
            await queue.put(b"x")
            async with queue.get() as job:
                assert type(box) is aio.Box
                assert type(queue) is aio.Queue
                assert type(job) is aio.Job
            await queue.put(b"y")
            assert type(await queue.peek()) is penstock.Message
            assert [type(message) async for message in queue] == [penstock.Message]
            assert type(await box.stream("one-library-aio-stream")) is aio.Stream

    asyncio.run(check())


def public(cls: type) -> dict[str, Any]:
    """The members of a class and its bases that a user calls."""
    return {
        name: member
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_") or name in (*RENAMED, *RENAMED.values(), "__len__", "__bool__")
    }


@pytest.mark.parametrize("name", ["Box", "Queue", "Job", "Stream"])
def test_tasks_have_what_threads_have(name: str) -> None:
    threads, tasks = public(getattr(penstock, name)), public(getattr(aio, name))
    if name == "Box":  # the names of its queues, for both without await
        tasks["__aiter__"] = tasks.pop("__iter__")
    assert set(tasks) == {RENAMED.get(member, member) for member in threads}
    for member in set(threads) & set(tasks):
        if inspect.isfunction(threads[member]) and inspect.isfunction(tasks[member]):
            given = inspect.signature(threads[member]).parameters
            assert inspect.getdoc(tasks[member]), f"{name}.{member} has no docstring"
            assert list(given) == list(inspect.signature(tasks[member]).parameters), member
