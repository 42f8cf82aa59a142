"""AmqpHeaders: what is published comes out as it was, with what queues remember of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from penstock.queues.amqp_headers import FORMAT, AmqpHeaders, split_address
from penstock.queues.headers import Death, HeaderError, PlainHeaders

H = AmqpHeaders()
PLAIN = PlainHeaders()
ROUTE = b"\x02ex\x03key\x01"
ADDRESS = ROUTE[:-1]

SHORT = st.binary(max_size=255)
PREFIXES = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(0, (1 << 32) - 1), "expiry_ms": st.integers(0, (1 << 64) - 1),
        "priority": st.integers(0, 255),
    },
)  # fmt: skip


def props_of(**given_properties: Any) -> bytes:
    """Properties as another codec writes them."""
    made = header.ContentHeader(0, 0, commands.Basic.Properties(**given_properties))
    return made.marshal()[12:]


def shown(props: bytes) -> Any:
    """Properties as another codec reads them."""
    found = header.ContentHeader()
    found.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + props)
    return found.properties


FULL = props_of(
    content_type="text/plain", headers={"a": 1}, delivery_mode=2, priority=7,
    correlation_id="c", reply_to="r", expiration="5000", message_id="m", user_id="guest",
)  # fmt: skip


def test_a_publish_is_stored_as_it_was() -> None:
    assert H.make(ROUTE, FULL) == b"\x02" + ADDRESS + FULL
    assert H.parts(H.make(ROUTE, FULL)) == (ADDRESS, FULL)
    assert split_address(ADDRESS) == (b"ex", b"key")
    assert H.make(ROUTE, FULL)[0] == FORMAT


@pytest.mark.parametrize("headers", [{}, {"a": 1}, {"x-death": "mine"}, {"CC": ["k"]}])
@pytest.mark.parametrize("expiration", [None, "5000", "7000"])
@pytest.mark.parametrize("reason", ["rejected", "expired"])
def test_the_first_death_is_the_same_however_it_is_written(
    headers: dict[str, Any], expiration: str | None, reason: str
) -> None:
    """Most messages get the fields of the one before, which had the same address."""
    of = {"content_type": "t", "message_id": "m"}
    if expiration is not None:
        of["expiration"] = expiration
    made = H.make(ROUTE, props_of(headers=headers or None, **of))
    for queue, attempts in (("q", 1), ("q", 1), ("r", 0), ("q", 3)):
        death = Death(queue, reason, 7_000, attempts)
        slow = H.with_death(H.with_(made, attempts=9), death)
        assert H.with_death(made, death) == H.with_(slow, attempts=0)


@given(SHORT, SHORT, PREFIXES, st.lists(SHORT, max_size=5))
def test_whatever_stands_before_the_address(
    exchange: bytes, key: bytes, prefix: dict[str, int], hidden: list[bytes]
) -> None:
    address = bytes((len(exchange),)) + exchange + bytes((len(key),)) + key
    made = H.with_hidden(H.make(address + b"\0", FULL), hidden)
    made = H.with_(made, **prefix)
    assert H.parts(made) == (address, FULL)
    assert H.attempts(made) == prefix.get("attempts", 0)
    assert not H.attempts(made) or made[0] != H.fresh_byte()
    assert H.expiry_ms(made) == prefix.get("expiry_ms", 0)
    assert H.priority(made) == prefix.get("priority", 7)
    assert H.keys(made) == [key, *hidden]
    again = H.with_(made, attempts=0, expiry_ms=0, priority=7)
    assert again == H.with_hidden(H.make(address + b"\0", FULL), hidden)


def test_the_bytes_of_each_part() -> None:
    made = H.make(ROUTE, b"\0\0")
    assert H.with_(made, attempts=3) == b"\x12\0\0\0\x03" + made[1:]
    assert H.with_(made, expiry_ms=5) == b"\x22\0\0\0\0\0\0\0\x05" + made[1:]
    assert H.with_(made, priority=9) == b"\x42\x09" + made[1:]
    assert H.with_hidden(made, [b"k"]) == b"\x82\0\x02\x01k" + made[1:]
    assert H.with_(made) is made
    assert H.with_(made, attempts=0, expiry_ms=0) is made


def test_a_priority_is_said_only_where_it_differs() -> None:
    made = H.make(ROUTE, FULL)
    assert H.with_(made, priority=7) == made
    assert H.priority(H.with_(made, priority=0)) == 0
    assert H.with_(H.with_(made, priority=0), priority=7) == made
    assert H.priority(H.make(ROUTE, b"\0\0")) == 0


def test_a_death_is_written_into_the_headers() -> None:
    made = H.with_(H.make(ROUTE, FULL), attempts=3)
    dead = H.with_death(made, Death("q", "expired", 5999))
    properties = shown(H.parts(dead)[1])
    (death,) = properties.headers["x-death"]
    assert (death["exchange"], death["routing-keys"]) == ("ex", ["key"])
    assert (death["original-expiration"], death["count"]) == ("5000", 1)
    assert properties.expiration is None
    assert (properties.headers["a"], properties.priority, properties.user_id) == (1, 7, "guest")
    assert H.attempts(dead) == 3
    assert H.deaths(dead) == [Death("q", "expired", 5000)]
    assert H.first_death(dead) == ("q", "expired")
    assert H.parts(dead)[0] == ADDRESS
    assert (H.deaths(made), H.first_death(made)) == ([], None)


def test_the_attempts_of_deaths_are_kept_before_the_address() -> None:
    made = H.with_(H.make(ROUTE, FULL), priority=9)
    dead = H.with_death(made, Death("q", "delivery_limit", 5999, 3))
    assert dead[:8] == b"\x4a\x09\0\x04\0\0\0\x03"
    assert dead[8:].startswith(ADDRESS)
    assert (H.priority(dead), H.deaths(dead)) == (9, [Death("q", "delivery_limit", 5000, 3)])
    props = H.parts(dead)[1]
    (seen,) = shown(props).headers["x-death"]
    assert "attempts" not in seen
    (told,) = shown(H.props_with_attempts(dead, props)).headers["x-death"]
    assert told == {**seen, "attempts": 3}
    again = H.with_death(H.with_(dead, attempts=2), Death("r", "rejected", 5999, 4))
    assert (H.attempts(again), [each.attempts for each in H.deaths(again)]) == (2, [4, 3])
    moved = H.readdressed(again, b"x", b"k")
    assert H.deaths(moved) == H.deaths(again)
    props = H.parts(made)[1]
    assert H.props_with_attempts(made, props) is props


def test_deaths_of_a_box_tell_their_attempts_to_those_that_ask() -> None:
    plain = PLAIN.with_death(b"", Death("q", "delivery_limit", 5000, 3))
    (seen,) = shown(H.parts(plain, "dead")[1]).headers["x-death"]
    assert "attempts" not in seen
    (told,) = shown(H.props_with_attempts(plain, H.parts(plain, "dead")[1])).headers["x-death"]
    assert told["attempts"] == 3
    dead = H.with_death(plain, Death("r", "expired", 5000))
    assert [each.attempts for each in H.deaths(dead)] == [0, 3]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_header_that_ends_within_its_deaths_is_noticed(n: int) -> None:
    with pytest.raises(HeaderError, match="ends within its deaths"):
        H.parts(b"\x0a\0\x08" + bytes(4 + n))


def test_properties_without_headers_get_some() -> None:
    dead = H.with_death(H.make(ROUTE, b"\0\0"), Death("q", "maxlen", 5999))
    assert shown(H.parts(dead)[1]).headers["x-first-death-reason"] == "maxlen"


def test_headers_that_are_damaged_count_as_none() -> None:
    damaged = H.make(ROUTE, b"\x28\x00\x00\x00\x00\x03\x09ab\x05")
    assert (H.deaths(damaged), H.keys(damaged), H.priority(damaged)) == ([], [b"key"], 5)
    dead = H.with_death(damaged, Death("q", "expired", 1000))
    assert H.deaths(dead) == [Death("q", "expired", 1000)]
    assert H.priority(dead) == 5


@pytest.mark.parametrize("props", [b"\xff\xff", b"\x80\x00\x09", b"\x20\x00\xff\xff\xff\xffab"])
def test_damaged_properties_never_raise(props: bytes) -> None:
    damaged = H.make(ROUTE, props)
    assert H.with_death(damaged, Death("q", "expired", 1000)) == damaged
    assert (H.deaths(damaged), H.first_death(damaged), H.priority(damaged)) == ([], None, 0)
    assert H.keys(damaged) == [b"key"]
    assert H.parts(H.readdressed(damaged, b"d", b"k")) == (b"\x01d\x01k", props)
    assert H.delivered_props(props, 3) == props


def test_a_new_address_with_the_old_keys() -> None:
    made = H.make(ROUTE, props_of(headers={"CC": ["c"]}))
    made = H.with_hidden(made, [b"b"])
    moved = H.readdressed(made, b"dlx", None)
    assert split_address(H.parts(moved)[0]) == (b"dlx", b"key")
    assert H.keys(moved) == [b"key", b"c", b"b"]
    assert H.parts(moved)[1] == H.parts(made)[1]


def test_a_new_address_with_one_key() -> None:
    made = H.with_hidden(H.make(ROUTE, props_of(headers={"CC": ["c"], "a": 5})), [b"b"])
    moved = H.readdressed(H.with_(made, priority=4), b"", b"dead")
    assert split_address(H.parts(moved)[0]) == (b"", b"dead")
    assert H.keys(moved) == [b"dead"]
    assert shown(H.parts(moved)[1]).headers == {"a": 5}
    assert H.priority(moved) == 4


def test_deliveries_that_are_not_the_first_say_so() -> None:
    assert shown(H.delivered_props(FULL, 4)).headers == {"a": 1, "x-delivery-count": 4}
    again = H.delivered_props(H.delivered_props(b"\0\0", 4), 5)
    assert shown(again).headers == {"x-delivery-count": 5}


# ---- headers of the embedded library ---------------------------------------------------------


def test_nothing_is_a_message_of_the_default_exchange() -> None:
    assert H.parts(b"", "jobs") == (b"\x00\x04jobs", b"\0\0")
    assert (H.attempts(b""), H.priority(b""), H.expiry_ms(b"")) == (0, 0, 0)
    assert (H.deaths(b""), H.first_death(b"")) == ([], None)
    assert H.with_(b"") == b""


def test_a_header_of_the_library_is_read() -> None:
    plain = PLAIN.with_values(b"", {"text": "ü", "n": -5, "b": b"\xff", "yes": True, "real": 0.5})
    plain = PLAIN.with_(plain, attempts=3, priority=4, expiry_ms=99)
    plain = PLAIN.with_death(plain, Death("old", "delivery_limit", 7000, 5))
    assert (H.attempts(plain), H.priority(plain), H.expiry_ms(plain)) == (3, 4, 99)
    assert H.deaths(plain) == [Death("old", "delivery_limit", 7000, 5)]
    assert H.first_death(plain) == ("old", "delivery_limit")
    changed = H.with_(plain, attempts=4)
    assert PLAIN.attempts(changed) == 4
    address, props = H.parts(plain, "jobs")
    assert split_address(address) == (b"", b"jobs")
    properties = shown(props)
    assert properties.priority == 4
    assert properties.headers["text"] == "ü"
    assert (properties.headers["n"], properties.headers["yes"]) == (-5, True)
    assert properties.headers["b"] == bytearray(b"\xff")
    assert properties.headers["x-death"][0]["queue"] == "old"
    made = H.amqp(plain, "jobs")
    assert (H.attempts(made), H.priority(made), H.expiry_ms(made)) == (3, 4, 99)
    assert H.deaths(made) == H.deaths(plain)
    assert H.amqp(made, "other") is made


def test_it_dies_as_a_message_of_the_broker() -> None:
    dead = H.with_death(b"", Death("jobs", "rejected", 5000, 1))
    (death,) = shown(H.parts(dead)[1]).headers["x-death"]
    assert (death["exchange"], death["routing-keys"]) == ("", ["jobs"])
    assert H.keys(dead) == [b"jobs"]


# ---- bytes that are none ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "damaged",
    [b"\x03abcdef", b"\x02", b"\x02\xffabcdefgh", b"\x02\x01a\xffab", b"\x02\x00\x01a\x00",
     b"\xf2abcd", b"\x82\xff\xff\x00\x00\x00\x00\x00", b"\x12\x00\x00\x00\x00\x00"],
)  # fmt: skip
def test_no_header(damaged: bytes) -> None:
    with pytest.raises(HeaderError):
        H.parts(damaged)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_told(data: bytes) -> None:
    try:
        address, props = H.parts(data, "q")
    except HeaderError:
        return
    exchange, key = split_address(address)
    assert len(address) == len(exchange) + len(key) + 2
    assert len(props) >= 2
    dead = H.with_death(data, Death("q", "expired", 1000))
    moved = H.readdressed(dead, b"d", b"k")
    assert H.keys(moved) == [b"k"]
    assert H.deaths(dead) == H.deaths(moved)
