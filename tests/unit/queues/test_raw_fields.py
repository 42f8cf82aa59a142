"""RawProperties: finds its three properties among any others, and changes only them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.properties import BasicProperties
from penstock.queues import raw_fields
from penstock.queues.raw_fields import EMPTY, PropertiesError, RawProperties

SHORT = st.text(max_size=60)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT, "content_encoding": SHORT,
        "headers": st.dictionaries(SHORT, st.integers(0, 9) | st.text(), max_size=3),
        "delivery_mode": st.sampled_from((1, 2)), "priority": st.integers(0, 255),
        "correlation_id": SHORT, "reply_to": SHORT, "expiration": SHORT, "message_id": SHORT,
        "timestamp": st.integers(0, 1 << 40), "type": SHORT, "user_id": SHORT, "app_id": SHORT,
        "cluster_id": SHORT,
    },
)  # fmt: skip


@given(PROPERTIES)
def test_what_is_found(given_properties: dict[str, Any]) -> None:
    raw = RawProperties(BasicProperties(**given_properties).encode())
    assert raw.priority == given_properties.get("priority", -1)
    expiration = given_properties.get("expiration")
    assert raw.expiration() == (None if expiration is None else expiration.encode())
    names = [name.decode() for name, _ in raw.headers()]
    assert names == list(given_properties.get("headers", {}))


@given(PROPERTIES, st.booleans(), st.booleans())
def test_only_what_is_to_be_changed_is(
    given_properties: dict[str, Any], has_expiration: bool, has_headers: bool
) -> None:
    raw = RawProperties(BasicProperties(**given_properties).encode())
    headers = [(b"new", raw_fields.signed(5))] if has_headers else []
    changed = raw.changed(headers, has_expiration=has_expiration)
    expected = dict(given_properties)
    expected["headers"] = {"new": 5} if has_headers else None
    if not has_expiration:
        expected["expiration"] = None
    assert BasicProperties.decode(changed) == BasicProperties(**expected)
    again = RawProperties(changed)
    assert again.changed(again.headers()) == changed


@given(PROPERTIES, st.data())
def test_what_is_cut_off_is_told_or_not_asked_for(
    given_properties: dict[str, Any], data: st.DataObject
) -> None:
    whole = BasicProperties(**given_properties).encode()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        raw = RawProperties(cut)
    except PropertiesError:
        return
    assert raw.expiration_end <= len(cut)


def test_more_flag_words_are_passed_over() -> None:
    raw = RawProperties(b"\x08\x01\x00\x01\x00\x00\x07rest")
    assert (raw.priority, raw.list_at) == (7, 6)
    changed = raw.changed([(b"a", b"V")])
    assert changed == b"\x28\x01\x00\x01\x00\x00\x00\x00\x00\x03\x01aV\x07rest"


def test_a_damaged_table_counts_as_none() -> None:
    raw = RawProperties(b"\x28\x00\x00\x00\x00\x02\x09a\x07")
    assert (raw.headers(), raw.priority) == ([], 7)
    assert RawProperties(EMPTY).headers() == []


@pytest.mark.parametrize("data", [b"", b"\0", b"\x00\x01", b"\x80\x00", b"\x08\x00", b"\x20\0\0\0"])
def test_no_properties(data: bytes) -> None:
    with pytest.raises(PropertiesError):
        RawProperties(data)
