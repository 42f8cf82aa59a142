"""Authenticator: checks passwords for a loop with many clients, some of them hostile.

A hash takes 25 to 50 ms of a core on purpose, so hashes are scarce. The order in which they are
done:

    remembered   a password that was right before, for a hash that is still the same, needs none
    in flight    equal logins wait for one hash; before it starts the memory is asked again
    queue        one address after the other, and of an address one user name after the other, so
                 neither a thousand connections nor a thousand names of one address delay others;
                 addresses without a recent wrong password come first
    brake        after a wrong password the next hash has to wait:

        of an address for a user name   0 after the first 3, then 0.25 s, doubled up to 8 s
        of an address                   0 after the first 10, then 0.05 s, doubled up to 0.5 s
        of a user name                  0 after the first 20, then 0.25 s, doubled up to 4 s, and
                                        only for addresses that gave a wrong password for that name

**First tries.** Where somebody guesses, the turn of a name may be minutes away, behind hundreds of
other names of its address, and its client has ten seconds. So a password for a user that exists,
from an address that has not given a wrong one for this user, is also tried out of turn, with a
brake of its own for each address, like the second below. If it is right it is accepted; if it is
wrong, nothing is answered and it keeps its place: its turn hashes it again. So a refusal comes when
it would have come, and does not show whether there is such a user.

One wrong password is forgotten every FORGET_S. The brake delays and never refuses; a login that
waits too long ends by its own time limit. So nobody can lock a user out. The right password from an
address without wrong ones is checked at once, however often others guessed; from an address where
somebody guesses it is checked when the address's turn has come, or at once if it was right before.
The cost is that a guesser with many addresses has 3 free guesses from each.

An address is an IPv4 address, or the /64 network of an IPv6 one, because its owner has all of that.
At most KEPT_MAX addresses and names are kept; the longest unused is forgotten first.

access.users does the hashing and remembers right passwords. login and http.requests set the
time limit and answer the client.
"""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.access.permissions import (
    ADDRESSES_MAX,
    GUEST_LOOPBACK,
    LOOPBACK_USERS,
    why_not_from,
)
from penstock.access.users import KnownUsers, is_of_rabbitmq, verify
from penstock.clock import Clock

HASHERS: Final = 2  # at a time; each keeps the 16 MiB that a password takes
KEPT_MAX: Final = 4096
FORGET_S: Final = 10.0


class Brake:
    """Counts wrong passwords by some key, and says how long the key's next hash has to wait. free:
    how many of them cost nothing. first_s: the wait after one more, doubled with each up to
    most_s."""

    def __init__(self, free: int, first_s: float, most_s: float) -> None:
        self._free = free
        self._first_s = first_s
        self._most_s = most_s
        # key -> (how many, when the last was)
        self._wrong: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def count(self, key: object, now_s: float) -> float:
        """Return how many wrong passwords are not forgotten yet."""
        count, at_s = self._wrong.get(key, (0.0, 0.0))
        return max(0.0, count - (now_s - at_s) / FORGET_S)

    def wrong(self, key: object, now_s: float) -> None:
        """Count a wrong password."""
        most = self._free + 10  # more than this would only be remembered for longer
        self._wrong[key] = (min(self.count(key, now_s) + 1, most), now_s)
        self._wrong.move_to_end(key)
        if len(self._wrong) > KEPT_MAX:
            self._wrong.popitem(last=False)

    def right(self, key: object) -> None:
        """Forget the wrong passwords of the key."""
        self._wrong.pop(key, None)

    def until_s(self, key: object, now_s: float) -> float:
        """Return the time from which the key may have a hash; in the past if it need not wait."""
        over = round(self.count(key, now_s)) - self._free
        if over < 0:
            return 0.0
        return self._wrong[key][1] + min(self._first_s * (1 << over), self._most_s)


@dataclass(slots=True, eq=False)
class _Question:
    """A password that waits for its hash, for all logins with the same one."""

    key: bytes
    address: str
    name: str
    password: bytes
    answer: "asyncio.Future[bool]"
    askers: int = 0


class _Lines:
    """Questions that wait: address -> name -> questions, the first to be served first at each
    level."""

    def __init__(self) -> None:
        self.by_address: OrderedDict[str, OrderedDict[str, list[_Question]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(some) for names in self.by_address.values() for some in names.values())

    def add(self, question: _Question) -> None:
        """Add a question at the end."""
        names = self.by_address.setdefault(question.address, OrderedDict())
        names.setdefault(question.name, []).append(question)

    def take(self, address: str, name: str) -> _Question:
        """Take the first question of an address and name. Both go to the end of their lines."""
        question = self.by_address[address][name][0]
        self.drop(question)
        names = self.by_address.get(address)
        if names is not None:
            if name in names:
                names.move_to_end(name)
            self.by_address.move_to_end(address)
        return question

    def drop(self, question: _Question) -> None:
        """Remove a question, if it is there."""
        names = self.by_address.get(question.address)
        questions = names.get(question.name) if names is not None else None
        if names is None or questions is None or question not in questions:
            return
        questions.remove(question)
        if not questions:
            del names[question.name]
        if not names:
            del self.by_address[question.address]


class Authenticator:
    """Checks passwords, on the running loop. executor: where passwords are hashed, HASHERS at a
    time. guest, loopback_users: where users may come from. hashes: how many were done."""

    def __init__(
        self, users: KnownUsers, executor: Executor, clock: Clock, guest: str = GUEST_LOOPBACK,
        loopback_users: Collection[str] = LOOPBACK_USERS,
    ) -> None:  # fmt: skip
        self.hashes = 0
        self._guest = guest
        self._loopback_users = loopback_users
        self._users = users
        self._executor = executor
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._by_key: dict[bytes, _Question] = {}
        self._queue = _Lines()
        self._first = _Lines()  # those of them that are tried out of turn
        self._hashing = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wake_s = float("inf")  # when it is due
        self._of_pair = Brake(3, 0.25, 8.0)
        self._of_address = Brake(10, 0.05, 0.5)
        self._of_name = Brake(20, 0.25, 4.0)
        self._of_first = Brake(10, 0.05, 0.5)  # of an address, for first tries
        self._first_tries = Brake(1, FORGET_S, FORGET_S)  # of an address for a user name

    @property
    def waiting(self) -> int:
        """Passwords that wait for a thread."""
        return len(self._queue)

    async def refusal(self, name: str, password: bytes, host: str) -> str:
        """Return why the user may not log in from this address with this password, for the log; ""
        if it may. Waits as long as it takes."""
        why = why_not_from(name, host, self._guest, self._loopback_users)
        if why or await self.is_right(name, password, host):
            return why
        return "invalid credentials"

    def remembers(self, name: str, password: bytes, host: str) -> bool:
        """Return whether `refusal` is "" without any waiting."""
        why = why_not_from(name, host, self._guest, self._loopback_users)
        return not why and self._users.remembers(name, password)

    def refusal_of_certificate(self, name: str, host: str) -> str:
        """Return why a client with a verified certificate may not log in as this user, for the log;
        "" if it may."""
        if not self._users.knows(name):
            return "there is no such user"
        return why_not_from(name, host, self._guest, self._loopback_users)

    async def is_right(self, name: str, password: bytes, host: str) -> bool:
        """Return whether it is the user's password. Waits as long as it takes. host: the client's
        address."""
        users = self._users
        if users.remembers(name, password):
            return True
        address = network_of(host)
        # Equal logins of two addresses have a hash each: one must not wait for the other's brake.
        key = users.key(name, password) + address.encode()
        question = self._by_key.get(key)
        if question is None:
            question = _Question(key, address, name, password, self._loop.create_future())
            self._by_key[key] = question
            self._queue.add(question)
            if users.knows(name):
                self._first.add(question)
            self._arrived(question)
        question.askers += 1
        try:
            return await asyncio.shield(question.answer)
        finally:
            question.askers -= 1
            if not question.askers and not question.answer.done():
                self._forget(question)

    def _arrived(self, question: _Question) -> None:
        """Look for a free thread, unless the question has to wait: then the others do not
        matter."""
        if self._hashing >= HASHERS:
            return
        now_s = self._clock.monotonic()
        until_s = self._until_s(question.address, question.name, now_s)
        if self._users.knows(question.name):
            first_s = self._first_until_s(question.address, question.name, now_s)
            until_s = min(until_s, first_s)
        if until_s <= now_s:
            self.look()
        elif until_s < self._wake_s:
            self._wake_at(until_s, now_s)

    # ---- whose turn it is ----------------------------------------------------------------------

    def look(self) -> None:
        """Start hashes on free threads, in turn. Called when a thread is free or a brake ends."""
        while self._hashing < HASHERS:
            found = self._next()
            if found is None:
                return
            question, is_first_try = found
            if self._users.remembers(question.name, question.password):
                self._queue.drop(question)
                self._answer(question, is_right=True)
                continue
            self._hashing += 1
            self._loop.create_task(self._hash(question, is_first_try=is_first_try))

    def _next(self) -> tuple[_Question, bool] | None:
        """Take the next question, and return it with whether it is tried out of turn: then it
        keeps its place. Returns None if all have to wait."""
        now_s = self._clock.monotonic()
        chosen: tuple[str, str] | None = None
        soonest_s = float("inf")
        for address, names in self._queue.by_address.items():
            is_clean = not self._of_address.count(address, now_s)
            if chosen is not None and not is_clean:
                continue
            for name in names:
                until_s = self._until_s(address, name, now_s)
                if until_s <= now_s:
                    chosen = (address, name)
                    break
                soonest_s = min(soonest_s, until_s)
            if chosen is not None and is_clean:
                question = self._queue.take(*chosen)
                self._first.drop(question)
                return question, False
        for address, names in self._first.by_address.items():
            for name in names:
                until_s = self._first_until_s(address, name, now_s)
                if until_s <= now_s:
                    return self._first.take(address, name), True
                soonest_s = min(soonest_s, until_s)
        if chosen is not None:
            question = self._queue.take(*chosen)
            self._first.drop(question)
            return question, False
        if soonest_s < float("inf"):
            self._wake_at(soonest_s, now_s)
        return None

    def _first_until_s(self, address: str, name: str, now_s: float) -> float:
        """Return when a first try may be made; not while a wrong password of this address for this
        name, or a wrong first try, is not forgotten."""
        pair = (address, name)
        if self._of_pair.count(pair, now_s) or self._first_tries.count(pair, now_s):
            return float("inf")
        return self._of_first.until_s(address, now_s)

    def _until_s(self, address: str, name: str, now_s: float) -> float:
        pair = (address, name)
        until_s = max(self._of_pair.until_s(pair, now_s), self._of_address.until_s(address, now_s))
        if self._of_pair.count(pair, now_s):
            until_s = max(until_s, self._of_name.until_s(name, now_s))
        return until_s

    def _wake_at(self, at_s: float, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_s = at_s
        self._timer = self._loop.call_later(max(at_s - now_s, 0.001), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._wake_s = float("inf")
        self.look()

    def _forget(self, question: _Question) -> None:
        """Drop a question that nobody waits for. If a thread has it, its answer is ignored."""
        self._drop_key(question)
        self._queue.drop(question)
        self._first.drop(question)

    # ---- the hash ------------------------------------------------------------------------------

    async def _hash(self, question: _Question, *, is_first_try: bool) -> None:
        users, name, password = self._users, question.name, question.password
        is_right = False
        try:
            while True:
                claim = users.claim(name)
                self.hashes += 1
                is_right = await self._loop.run_in_executor(self._executor, verify, password, claim)
                if users.claim(name) == claim:  # else the password was changed meanwhile
                    break
            if is_right and is_of_rabbitmq(claim):
                hashed = await self._loop.run_in_executor(self._executor, users.new_hash, password)
                claim = hashed if users.renew(name, claim, hashed) else claim
            self._learn(question, claim, is_right=is_right, is_first_try=is_first_try)
        finally:
            self._hashing -= 1
            if is_right or not is_first_try:
                self._queue.drop(question)
                self._first.drop(question)
                self._answer(question, is_right=is_right)
            self.look()

    def _learn(
        self, question: _Question, claim: str, *, is_right: bool, is_first_try: bool
    ) -> None:
        pair = (question.address, question.name)
        if is_right:
            self._users.remember(question.name, question.password, claim)
            self._of_pair.right(pair)
            self._first_tries.right(pair)
            return
        now_s = self._clock.monotonic()
        if is_first_try:
            self._of_first.wrong(question.address, now_s)
            self._first_tries.wrong(pair, now_s)
            return
        self._of_pair.wrong(pair, now_s)
        self._of_address.wrong(question.address, now_s)
        self._of_name.wrong(question.name, now_s)

    def _answer(self, question: _Question, *, is_right: bool) -> None:
        self._drop_key(question)
        if not question.answer.done():
            question.answer.set_result(is_right)

    def _drop_key(self, question: _Question) -> None:
        if self._by_key.get(question.key) is question:
            del self._by_key[question.key]


@lru_cache(ADDRESSES_MAX)
def network_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 one. Any
    other text is returned unchanged."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64)))
