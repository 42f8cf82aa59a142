"""PlainHeaders: every part comes back alone and together, and bad bytes say what was expected."""

import pytest

from penstock.queues.headers import REASONS, Death, HeaderError, HeaderValue, PlainHeaders

H = PlainHeaders()
VALUES: dict[str, HeaderValue] = {
    "text": "über", "bytes": b"\x00\xff", "whole": -(1 << 63), "real": 0.5, "yes": True,
    "no": False, "": "",
}  # fmt: skip


def full() -> bytes:
    """A header with everything in it."""
    header = H.with_values(b"", VALUES)
    for i, reason in enumerate(REASONS):
        header = H.with_death(header, Death(f"q{i}", reason, 1000 + i, i))
    return H.with_(header, attempts=7, priority=9, expiry_ms=1 << 40)


def test_nothing_is_no_bytes() -> None:
    assert (H.attempts(b""), H.priority(b""), H.expiry_ms(b"")) == (0, 0, 0)
    assert (H.deaths(b""), H.first_death(b""), H.values(b"")) == ([], None, {})
    assert H.with_(b"") == H.with_values(b"", {}) == b""


def test_what_is_set_and_taken_away_leaves_nothing() -> None:
    header = H.with_(b"", attempts=1, priority=2, expiry_ms=3)
    assert H.with_(header, attempts=0, priority=0, expiry_ms=0) == b""


def test_attempts_cost_six_bytes() -> None:
    header = H.with_(b"", attempts=3)
    assert header == b"\x01\x01\x00\x00\x00\x03"
    assert H.attempts(header) == 3


def test_all_parts_together() -> None:
    header = full()
    assert (H.attempts(header), H.priority(header), H.expiry_ms(header)) == (7, 9, 1 << 40)
    assert H.values(header) == VALUES
    assert {k: type(v) for k, v in H.values(header).items()} == {
        k: type(v) for k, v in VALUES.items()
    }
    assert [d.queue for d in H.deaths(header)] == ["q3", "q2", "q1", "q0"]
    assert H.first_death(header) == ("q0", "rejected")


def test_one_part_changes_alone() -> None:
    header = H.with_(full(), attempts=8)
    assert H.attempts(header) == 8
    assert H.with_(header, attempts=7) == full()


def test_deaths_are_counted_per_queue_and_reason() -> None:
    header = H.with_death(b"", Death("a", "expired", 10, 1))
    header = H.with_death(header, Death("b", "rejected", 20, 2))
    header = H.with_death(header, Death("a", "rejected", 30, 3))
    header = H.with_death(header, Death("a", "expired", 40, 4))
    assert H.deaths(header) == [
        Death("a", "expired", 10, 4, count=2),
        Death("a", "rejected", 30, 3),
        Death("b", "rejected", 20, 2),
    ]
    assert H.first_death(header) == ("a", "expired")


def test_the_first_death_stays_the_first_when_it_comes_again() -> None:
    header = H.with_death(b"", Death("a", "expired", 10))
    header = H.with_death(header, Death("b", "maxlen", 20))
    header = H.with_death(header, Death("a", "expired", 30))
    assert [d.queue for d in H.deaths(header)] == ["a", "b"]
    assert H.first_death(header) == ("a", "expired")


def test_a_queue_name_that_is_no_text_comes_back() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    (death,) = H.deaths(H.with_death(b"", Death(name, "expired", 1)))
    assert death.queue == name


def test_every_cut_of_a_header_is_noticed() -> None:
    header = full()
    for n in range(1, len(header)):
        with pytest.raises(HeaderError, match="ends within"):
            H.deaths(header[:n])


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"\x02\x00", "version 2, expected 1"),
        (b"\x01\x80", "flags 0x80, expected some of 0x3f"),
        (b"\x01\x02\x05\x00", "1 bytes too many"),
        (b"\x01\x08\x00\x01q\x04\x00\x00", "reason 4, expected 0 to 3"),
        (b"\x01\x10\x00\x01\x00\x01kz", "type b'z', expected s, b, i, f, t or n"),
    ],
)
def test_bad_bytes_say_what_was_expected(header: bytes, text: str) -> None:
    with pytest.raises(HeaderError, match=text):
        H.values(header)


@pytest.mark.parametrize(
    "header", [b"\x02\x01\x00\x00\x00\x03", b"\x01\x81\x00\x00\x00\x03", b"\x01"]
)
def test_bad_bytes_are_noticed_when_attempts_are_asked_for(header: bytes) -> None:
    with pytest.raises(HeaderError):
        H.attempts(header)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"k": 1 << 63}, "header 'k': 9223372036854775808 does not fit into 64 bits"),
        ({"k": None}, "header 'k' is of type NoneType, expected str, bytes, int, float or bool"),
        ({5: "v"}, "a header's name is a str, not int"),
        ({"k" * 65536: 1}, "a name of 65536 bytes, expected at most 65535"),
        ({str(i): 1 for i in range(65536)}, "65536 headers, expected at most 65535"),
    ],
)
def test_what_does_not_fit_is_said(values: dict[str, HeaderValue], text: str) -> None:
    with pytest.raises(HeaderError, match=text):
        H.with_values(b"", values)
