"""Tokens of OAuth 2: whose they are, for how long, what their scopes allow, and what is refused."""

import base64
import json
from dataclasses import replace
from typing import Any

import jwt
import pytest

from penstock.access.permissions import Identity
from penstock.access.tokens import (
    Grants,
    OAuth2Options,
    TokenRefused,
    UnknownKey,
    check_options,
    key_set,
    read_token,
)
from penstock.errors import OptionError
from tests.helpers.token_issuer import NOW_S, TokenIssuer

OPTIONS = OAuth2Options(resource_server_id="rabbit", jwks_uri="https://issuer/keys")
ISSUER = TokenIssuer()


def read(token: str, options: OAuth2Options = OPTIONS, name: str = "given") -> Grants:
    return read_token(token.encode(), key_set(ISSUER.jwks), options, name, NOW_S)


def identity(*scopes: str, vhost: str = "/") -> Identity:
    found = read(ISSUER.token(*scopes)).identity(vhost)
    assert found is not None
    return found


def test_a_token_names_its_user_tags_and_end() -> None:
    found = read(ISSUER.token("rabbit.tag:monitoring", "rabbit.tag:a", "rabbit.read:*/*", "openid"))
    assert (found.user, found.expires_at_s) == ("ada", NOW_S + 3600)
    assert found.tags == {"monitoring", "a"}
    assert read(ISSUER.token(exp=None)).expires_at_s == 0
    assert read(ISSUER.token(sub=None, client_id="app")).user == "app"
    assert read(ISSUER.token(sub=None)).user == "given"
    by_mail = replace(OPTIONS, preferred_username_claims=("mail", "sub"))
    assert read(ISSUER.token(mail="a@b"), by_mail).user == "a@b"


def test_scopes_are_permissions_in_vhosts() -> None:
    who = identity("rabbit.read:%2F/q-*", "rabbit.write:*/x", "rabbit.configure:v/*")
    assert [who.may_read(name) for name in ("q-1", "q-", "x", "aq-1")] == [True, True, False, False]
    assert [who.may_write(name) for name in ("x", "xx", "")] == [True, False, False]
    assert not who.may_configure("q-1")
    assert not who.has_topics
    assert who.source == "oauth2"
    assert who.expires_at_s == NOW_S + 3600
    assert identity("rabbit.configure:v/*", vhost="v").may_configure("any thing\n")
    assert read(ISSUER.token("rabbit.configure:v/*")).identity("/") is None
    assert read(ISSUER.token("other.read:*/*", "rabbit.tag:administrator")).identity("/") is None


def test_names_in_scopes_are_taken_literally() -> None:
    who = identity("rabbit.read:*/a.b", "rabbit.read:*/50%25%2A")
    assert who.may_read("a.b")
    assert not who.may_read("axb")
    assert who.may_read("50%*")
    assert not who.may_read("50%x")


def test_scopes_with_a_routing_key() -> None:
    who = identity("rabbit.write:*/x*/a.*", "rabbit.write:*/y", "rabbit.read:*/x/b")
    again = Identity.from_facts(json.loads(json.dumps(who.facts())))
    for one in (who, again):
        assert one.may_write("x1")
        assert one.may_write_topic("x1", "a.b")
        assert not one.may_write_topic("x1", "b")
        assert one.may_write_topic("y", "b")
        assert one.may_read_topic("x", "b")
        assert not one.may_read_topic("x", "a.b")
        assert not one.may_write_every_topic("x1")
        assert again.expires_at_s == NOW_S + 3600


def test_other_claims_and_aliases_have_scopes_too() -> None:
    options = replace(
        OPTIONS, additional_scopes_key=("roles", "by_server"),
        scope_aliases={"developer": "rabbit.read:*/* rabbit.tag:management"},
    )  # fmt: skip
    claims: dict[str, Any] = {"roles": ["developer"], "by_server": {"rabbit": ["rabbit.write:v/x"]}}
    found = read(ISSUER.token(**claims), options)
    assert set(found.scopes) == {"read:*/*", "tag:management", "write:v/x"}
    plain = read(ISSUER.token("p:read:*/*"), replace(OPTIONS, scope_prefix="p:"))
    assert plain.scopes == ("read:*/*",)


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"exp": NOW_S}, "its token expired 0 s ago"),
        ({"exp": NOW_S - 60}, "its token expired 60 s ago"),
        ({"nbf": NOW_S + 9}, "its token is valid in 9 s only"),
        ({"aud": "other"}, "its token is for ['other'], expected 'rabbit'"),
        ({"aud": None}, "its token is for [], expected 'rabbit'"),
        ({"exp": "soon"}, "its token's exp is 'soon', expected seconds since 1970"),
        ({"exp": True}, "its token's exp is True"),
    ],
)
def test_what_a_token_may_not_say(claims: dict[str, Any], text: str) -> None:
    with pytest.raises(TokenRefused) as caught:
        read(ISSUER.token("rabbit.read:*/*", **claims))
    assert text in str(caught.value)


def test_the_audience_may_be_one_of_several_or_not_asked_for() -> None:
    assert read(ISSUER.token(aud=["a", "rabbit"])).user == "ada"
    assert read(ISSUER.token(aud="a"), replace(OPTIONS, verify_aud=False)).user == "ada"


def test_an_unknown_key_is_an_error_of_its_own() -> None:
    other = TokenIssuer()
    with pytest.raises(UnknownKey, match="unknown key"):
        read(other.token())
    kid = json.loads(ISSUER.jwks)["keys"][0]["kid"]
    with pytest.raises(TokenRefused, match="Signature verification failed"):
        read(other.token(headers={"kid": kid}))


def test_no_algorithm_and_another_one_are_refused() -> None:
    claims = {"sub": "ada", "aud": "rabbit", "exp": NOW_S + 60}
    with pytest.raises(TokenRefused, match="signed with 'none', expected RS256"):
        read(jwt.encode(claims, None, "none"))
    secret = "s" * 40
    with pytest.raises(TokenRefused, match="signed with 'HS256', expected RS256"):
        read(jwt.encode(claims, secret, "HS256"))
    head = base64.urlsafe_b64encode(b'{"alg":"RS256"}').rstrip(b"=").decode()
    with pytest.raises(TokenRefused, match="signed with 'RS256', expected 'ES256' of key None"):
        read(f"{head}.e30.AAAA")


@pytest.mark.parametrize("token", ["", "guest", "a.b.c", "\x00", "é.é.é", "e30.e30.e30"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(TokenRefused, match=r"its (password|token) is "):
        read(token)


def test_a_scope_that_nothing_can_match_is_left_out() -> None:
    long = "rabbit.read:*/" + "a" * 70_000
    assert read(ISSUER.token(long, "rabbit.read:*/q")).scopes == ("read:*/q",)
    with pytest.raises(TokenRefused, match="1001 scopes, expected at most 1000"):
        read(ISSUER.token(*[f"rabbit.read:*/{number}" for number in range(1001)]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resource_server_id": ""}, "a name"),
        ({"jwks_uri": ""}, "an address, or signing_keys"),
        ({"jwks_uri": "file:///etc/passwd"}, "https://"),
        ({"signing_keys": "{"}, "signing_keys"),
        ({"signing_keys": '{"keys": 1}'}, "expected a JWKS"),
    ],
)
def test_options_that_check_no_token_are_refused(change: dict[str, str], text: str) -> None:
    check_options(OPTIONS)
    with pytest.raises(OptionError, match=text):
        check_options(replace(OPTIONS, **change))
