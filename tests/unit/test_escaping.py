import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.escaping import escaped, one_line, unescaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("orders.new é 中", "orders.new é 中"),
        ("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"),
        ("\x1b[2J\x9b", "\\x1b[2J\\xc2\\x9b"),
        ("right\u202eleft", "right\\xe2\\x80\\xaeleft"),
        ("\udcff", "\\xff"),
        ("\ud800", "\\xed\\xa0\\x80"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_is_not_printable_is_shown_as_bytes(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("plain", "plain"),
        ("a\\x0ab", "a\nb"),
        ("\\xff", "\udcff"),
        ("\\xc3\\xa9", "é"),
        ("\\\\x41", "\\x41"),
        ("\\x4", "\\x4"),
        ("c:\\dir", "c:\\dir"),
    ],
)
def test_names_can_be_given_by_their_bytes(text: str, name: str) -> None:
    assert unescaped(text) == name


@given(st.binary(max_size=40))
def test_any_name_comes_back(data: bytes) -> None:
    name = data.decode("utf-8", "surrogateescape")
    assert escaped(name).isprintable()
    assert unescaped(escaped(name)) == name
