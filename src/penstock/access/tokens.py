"""Tokens: what the bearer token (JWT) of an OAuth 2 client says about its user, as RabbitMQ reads
it.

A client gives its token as the password; the user name that it gives counts only if the token has
none. The token has to be signed by a known key, for the resource server of [auth_oauth2], and not
to have expired. What the user may do are the scopes of the token that begin with the prefix, by
default the resource server's id and a dot:

    read:VHOST/NAME          also write, configure
    write:VHOST/NAME/KEY     for topic exchanges, only with this routing key; without it with any
    tag:TAG                  the user has this tag

`*` stands for any text, also for none; the parts are percent-encoded. A user may open a vhost that
one of the scopes names. An alias is a scope of the issuer's own that stands for several of these.

The scopes of a vhost become patterns of an Identity, so checks cost what they cost for other users.
A routing key is checked together with its exchange, as "EXCHANGE\\nKEY": no exchange's name has a
line feed.

PyJWT checks signatures (the extra `oauth2`). Keys are a JWKS, the text or what the issuer's address
answers; server.backends fetches it. An algorithm has to be allowed, and that of the key, so neither
"none" nor a public key taken as a shared secret is accepted.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from penstock.access.permissions import SCOPES_CHARS_MAX, Identity, Pattern
from penstock.errors import OptionError, install_advice
from penstock.options import Kind, Option, WrongValueError, flag, names, seconds, some_of, text

OAUTH2: Final = "oauth2"
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA",
)  # fmt: skip
VERBS: Final = ("configure", "write", "read")
TAG: Final = "tag"
KEYS_MAX: Final = 100
SCOPES_MAX: Final = 1000


class TokenRefused(Exception):
    """A token that is not accepted. The text, for the log, does not contain it."""


class UnknownKey(TokenRefused):
    """A token whose key is not known; the issuer may have a new one."""


@dataclass(frozen=True, slots=True)
class OAuth2Options:
    """[auth_oauth2] of penstock.toml; OAUTH2_OPTIONS says what each is."""

    resource_server_id: str = ""
    jwks_uri: str = ""
    signing_keys: str = ""
    cacertfile: str = ""
    scope_prefix: str = ""
    scope_aliases: dict[str, str] = field(default_factory=dict)
    additional_scopes_key: tuple[str, ...] = ()
    preferred_username_claims: tuple[str, ...] = ("sub", "client_id")
    verify_aud: bool = True
    algorithms: tuple[str, ...] = ALGORITHMS
    jwks_cache_s: float = 300.0
    timeout_s: float = 5.0

    def facts(self) -> dict[str, Any]:
        """Return the options as JSON, for `of` in another process."""
        return asdict(self)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "OAuth2Options":
        """Return the options of `facts`."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        return cls(**given)


def _texts() -> Kind:
    """A table of texts, or the same as JSON."""
    expected = 'a table of texts, as {developer = "rabbit.read:*/* rabbit.write:*/*"}'

    def check(value: object) -> dict[str, str]:
        if isinstance(value, str):
            try:
                value = json.loads(value or "{}")
            except ValueError:
                raise WrongValueError(expected) from None
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise WrongValueError(expected)
        return value

    return Kind("table of texts", check, shown=json.dumps)


OAUTH2_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "resource_server_id", text("the name by which the issuer knows this broker"),
        "the name by which the issuer knows this broker: what `aud` of a token must have, and "
        "what scopes begin with",
    ),
    Option("jwks_uri", text("an address, https://..."), "where the issuer publishes its keys"),
    Option(
        "signing_keys", text("a JWKS as JSON"),
        "keys besides those: a JWKS, as JSON",
    ),
    Option(
        "cacertfile", text("a file of certificates"),
        "certificates by which the issuer's address is checked, instead of the system's",
    ),
    Option(
        "scope_prefix", text("what scopes for this broker begin with"),
        "what scopes for this broker begin with, if not with the resource server's id and a dot",
    ),
    Option("scope_aliases", _texts(), "scopes of the issuer, and the scopes they stand for"),
    Option("additional_scopes_key", names(), "claims that have scopes, besides `scope`"),
    Option(
        "preferred_username_claims", names(), "claims; the first that a token has names its user"
    ),
    Option("verify_aud", flag(), "refuse tokens whose `aud` lacks the resource server's id"),
    Option("algorithms", some_of(ALGORITHMS), "algorithms of signatures that are accepted"),
    Option("jwks_cache_s", seconds(), "seconds for which the issuer's keys are kept"),
    Option("timeout_s", seconds(), "seconds that the issuer has for an answer"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grants:
    """What an accepted token grants. scopes: without prefix. expires_at_s: seconds since 1970, 0 if
    never."""

    user: str
    scopes: tuple[str, ...]
    expires_at_s: float

    @property
    def tags(self) -> frozenset[str]:
        """Return the user's tags."""
        given = [scope.split(":", 1) for scope in self.scopes if ":" in scope]
        return frozenset(tag for kind, tag in given if kind == TAG)

    def identity(self, vhost: str) -> Identity | None:
        """Return what the user may do in a vhost, None if it may not open it."""
        granted: dict[str, list[tuple[str, str]]] = {verb: [] for verb in VERBS}
        for scope in self.scopes:
            verb, _, rest = scope.partition(":")
            parts = rest.split("/")
            if verb in granted and len(parts) in (2, 3):
                key = parts[2] if len(parts) == 3 else "*"
                if Pattern(_any_of(parts[:1]), SCOPES_CHARS_MAX).is_in(vhost):
                    granted[verb].append((parts[1], key))
        if not any(granted.values()):
            return None
        configure, write, read = (_any_of(name for name, _ in granted[verb]) for verb in VERBS)
        on_keys = None
        if any(key != "*" for some in granted.values() for _, key in some):
            on_keys = (_of_keys(granted["write"]), _of_keys(granted["read"]))
        return Identity(
            self.user, self.tags, configure, write, read, on_keys=on_keys, source=OAUTH2,
            expires_at_s=self.expires_at_s,
        )  # fmt: skip


def _any_of(given: Iterable[str]) -> str:
    patterns = [_pattern(name, "(?s:.*)") for name in dict.fromkeys(given)]
    return f"^(?:{'|'.join(patterns)})$" if patterns else ""


def _of_keys(granted: list[tuple[str, str]]) -> str:
    """Return a pattern of "EXCHANGE\\nKEY"."""
    patterns = [
        _pattern(name, "[^\\n]*") + "\\n" + _pattern(key, "(?s:.*)")
        for name, key in dict.fromkeys(granted)
    ]
    return f"^(?:{'|'.join(patterns)})$" if patterns else ""


def _pattern(given: str, any_text: str) -> str:
    return any_text.join(re.escape(unquote(part)) for part in given.split("*"))


def has_tokens() -> bool:
    """Return whether PyJWT is installed."""
    return importlib.util.find_spec("jwt") is not None


def jwk_of(pem: bytes) -> dict[str, Any]:
    """Return a public key of RSA or of an elliptic curve as a JWK. Raises ValueError."""
    from jwt import InvalidKeyError
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm

    kinds: tuple[Any, ...] = (RSAAlgorithm, ECAlgorithm)
    for kind in kinds:
        try:
            found: dict[str, Any] = kind.to_jwk(kind(kind.SHA256).prepare_key(pem), as_dict=True)
        except (InvalidKeyError, ValueError, TypeError):
            continue
        if "d" not in found:
            return found
    raise ValueError("expected a public key of RSA or of an elliptic curve, as PEM")


def key_set(found: str) -> list[dict[str, Any]]:
    """Return the keys of a JWKS. Raises ValueError."""
    parsed = json.loads(found)
    keys = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise ValueError('expected a JWKS, as {"keys": [...]}')
    if len(keys) > KEYS_MAX:
        raise ValueError(f"{len(keys)} keys, expected at most {KEYS_MAX}")
    return keys


def check_options(options: OAuth2Options) -> None:
    """Raise OptionError if tokens cannot be checked with these options."""
    table = "auth_oauth2"
    if not has_tokens():
        expected = f"the package pyjwt for tokens: {install_advice('oauth2')}"
        raise OptionError("auth_backends", OAUTH2, expected)
    if not options.resource_server_id:
        raise OptionError(f"{table}.resource_server_id", "", "a name, for the backend oauth2")
    if not options.jwks_uri and not options.signing_keys:
        raise OptionError(f"{table}.jwks_uri", "", "an address, or signing_keys, for oauth2")
    if options.jwks_uri and not options.jwks_uri.startswith(("https://", "http://")):
        raise OptionError(f"{table}.jwks_uri", options.jwks_uri, "https://...")
    if options.signing_keys:
        try:
            key_set(options.signing_keys)
        except ValueError as error:
            raise OptionError(f"{table}.signing_keys", "the given text", str(error)) from error


def read_token(
    token: bytes, keys: list[dict[str, Any]], options: OAuth2Options, name: str, now_s: float
) -> Grants:
    """Return what a token grants. name: the user's, if the token has none. now_s: since 1970.
    Raises TokenRefused, UnknownKey."""
    claims = _claims(token, keys, options)
    expires_at_s = _time(claims, "exp")
    if expires_at_s and expires_at_s <= now_s:
        raise TokenRefused(f"its token expired {now_s - expires_at_s:.0f} s ago")
    if _time(claims, "nbf") > now_s:
        raise TokenRefused(f"its token is valid in {_time(claims, 'nbf') - now_s:.0f} s only")
    audience = claims.get("aud", [])
    audiences = audience if isinstance(audience, list) else [audience]
    if options.verify_aud and options.resource_server_id not in audiences:
        raise TokenRefused(
            f"its token is for {audiences!r:.200}, expected {options.resource_server_id!r}"
        )
    user = next(
        (str(claims[claim]) for claim in options.preferred_username_claims if claims.get(claim)),
        name,
    )
    return Grants(user, _scopes(claims, options), expires_at_s)


def _claims(token: bytes, keys: list[dict[str, Any]], options: OAuth2Options) -> Mapping[str, Any]:
    import jwt  # loading it takes 60 ms, and few brokers need it

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError) as error:
        raise TokenRefused(f"its password is no token (JWT): {error}") from error
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in options.algorithms:
        raise TokenRefused(
            f"its token is signed with {algorithm!r}, expected {', '.join(options.algorithms)}"
        )
    found = [key for key in keys if kid is None or key.get("kid") == kid]
    if not found:
        raise UnknownKey(f"its token is signed with the unknown key {kid!r:.100}")
    if len(found) > 1:
        raise TokenRefused(f"its token does not name one of the {len(found)} keys (kid)")
    if found[0].get("alg", algorithm) != algorithm:
        raise TokenRefused(
            f"its token is signed with {algorithm!r}, expected {found[0]['alg']!r} of key {kid!r}"
        )
    try:
        key = jwt.PyJWK(found[0], algorithm)
        found_claims: Mapping[str, Any] = jwt.decode(
            token, key, algorithms=[algorithm],
            options={
                "verify_exp": False, "verify_nbf": False, "verify_iat": False,
                "verify_aud": False, "verify_iss": False, "verify_sub": False,
                "verify_jti": False,
            },
        )  # fmt: skip
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise TokenRefused(f"its token is not accepted: {error}") from error
    return found_claims


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused(f"its token's {name} is {value!r:.50}, expected seconds since 1970")
    return float(value)


def _scopes(claims: Mapping[str, Any], options: OAuth2Options) -> tuple[str, ...]:
    given: list[str] = []
    for claim in ("scope", *options.additional_scopes_key):
        value = claims.get(claim, "")
        if isinstance(value, str):
            given += value.split()
        elif isinstance(value, list):
            given += [one for one in value if isinstance(one, str)]
        elif isinstance(value, dict):  # Keycloak's and UAA's: by resource server
            of_server = value.get(options.resource_server_id, [])
            given += of_server.split() if isinstance(of_server, str) else map(str, of_server)
    prefix = options.scope_prefix or options.resource_server_id + "."
    found: list[str] = []
    for scope in given:
        meant = options.scope_aliases.get(scope, scope).split()
        found += [one[len(prefix) :] for one in meant if one.startswith(prefix)]
    if len(found) > SCOPES_MAX:
        raise TokenRefused(f"its token has {len(found)} scopes, expected at most {SCOPES_MAX}")
    return tuple(scope for scope in dict.fromkeys(found) if _is_usable(scope))


def _is_usable(scope: str) -> bool:
    """Return whether the wildcards of a scope can be matched in linear time."""
    parts = scope.partition(":")[2].split("/")
    try:
        for part in parts:
            Pattern(_any_of([part]), SCOPES_CHARS_MAX)
        Pattern(_of_keys([(parts[-2:][0], parts[-1])]), SCOPES_CHARS_MAX)
    except ValueError:
        return False
    return True
