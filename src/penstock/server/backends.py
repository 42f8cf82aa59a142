"""Backends: who decides whether a client may log in, and what it may do, in the order of
`auth_backends`.

    internal   users with passwords that are kept here (authenticator, access.users)
    http       users that are kept here, whose passwords, vhosts and rights a server checks
    oauth2     tokens of an issuer (access.tokens)

A login asks one backend after the other, until one accepts; that one also decides on vhosts and
names. Whom all refuse is refused, and the log says what each of them said. The user of `internal`
need not exist: then it is asked last, so that its brakes and its time count only for those whom
nobody else accepts, and the time does not show which users exist.

The server of `http` is asked in ASKERS threads; if it is slow or dead, only logins that it decides
wait, timeout_s at most once they have a thread, and the log says so. Clients from one address have
half of the threads at most, so that a flood of wrong passwords leaves some for the others. It is
not asked about a user who is not kept here, nor about a vhost in which the user has no permissions
here. What it has allowed is remembered for cache_s, CACHE_MAX answers; what it has denied is not.
Questions about rights, which a vhost remembers (broker.asked_rights), have threads of their own, so
that logins do not wait for them.

An issuer that is slow or dead delays nobody but those whose tokens wait for its keys. They are
fetched in a thread of their own, once for all that wait, and kept: for jwks_cache_s, and longer if
the issuer does not answer. After that time tokens wait until they are fetched again, so a key that
was withdrawn is refused; if that fails, further attempts delay nobody. A token with an unknown key
has them fetched again, at most every FETCH_AGAIN_S, because anybody can send one.
"""

import asyncio
import logging
import ssl
import urllib.request
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlencode

from penstock.access.http_options import HTTP, POST, HttpLoginOptions
from penstock.access.permissions import (
    GUEST_LOOPBACK,
    INTERNAL,
    LOOPBACK_USERS,
    Identity,
    why_not_from,
)
from penstock.access.tokens import (
    OAUTH2,
    Grants,
    OAuth2Options,
    TokenRefused,
    UnknownKey,
    key_set,
    read_token,
)
from penstock.access.users import KnownUsers
from penstock.clock import Clock
from penstock.errors import OptionError, PenstockError
from penstock.server.authenticator import Authenticator
from penstock.server.fair_turns import FairTurns
from penstock.server.log_lines import client_line

FETCH_AGAIN_S: Final = 10.0
ASKERS: Final = 8
CACHE_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 1 << 20
PIECE_BYTES: Final = 1 << 14
RIGHTS_TIMES: Final = 4  # rights that one request needs, each asked about for timeout_s
TOPIC: Final = "topic"

logger = logging.getLogger(__name__)


class Refused(PenstockError):
    """A backend does not accept a login. The text is for the log."""


class Account(ABC):
    """A client that has logged in. user: its name."""

    def __init__(self, user: str) -> None:
        self.user: Final = user

    @property
    @abstractmethod
    def tags(self) -> frozenset[str]:
        """Return the user's tags."""

    @property
    def expires_at_s(self) -> float:
        """Return when it ends, in seconds since 1970; 0 if never."""
        return 0.0

    @property
    def must_ask(self) -> bool:
        """Return whether `identity` has an answer only after `ask`."""
        return False

    async def ask(self, vhosts: Iterable[str]) -> None:  # noqa: B027 - most need not ask
        """Ask whether it may open these vhosts, if anybody must be asked: then `identity` has an
        answer for those that were asked about last. Waits as long as it takes."""

    @abstractmethod
    def identity(self, vhost: str) -> Identity | None:
        """Return what it may do in a vhost, None if it may not open it."""


class Backend(ABC):
    """One backend. name: as in `auth_backends`."""

    name: str

    @abstractmethod
    async def login(self, user: str, password: bytes, host: str) -> Account:
        """Return the account. Waits as long as it takes. Raises Refused."""

    def remembered(self, _user: str, _password: bytes, _host: str) -> Account | None:
        """Return the account if that needs no waiting, None otherwise."""
        return None

    def comes_last(self, _user: str) -> bool:
        """Return whether the others are asked first about this user."""
        return False


class Backends:
    """The backends, in order. guest, loopback_users: where users may come from."""

    def __init__(
        self, backends: Sequence[Backend], guest: str = GUEST_LOOPBACK,
        loopback_users: Collection[str] = LOOPBACK_USERS,
    ) -> None:  # fmt: skip
        self._backends = backends
        self._guest = guest
        self._loopback_users = loopback_users
        # on_refused(user, address, why): nobody has accepted it
        self.on_refused: Callable[[str, str, str], None] | None = None

    async def login(self, user: str, password: bytes, host: str) -> Account:
        """Return the account of a client from this address. Raises Refused."""
        why: list[tuple[str, str]] = []
        for backend in sorted(self._backends, key=lambda one: one.comes_last(user)):
            try:
                account = await backend.login(user, password, host)
                not_from = why_not_from(account.user, host, self._guest, self._loopback_users)
                if not not_from:
                    return account
                why.append((backend.name, not_from))
            except Refused as error:
                why.append((backend.name, str(error)))
        text = "; ".join(f"{name}: {text}" for name, text in why) if len(why) > 1 else why[0][1]
        raise self._refused(user, host, text)

    def _refused(self, user: str, host: str, why: str) -> Refused:
        """Return what to raise for a client that nobody has accepted."""
        if self.on_refused is not None:
            self.on_refused(user, host, why)
        return Refused(why)

    def remembered(self, user: str, password: bytes, host: str) -> Account | None:
        """Return what `login` would, if that needs no waiting: the backend that is asked first has
        accepted this password before. None otherwise."""
        first = min(self._backends, key=lambda one: one.comes_last(user))
        account = first.remembered(user, password, host)
        if account is None or why_not_from(user, host, self._guest, self._loopback_users):
            return None
        return account

    @property
    def http(self) -> "HttpBackend | None":
        """Return the server of auth_http, if there is one."""
        return next((one for one in self._backends if isinstance(one, HttpBackend)), None)

    def kept(self, user: str, host: str) -> Account:
        """Return the account of a user who is kept here, from this address: that of http or
        internal, which of them is asked first. Raises Refused if there is neither."""
        for backend in self._backends:
            if isinstance(backend, HttpBackend):
                return _HttpAccount(user, backend, host)
            if isinstance(backend, InternalBackend):
                return backend.kept(user)
        raise Refused("auth_backends has oauth2 only, whose users have their rights in tokens")

    def certified(self, user: str, host: str) -> Account:
        """Return the account of a client whose certificate names this user, which is one of
        `internal`. Raises Refused."""
        why = "users of certificates are those of internal, which auth_backends lacks"
        for backend in self._backends:
            if isinstance(backend, InternalBackend):
                why = backend.refusal_of_certificate(user, host)
                if not why:
                    return backend.kept(user)
        raise self._refused(user, host, why)


# ---- internal ------------------------------------------------------------------------------------


class _OwnAccount(Account):
    def __init__(self, user: str, users: KnownUsers) -> None:
        super().__init__(user)
        self._users = users

    @property
    def tags(self) -> frozenset[str]:
        return self._users.tags_of(self.user)

    def identity(self, vhost: str) -> Identity | None:
        return self._users.identity(self.user, vhost)


class InternalBackend(Backend):
    """The users of this broker."""

    name = INTERNAL

    def __init__(self, users: KnownUsers, authenticator: Authenticator) -> None:
        self._users = users
        self._authenticator = authenticator

    def comes_last(self, user: str) -> bool:
        return not self._users.knows(user)

    async def login(self, user: str, password: bytes, host: str) -> Account:
        why = await self._authenticator.refusal(user, password, host)
        if why:
            raise Refused(why)
        return self.kept(user)

    def remembered(self, user: str, password: bytes, host: str) -> Account | None:
        if self._authenticator.remembers(user, password, host):
            return self.kept(user)
        return None

    def kept(self, user: str) -> Account:
        """Return the account of a user who is kept here."""
        return _OwnAccount(user, self._users)

    def refusal_of_certificate(self, user: str, host: str) -> str:
        """Return why a client whose certificate names this user is refused, "" if it is not."""
        return self._authenticator.refusal_of_certificate(user, host)


# ---- HTTP ----------------------------------------------------------------------------------------


Form = Mapping[str, str | bytes]
Ask = Callable[[HttpLoginOptions, str, Form, Callable[[], float]], str]


class HttpBackend(Backend):
    """A server that checks passwords and rights. ask(options, address, form, now_s): returns its
    answer; called in a thread."""

    name = HTTP

    def __init__(
        self, options: HttpLoginOptions, users: KnownUsers, clock: Clock, ask: Ask | None = None
    ) -> None:
        self.users: Final = users
        self._options = options
        self._clock = clock
        self._ask = ask_http if ask is None else ask
        self._allowed: OrderedDict[bytes, float] = OrderedDict()  # key of a form -> until when
        self._turns = FairTurns(ASKERS, ASKERS // 2)
        self._executor = ThreadPoolExecutor(ASKERS, "penstock-http-login")
        self._rights_executor = ThreadPoolExecutor(ASKERS, "penstock-http-rights")
        self._warned_s = float("-inf")

    async def login(self, user: str, password: bytes, host: str) -> Account:
        if not self.users.knows(user):
            raise Refused("there is no such user")
        key = self.users.key(user, password)
        form: Form = {"username": user, "password": password}
        await self._check(key, self._options.user_path, form, host)
        return _HttpAccount(user, self, host)

    async def may_open(self, user: str, vhost: str, host: str) -> bool:
        """Return whether the server allows the user to open the vhost from this address."""
        if not self._options.vhost_path:
            return True
        tags = " ".join(sorted(self.users.tags_of(user)))
        form = {"username": user, "vhost": vhost, "ip": host, "tags": tags}
        # Longer than the key of a password.
        key = b"vhost:" + self.users.key(user, _encoded(form).encode())
        try:
            await self._check(key, self._options.vhost_path, form, host)
        except Refused as error:
            client_line(logger, host, "%s: user '%s' may not open vhost '%s' - %s", host, user,
                        vhost, error)  # fmt: skip
            return False
        return True

    def asking(self, identity: Identity, host: str) -> Identity:
        """Return the identity of a client from this address, with what the server must allow."""
        options = self._options
        if not (options.resource_path or options.topic_path):
            return identity
        return identity.asking(
            host, resources=bool(options.resource_path), topics=bool(options.topic_path)
        )

    @property
    def rights_valid_s(self) -> float:
        """For how long an answer about rights counts: see broker.asked_rights."""
        return max(self._options.cache_s, RIGHTS_TIMES * self._options.timeout_s)

    async def may(self, vhost: str, question: Sequence[str]) -> bool:
        """Return whether the server allows what broker.asked_rights asks."""
        user, host, permission, resource, name, _ = question
        try:
            await self.check_right(vhost, question)
        except Refused as error:
            client_line(logger, host, "%s: user '%s' may not %s %s '%s' in vhost '%s' - %s", host,
                        user, permission, resource, name, vhost, error)  # fmt: skip
            return False
        return True

    async def check_right(self, vhost: str, question: Sequence[str]) -> None:
        """Raise Refused unless the server allows this. question: user, address of the client,
        permission, resource, name, routing key."""
        user, host, permission, resource, name, key = question
        options = self._options
        tags = " ".join(sorted(self.users.tags_of(user)))
        form = {
            "username": user, "vhost": vhost, "resource": resource, "name": name,
            "permission": permission, "ip": host, "tags": tags,
        }  # fmt: skip
        path = options.resource_path
        if resource == TOPIC:
            path = options.topic_path
            form["routing_key"] = key
        await self._asked(path, form, self._rights_executor)

    async def _check(self, key: bytes, address: str, form: Form, host: str) -> None:
        """Raise Refused unless the server allows it to a client from this host, now or less than
        cache_s ago."""
        if self._allowed.get(key, 0.0) > self._clock.monotonic():
            return
        await self._turns.take(host)
        try:
            await self._asked(address, form, self._executor)
        finally:
            self._turns.give_back(host)
        self._allowed[key] = self._clock.monotonic() + self._options.cache_s
        self._allowed.move_to_end(key)
        if len(self._allowed) > CACHE_MAX:
            self._allowed.popitem(last=False)

    async def _asked(self, address: str, form: Form, executor: ThreadPoolExecutor) -> None:
        """Raise Refused unless the server allows it."""
        options, now_s = self._options, self._clock.monotonic
        try:
            answer = await asyncio.get_running_loop().run_in_executor(
                executor, self._ask, options, address, form, now_s
            )
        except (OSError, ValueError, HTTPException) as error:
            if now_s() - self._warned_s >= FETCH_AGAIN_S:
                self._warned_s = now_s()
                logger.warning("logins cannot be checked at %s: %s", address, error)
            raise Refused(f"{address} does not answer: {error}") from error
        said = answer.split()[:1]
        if said and said[0].lower() == "deny":
            raise Refused("the server denies it")
        if not said or said[0].lower() != "allow":
            raise Refused(f"the server answers {answer!r:.100}, expected allow or deny")


class _HttpAccount(_OwnAccount):
    def __init__(self, user: str, backend: HttpBackend, host: str) -> None:
        super().__init__(user, backend.users)
        self._backend = backend
        self._host = host
        self._opens: set[str] = set()

    @property
    def must_ask(self) -> bool:
        return True

    async def ask(self, vhosts: Iterable[str]) -> None:
        asked = [one for one in vhosts if self._backend.users.identity(self.user, one) is not None]
        may = [self._backend.may_open(self.user, vhost, self._host) for vhost in asked]
        found = dict(zip(asked, await asyncio.gather(*may), strict=True))
        self._opens = {vhost for vhost, is_open in found.items() if is_open}

    def identity(self, vhost: str) -> Identity | None:
        identity = super().identity(vhost) if vhost in self._opens else None
        return None if identity is None else self._backend.asking(identity, self._host)


def _encoded(form: Form) -> str:
    return urlencode(form, errors="surrogateescape")


def ask_http(
    options: HttpLoginOptions, address: str, form: Form, now_s: Callable[[], float]
) -> str:
    """Return what the server says at this address. Blocks for timeout_s, twice at most. Raises
    OSError, ValueError, HTTPException."""
    encoded = _encoded(form)
    if options.http_method == POST:
        return _read(address, encoded.encode(), options.cacertfile, options.timeout_s, now_s)
    mark = "&" if "?" in address else "?"
    return _read(address + mark + encoded, None, options.cacertfile, options.timeout_s, now_s)


# ---- OAuth 2 -------------------------------------------------------------------------------------


class _TokenAccount(Account):
    def __init__(self, grants: Grants) -> None:
        super().__init__(grants.user)
        self._grants = grants

    @property
    def tags(self) -> frozenset[str]:
        return self._grants.tags

    @property
    def expires_at_s(self) -> float:
        return self._grants.expires_at_s

    def identity(self, vhost: str) -> Identity | None:
        try:
            return self._grants.identity(vhost)
        except OptionError as error:
            logger.warning("user %r, vhost %r: its scopes: %s", self.user, vhost, error)
            return None


class OAuth2Backend(Backend):
    """Users with tokens. fetch: returns what is at jwks_uri; called in a thread."""

    name = OAUTH2

    def __init__(
        self, options: OAuth2Options, clock: Clock,
        fetch: Callable[[OAuth2Options, Callable[[], float]], str] | None = None,
    ) -> None:  # fmt: skip
        self._options = options
        self._clock = clock
        self._fetch = fetch_keys if fetch is None else fetch
        self._own: list[dict[str, Any]] = (
            key_set(options.signing_keys) if options.signing_keys else []
        )
        self._fetched: list[dict[str, Any]] = []
        self._fetched_s = float("-inf")
        self._asked_s = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._must_wait = False  # tokens wait for it, even those whose key is known
        self._executor = ThreadPoolExecutor(1, "penstock-jwks")

    async def login(self, user: str, password: bytes, host: str) -> Account:
        options = self._options
        if password.count(b".") != 2:
            raise Refused("its password is no token (JWT)")
        now_s = self._clock.monotonic()
        if options.jwks_uri and now_s - self._fetched_s >= options.jwks_cache_s:
            fetching = self._fetch_again(now_s)
            if fetching is not None and self._must_wait:
                await asyncio.shield(fetching)
        try:
            return self._read(user, password)
        except UnknownKey as error:
            fetching = self._fetch_again(self._clock.monotonic()) if options.jwks_uri else None
            if fetching is None:
                raise Refused(str(error)) from error
            await asyncio.shield(fetching)
        try:
            return self._read(user, password)
        except UnknownKey as error:
            raise Refused(str(error)) from error

    def _read(self, user: str, password: bytes) -> Account:
        keys = self._own + self._fetched
        now_s = self._clock.wall_ms() / 1000
        try:
            return _TokenAccount(read_token(password, keys, self._options, user, now_s))
        except UnknownKey:
            raise
        except TokenRefused as error:
            raise Refused(str(error)) from error

    def _fetch_again(self, now_s: float) -> "asyncio.Task[None] | None":
        """Return the task that fetches the keys; None if they were fetched a moment ago."""
        if self._fetching is None and now_s - self._asked_s >= FETCH_AGAIN_S:
            is_late = now_s - self._asked_s >= self._options.jwks_cache_s
            self._must_wait = is_late and (bool(self._fetched) or not self._own)
            self._asked_s = now_s
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_keys())
        return self._fetching

    async def _fetch_keys(self) -> None:
        options, clock = self._options, self._clock
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(
                self._executor, self._fetch, options, clock.monotonic
            )
            self._fetched = key_set(found)
            self._fetched_s = clock.monotonic()
        except (OSError, ValueError, HTTPException) as error:
            logger.warning(
                "the keys of tokens cannot be fetched from %s: %s; %s", options.jwks_uri, error,
                "those from before are used" if self._fetched else "there are none from before",
            )  # fmt: skip
        finally:
            self._fetching = None


def made_backends(
    names: Collection[str], users: KnownUsers, authenticator: Authenticator, clock: Clock,
    oauth2: OAuth2Options, http: HttpLoginOptions,
) -> list[Backend]:  # fmt: skip
    """Return the backends of these names."""
    makers: dict[str, Callable[[], Backend]] = {
        INTERNAL: lambda: InternalBackend(users, authenticator),
        OAUTH2: lambda: OAuth2Backend(oauth2, clock),
        HTTP: lambda: HttpBackend(http, users, clock),
    }
    return [makers[name]() for name in names]


def fetch_keys(options: OAuth2Options, now_s: Callable[[], float]) -> str:
    """Return the text at jwks_uri. Blocks for timeout_s, twice at most. Raises OSError,
    ValueError."""
    return _read(options.jwks_uri, None, options.cacertfile, options.timeout_s, now_s)


def _read(
    uri: str, form: bytes | None, cacertfile: str, timeout_s: float, now_s: Callable[[], float]
) -> str:
    end_s = now_s() + timeout_s
    context = ssl.create_default_context(cafile=cacertfile or None)
    # The options' checks: it is https or http.
    with urllib.request.urlopen(uri, form, timeout_s, context=context) as answer:  # noqa: S310
        found = bytearray()
        while piece := answer.read1(PIECE_BYTES):
            found += piece
            if len(found) > ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            if now_s() > end_s:
                raise TimeoutError(f"no whole answer in {timeout_s:g} s")
    return found.decode()
