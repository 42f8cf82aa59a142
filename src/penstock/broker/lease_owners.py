"""Lease owners: which running program uses a reader, so that a second one is refused at its start.

A reader's lease has a name, and two programs that use one name would both read what is leased to
it. So a program owns the reader while it runs. It draws a token, asks to own the reader, and says
the token with every call; that, or asking again, keeps the reader its own for some seconds more.

    no owner, or one that was not heard of in time    whoever asks owns the reader
    an owner that is heard of                         others are told so, and refused
    an owner that lost the reader to another          is refused from then on (fenced): it slept, or
                                                      was cut off, for longer than its seconds

Calls without a token are refused only while there is an owner, so a program that owns nothing works
as long as it is alone. Operators release without a token.

Owners are in RAM. After a start of the vhost nobody is known, so a reader that has something leased
is first given to whoever has held it before (`is_held`), or says its token; to a new one only when
the seconds that it asks for have passed since the start.

Not here: leases (lease_calls.py), who may read the queue (operations_leases.py).
"""

from typing import TYPE_CHECKING, Final

from penstock.errors import RESOURCE_ERROR, RESOURCE_LOCKED, ChannelError

if TYPE_CHECKING:
    from penstock.broker.vhost import VHost

OWNERS_MAX: Final = 10_000

Key = tuple[str, str]  # queue, reader


class Owner:
    """Who owns a reader. until_s: of the vhost's clock. renewals: how often it was heard of."""

    __slots__ = ("renewals", "seconds", "token", "until_s")

    def __init__(self, token: str, seconds: float, until_s: float) -> None:
        self.token: str = token
        self.seconds: float = seconds
        self.until_s: float = until_s
        self.renewals: int = 0


class LeaseOwners:
    """Of one vhost."""

    def __init__(self, vhost: "VHost") -> None:
        self._vhost: VHost = vhost
        self._born_s: float = vhost.clock.monotonic()
        self._owners: dict[Key, Owner] = {}
        table = vhost.table
        self._leased_before: set[Key] = {
            (name, reader) for name in table.leased_names() for reader in table.leases(name)
        }

    def own(self, key: Key, token: str, seconds: float, *, is_held: bool) -> dict[str, object]:
        """{is_owner, renewals, expires_s}: whether this token owns the reader now; else how often
        its owner was heard of, and for how long nobody else may have it. is_held: the caller owned
        it before the vhost started. ChannelError 506: there are too many owners."""
        now_s = self._vhost.clock.monotonic()
        owner = self._owners.get(key)
        if owner is not None and owner.token != token and now_s < owner.until_s:
            return _told(owner, now_s, is_owner=False)
        if owner is None and not is_held and key in self._leased_before:
            left_s = self._born_s + seconds - now_s
            if left_s > 0:
                return {"is_owner": False, "renewals": 0, "expires_s": left_s}
        if owner is not None and owner.token != token and is_held:
            return _told(owner, now_s, is_owner=False)  # it was lost to another, which has gone
        return _told(self._heard(key, token, seconds), now_s, is_owner=True)

    def disown(self, key: Key, token: str) -> bool:
        """Whether this token owned the reader, which nobody owns now."""
        owner = self._owners.get(key)
        if owner is None or owner.token != token:
            return False
        del self._owners[key]
        return True

    def check(self, key: Key, token: str) -> None:
        """Somebody with this token, "" for none, asks for something. ChannelError 405: another one
        owns the reader."""
        owner = self._owners.get(key)
        if owner is None or owner.token == token:
            if owner is not None:
                self._heard(key, token, owner.seconds)
            return
        now_s = self._vhost.clock.monotonic()
        if token or now_s < owner.until_s:
            raise ChannelError(
                RESOURCE_LOCKED,
                f"reader '{key[1]}' of queue '{key[0]}' in vhost '{self._vhost.name}' belongs to "
                "another program that runs: a second query needs a readerId of its own. If this "
                "one had it before, it was not heard of for too long, and another one took over",
            )

    def _heard(self, key: Key, token: str, seconds: float) -> Owner:
        now_s = self._vhost.clock.monotonic()
        owner = self._owners.get(key)
        if owner is None or owner.token != token:
            if owner is None and len(self._owners) >= OWNERS_MAX:
                self._forget(now_s)
            owner = self._owners[key] = Owner(token, seconds, 0.0)
        owner.seconds = seconds
        owner.until_s = now_s + seconds
        owner.renewals += 1
        return owner

    def _forget(self, now_s: float) -> None:
        """Those that were not heard of in time. ChannelError 506: there are none."""
        self._owners = {key: one for key, one in self._owners.items() if now_s < one.until_s}
        if len(self._owners) >= OWNERS_MAX:
            raise ChannelError(RESOURCE_ERROR, f"{OWNERS_MAX} readers have owners, no more may")


def _told(owner: Owner, now_s: float, *, is_owner: bool) -> dict[str, object]:
    left_s = max(owner.until_s - now_s, 0.0)
    return {"is_owner": is_owner, "renewals": owner.renewals, "expires_s": left_s}
