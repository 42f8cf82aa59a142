"""Whose password is hashed next: counted in hashes and turns, with a clock that stands still."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from penstock.access.users import KnownUsers, hash_password, rabbitmq_hash
from penstock.clock import ManualClock
from penstock.server.authenticator import HASHERS, KEPT_MAX, Authenticator, Brake, network_of


class Later(Executor):
    """Does nothing until it is told to, one after the other."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future


class World:
    """Users whose passwords are their names. seen: whose password was hashed, in order."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.users = KnownUsers(rng=random.Random(1), log2_n=1)
        self.put("ann", "bob", "eve")
        self.executor = Later()
        self.authenticator = Authenticator(self.users, self.executor, self.clock)

    def put(self, *names: str, password: str = "") -> None:
        rows = [
            [name, hash_password((password or name).encode(), salt=b"s" * 16, log2_n=1), []]
            for name in names
        ]
        self.users.take({"users": rows, "vhosts": [], "permissions": [], "topics": []})

    def ask(self, name: str, password: str = "", host: str = "10.0.0.1") -> "asyncio.Task[bool]":
        asked = self.authenticator.is_right(name, (password or name).encode(), host)
        return asyncio.get_running_loop().create_task(asked)

    async def settle(self) -> None:
        """Everybody on the loop has had turns enough."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def hash_one(self) -> None:
        future, work = self.executor.waiting.pop(0)
        future.set_result(work())
        await self.settle()

    async def hash_all(self) -> int:
        """Until nothing more is to be hashed now; how many that were."""
        await self.settle()
        count = 0
        while self.executor.waiting:
            await self.hash_one()
            count += 1
        return count

    async def wrong(self, count: int, name: str = "eve", host: str = "10.0.0.1") -> None:
        """So many wrong passwords, however long that takes."""
        for n in range(count):
            task = self.ask(name, f"wrong {n}", host)
            while not await self.hash_all():
                self.clock.advance(0.05)
                self.authenticator.look()
            assert await task is False


def in_world(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def live() -> None:
        async with asyncio.timeout(240):
            await scenario(World())

    asyncio.run(live())


def test_two_hundred_right_ones_cost_one_hash() -> None:
    async def scenario(world: World) -> None:
        tasks = [world.ask("ann") for _ in range(200)]
        assert await world.hash_all() == 1
        assert all([await task for task in tasks])
        tasks = [world.ask("ann", host=f"10.0.1.{n}") for n in range(200)]
        assert await world.hash_all() == 0
        assert all([await task for task in tasks])

    in_world(scenario)


def test_when_a_thread_is_free_the_memory_is_asked_again() -> None:
    async def scenario(world: World) -> None:
        tasks = [world.ask("ann", host=f"10.0.1.{n}") for n in range(200)]
        assert await world.hash_all() == HASHERS
        assert all([await task for task in tasks])

    in_world(scenario)


def test_one_address_does_not_hold_up_another_nor_one_name_another() -> None:
    async def scenario(world: World) -> None:
        floods = [world.ask("eve", f"guess {n}") for n in range(500)]
        await world.settle()
        beside = world.ask("bob")  # the same address
        other = world.ask("ann", host="10.0.0.2")
        await world.settle()
        for _ in range(HASHERS + 3):  # those that had a thread, ann, one of eve's, bob
            await world.hash_one()
        assert (other.done(), beside.done()) == (True, True)
        assert (await other, await beside) == (True, True)
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        assert world.authenticator.waiting == 0

    in_world(scenario)


def test_who_guesses_has_to_wait_longer_and_longer() -> None:
    async def scenario(world: World) -> None:
        await world.wrong(3)
        began_s = world.clock.monotonic()
        waits = []
        for _ in range(8):
            await world.wrong(1)
            waits.append(world.clock.monotonic() - began_s)
            began_s = world.clock.monotonic()
        assert waits[0] == pytest.approx(0.25, abs=0.06)
        assert waits[1] == pytest.approx(0.5, abs=0.06)
        assert waits[-1] == pytest.approx(8.0, abs=0.06)
        world.clock.advance(3600.0)
        assert world.ask("eve", "forgotten")
        assert await world.hash_all() == 1

    in_world(scenario)


def test_many_names_from_one_address_are_braked_too() -> None:
    async def scenario(world: World) -> None:
        tasks = [world.ask(f"nobody {n}", "guess") for n in range(100)]
        assert 10 <= await world.hash_all() <= 10 + HASHERS
        other = world.ask("ann", host="10.0.0.2")
        assert await world.hash_all() == 1
        assert await other
        for task in tasks:
            task.cancel()

    in_world(scenario)


def test_nobody_locks_a_user_out_from_another_address() -> None:
    async def scenario(world: World) -> None:
        for n in range(40):
            await world.wrong(1, name="ann", host=f"10.1.{n}.1")
        right = world.ask("ann", host="10.0.0.9")
        assert await world.hash_all() == 1
        assert await right
        # Guesses of those that were wrong before wait for the name's brake as well.
        world.users.take({"users": [], "vhosts": [], "permissions": [], "topics": []})
        world.put("ann", password="new")
        world.ask("ann", "a guess", host="10.1.39.1")
        assert await world.hash_all() == 0
        right = world.ask("ann", "new", host="10.0.0.10")
        assert await world.hash_all() == 1
        assert await right

    in_world(scenario)


def test_a_remembered_password_needs_no_turn_where_somebody_guesses() -> None:
    async def scenario(world: World) -> None:
        right = world.ask("ann")
        await world.hash_all()
        assert await right
        await world.wrong(20, name="ann")
        hashes = world.authenticator.hashes
        assert await world.authenticator.is_right("ann", b"ann", "10.0.0.1")
        assert world.authenticator.hashes == hashes

    in_world(scenario)


def test_a_password_that_changes_meanwhile_is_looked_at_again() -> None:
    async def scenario(world: World) -> None:
        stale, fresh = world.ask("ann"), world.ask("ann", "new")
        await world.settle()
        world.put("ann", password="new")
        assert await world.hash_all() == 4
        assert (await stale, await fresh) == (False, True)

    in_world(scenario)


def test_those_who_have_to_wait_are_not_looked_at_for_each_that_comes() -> None:
    async def scenario(world: World) -> None:
        await world.wrong(20)
        authenticator, looked = world.authenticator, 0
        until_s = authenticator._until_s

        def counted(address: str, name: str, now_s: float) -> float:
            nonlocal looked
            looked += 1
            return until_s(address, name, now_s)

        authenticator._until_s = counted  # type: ignore[method-assign]
        tasks = [world.ask(f"name {n}") for n in range(1000)]
        await world.settle()
        assert authenticator.waiting == 1000
        assert looked < 5000  # each once, and all of them when a timer of before ends
        other = world.ask("ann", host="10.0.0.2")
        assert await world.hash_all() == 1
        assert await other
        for task in tasks:
            task.cancel()

    in_world(scenario)


def test_a_right_password_does_not_wait_behind_a_flood_of_its_own_address() -> None:
    """Of many names that do not exist: it is the next to be hashed, and they go on as before."""

    async def scenario(world: World) -> None:
        await world.wrong(20, name="nobody")
        floods = [world.ask(f"n{n}", "guess") for n in range(800)]
        await world.hash_all()
        before = world.authenticator.hashes
        ann = world.ask("ann")
        assert await world.hash_all() == 1
        assert await ann is True
        assert world.authenticator.hashes == before + 1
        assert world.authenticator.waiting == len([task for task in floods if not task.done()])

    in_world(scenario)


def test_a_wrong_first_try_is_answered_in_its_turn() -> None:
    """Nobody sees by it whether a user exists: both are answered after as many turns."""

    async def answered_after(name: str) -> int:
        turns = 0

        async def scenario(world: World) -> None:
            nonlocal turns
            await world.wrong(20, name="nobody")
            floods = [world.ask(f"n{n}", "guess") for n in range(30)]
            await world.hash_all()
            asked = world.ask(name, "wrong")
            await world.hash_all()
            while not asked.done():
                world.clock.advance(0.5)
                world.authenticator.look()
                await world.hash_all()
                turns += 1
            assert await asked is False
            assert all(task.done() for task in floods)
            assert world.authenticator.waiting == 0

        await scenario(World())
        return turns

    async def both() -> None:
        assert await answered_after("ann") == await answered_after("unknown") > 10

    asyncio.run(both())


def test_first_tries_are_no_way_to_guess_faster() -> None:
    """One for each name of an address, with a brake."""

    async def scenario(world: World) -> None:
        world.put(*(f"u{n}" for n in range(100)))
        await world.wrong(20, name="nobody")
        guesses = [world.ask("u0", f"guess {n}") for n in range(50)]
        assert await world.hash_all() <= 2  # the first try, and perhaps a turn
        more = [world.ask(f"u{n}", "guess") for n in range(1, 100)]
        hashes = await world.hash_all()
        assert hashes <= 12  # ten are free
        for _ in range(10):
            world.clock.advance(0.5)
            world.authenticator.look()
            assert await world.hash_all() <= 4  # a turn and a first try, every half second
        for task in guesses + more:
            task.cancel()

    in_world(scenario)


def test_who_leaves_is_not_waited_for() -> None:
    async def scenario(world: World) -> None:
        leaving = [world.ask(f"n{n}", host=f"10.0.1.{n}") for n in range(50)]
        await world.settle()
        for task in leaving:
            task.cancel()
        await world.settle()
        assert world.authenticator.waiting == 0
        again = world.ask("n0", host="10.0.1.0")
        assert await world.hash_all() == HASHERS + 1
        assert not await again

    in_world(scenario)


def test_what_is_known_of_addresses_is_bounded() -> None:
    brake = Brake(1, 1.0, 2.0)
    for n in range(KEPT_MAX + 100):
        brake.wrong(n, 0.0)
    assert brake.count(0, 0.0) == 0
    assert brake.count(KEPT_MAX + 99, 0.0) == 1
    assert brake.until_s(KEPT_MAX + 99, 0.0) == 1.0
    brake.right(KEPT_MAX + 99)
    assert brake.until_s(KEPT_MAX + 99, 0.0) == 0.0


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_what_counts_as_one_address(host: str, network: str) -> None:
    assert network_of(host) == network


class Renewed(KnownUsers):
    """Keeps the hashes that take the place of RabbitMQ's."""

    def renew(self, name: str, claim: str, hashed: str) -> bool:
        self.take({"users": [[name, hashed, []]], "vhosts": [], "permissions": [], "topics": []})
        return True


def test_a_hash_of_rabbitmq_is_replaced_by_a_thread() -> None:
    async def scenario(world: World) -> None:
        world.users = Renewed(rng=random.Random(1), log2_n=1)
        text = "rLu+VoGM+MmKOgDTjwYzajit2eKX+J50CQlNJWzsFV3x0Oke"
        hashed = rabbitmq_hash(text, "rabbit_password_hashing_sha256")
        world.users.take(
            {"users": [["bob", hashed, []]], "vhosts": [], "permissions": [], "topics": []}
        )
        world.authenticator = Authenticator(world.users, world.executor, world.clock)
        await world.wrong(1, "bob")
        assert world.users.claim("bob") == hashed
        task = world.ask("bob", "s3cret")
        assert await world.hash_all() == 2
        assert await task
        assert world.users.claim("bob").startswith("scrypt$")
        assert world.users.remembers("bob", b"s3cret")

    in_world(scenario)
