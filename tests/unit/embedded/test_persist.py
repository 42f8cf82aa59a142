"""persist: the items of an iterable by way of the disk, across crashes, ends and errors."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.embedded import persist as persist_module
from penstock.errors import LockedError, NotAStoreError, OptionError
from tests.contracts.box import LONG_S, until


def numbers(n: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + n)]


def offset_of(directory: Path) -> int:
    """Where the consumer goes on."""
    with penstock.open_stream(directory) as s:
        return s.reader("consumer").offset


# ---- for threads ---------------------------------------------------------------------------------


def test_items_come_in_order_and_the_loop_ends(tmp_path: Path) -> None:
    assert list(penstock.persist(numbers(500), tmp_path / "d")) == numbers(500)
    assert list(penstock.persist([], tmp_path / "d")) == []
    assert list(penstock.persist(numbers(3), tmp_path / "d")) == numbers(3)


@pytest.mark.parametrize("force_every", [1, 7, "5ms"])
def test_what_was_not_asked_past_comes_again_and_then_the_new(
    tmp_path: Path, force_every: Any
) -> None:
    items = penstock.persist(numbers(10), tmp_path / "d", force_every=force_every)
    assert [next(items) for _ in range(4)] == numbers(4)
    until(lambda: not items._producer._thread.is_alive())  # type: ignore[union-attr]
    items.close()
    assert offset_of(tmp_path / "d") == 3
    for item in penstock.persist(numbers(5, 10), tmp_path / "d"):
        if item == b"5":
            break
    rest = list(penstock.persist([], tmp_path / "d"))
    assert rest == [b"5", *numbers(len(rest) - 1, 6)]
    assert len(rest) >= 5


def test_a_producer_does_not_wait_for_the_consumer(tmp_path: Path) -> None:
    taken = []

    def source() -> Iterator[bytes]:
        for item in numbers(300):
            taken.append(item)
            yield item

    with penstock.persist(source(), tmp_path / "d") as items:
        assert next(items) == b"0"
        until(lambda: len(taken) == 300)
        assert list(items) == numbers(299, 1)


def test_an_item_is_on_disk_before_the_next_is_asked_for(tmp_path: Path) -> None:
    seen: list[int] = []

    def source() -> Iterator[bytes]:
        for item in numbers(20):
            yield item
            seen.append(items._stream.next)

    items = penstock.persist(source(), tmp_path / "d")
    assert list(items) == numbers(20)
    assert seen == list(range(1, 21))


def test_an_error_of_the_iterable_comes_after_what_it_gave(tmp_path: Path) -> None:
    def source() -> Iterator[bytes]:
        yield from numbers(20)
        raise ZeroDivisionError("the source is gone")

    got = []
    with pytest.raises(ZeroDivisionError, match="the source is gone"):
        take_into(got, penstock.persist(source(), tmp_path / "d"))
    assert got == numbers(20)
    assert list(penstock.persist(numbers(1), tmp_path / "d")) == [b"0"]


def take_into(got: list[Any], items: Iterator[Any]) -> None:
    got += items


def test_what_is_no_bytes_is_an_error_in_the_loop(tmp_path: Path) -> None:
    got: list[Any] = []
    with pytest.raises(TypeError, match="bytes, not str: encode it first"):
        take_into(got, penstock.persist([b"a", "b", b"c"], tmp_path / "d"))  # type: ignore[list-item]
    assert got == [b"a"]


def test_items_are_encoded_and_decoded(tmp_path: Path) -> None:
    items = penstock.persist(
        ["a", "ü"], tmp_path / "d", encode=str.encode, decode=lambda body: body.decode()
    )
    assert list(items) == ["a", "ü"]
    items = penstock.persist(
        ["1", "x", "2"], tmp_path / "d", encode=str.encode, decode=lambda body: str(int(body))
    )
    assert next(items) == "1"
    with pytest.raises(ValueError, match="invalid literal"):
        next(items)
    assert list(items) == []
    rest = list(penstock.persist([], tmp_path / "d"))
    assert rest[0] == b"x", "it was not acknowledged"


def test_closing_stops_the_producer(tmp_path: Path) -> None:
    taken = []

    def source() -> Iterator[bytes]:
        n = 0
        while True:
            taken.append(n)
            yield b"%d" % n
            n += 1

    items = penstock.persist(source(), tmp_path / "d")
    assert next(items) == b"0"
    items.close()
    items.close()
    assert list(items) == []
    count = len(taken)
    for item in penstock.persist([], tmp_path / "d"):
        assert int(item) < count
    assert len(taken) == count
    assert int(item) == count - 1, "all that was taken is on disk"


def test_a_loop_that_is_left_gives_the_directory_back(tmp_path: Path) -> None:
    for _ in range(3):
        for item in penstock.persist(numbers(50), tmp_path / "d"):
            assert item == b"0"
            break


def test_a_producer_that_waits_puts_its_item_on_disk_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist_module, "CLOSE_S", 0.01)
    is_waiting, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        yield b"0"
        is_waiting.set()
        go_on.wait(LONG_S)
        yield b"1"
        yield b"2"

    items = penstock.persist(source(), tmp_path / "d")
    assert next(items) == b"0"
    assert is_waiting.wait(LONG_S)
    items.close()
    with pytest.raises(LockedError):
        penstock.persist([], tmp_path / "d")
    go_on.set()
    until(lambda: not items._producer._thread.is_alive())  # type: ignore[union-attr]
    assert list(penstock.persist([], tmp_path / "d")) == [b"0", b"1"]


def test_what_was_acknowledged_is_taken_away(tmp_path: Path) -> None:
    body = bytes(1000)
    with penstock.persist([body] * 40, tmp_path / "d", page_bytes=4096) as items:
        assert len(list(zip(range(40), items, strict=False))) == 40
        items._stream.reader("consumer").commit(wait=True)
        items._stream.retain()
        assert items._stream.first > 30
    assert len(list(penstock.persist([], tmp_path / "d"))) <= 1


def test_it_begins_with_the_first_item_that_is_asked_for(tmp_path: Path) -> None:
    def source() -> Iterator[bytes]:
        raise AssertionError("nobody asked")
        yield b""

    penstock.persist(source(), tmp_path / "d").close()
    items = penstock.persist(source(), tmp_path / "d")
    assert "Persisted" in repr(items)
    assert items.path == str(tmp_path / "d")
    with pytest.raises(LockedError):
        penstock.persist([], tmp_path / "d")
    del items
    assert list(penstock.persist([], tmp_path / "d")) == []


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="encode: given 5, expected a callable"):
        penstock.persist([], tmp_path / "d", encode=5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="decode: given 'x'"):
        penstock.persist([], tmp_path / "d", decode="x")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="force_every: given 0"):
        penstock.persist([], tmp_path / "d", force_every=0)
    with penstock.open(tmp_path / "box"):
        pass
    with pytest.raises(NotAStoreError):
        penstock.persist([], tmp_path / "box")


# ---- for asyncio ---------------------------------------------------------------------------------


async def counting(n: int, first: int = 0) -> AsyncIterator[bytes]:
    for item in numbers(n, first):
        await asyncio.sleep(0)
        yield item


def test_async_items_come_in_order_and_come_again(tmp_path: Path) -> None:
    async def main() -> None:
        got = [item async for item in aio.persist(counting(200), tmp_path / "d")]
        assert got == numbers(200)
        async with contextlib.aclosing(aio.persist(counting(9), tmp_path / "d")) as items:
            async for item in items:
                if item == b"3":
                    break
        got = [item async for item in aio.persist(counting(1, 100), tmp_path / "d")]
        assert got[0] == b"3"
        assert got[-1] == b"100"
        assert got[:-1] == numbers(len(got) - 1, 3)

    asyncio.run(main())


def test_async_errors_come_after_what_was_given(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[str]:
        yield "a"
        yield "b"
        raise ZeroDivisionError

    async def main() -> None:
        got = []
        items = aio.persist(
            source(), tmp_path / "d", encode=str.encode, decode=lambda body: body.decode()
        )
        got += [await anext(items), await anext(items)]
        with pytest.raises(ZeroDivisionError):
            await anext(items)
        assert got == ["a", "b"]
        wrong = aio.persist(source(), tmp_path / "d", encode=5)  # type: ignore[arg-type]
        with pytest.raises(OptionError):
            await anext(wrong)

    asyncio.run(main())


def test_an_async_producer_is_cancelled_where_it_waits(tmp_path: Path) -> None:
    ended = []
    is_waiting = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        try:
            is_waiting.set()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main() -> None:
        async with contextlib.aclosing(aio.persist(source(), tmp_path / "d")) as items:
            async for item in items:
                assert item == b"a"
                await is_waiting.wait()
                break
        assert [item async for item in aio.persist(counting(0), tmp_path / "d")] == [b"a"]

    asyncio.run(main())
    assert ended == [True]
