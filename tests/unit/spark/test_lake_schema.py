"""What fits a table of a lake, what is added to it, how it is divided; all as Arrow's types."""

import pytest

pa = pytest.importorskip("pyarrow")

from penstock.spark.lake_table import (  # noqa: E402 - only where Arrow is
    Division,
    MisfitError,
    added_fields,
    divisions_of,
    same_divisions,
)

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")), ("d", pa.decimal128(10, 2)),
        ("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.struct([("b", pa.float64())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)  # fmt: skip


def added(*fields: object) -> list[str]:
    found = added_fields(TABLE, pa.schema([("id", pa.int64()), *fields]), "delta t")
    return [field.name for field in found]


def test_what_fits_adds_nothing() -> None:
    assert added() == []
    assert added(
        ("n", pa.int8()), ("name", pa.large_string()), ("at", pa.timestamp("us", tz="CET")),
        ("d", pa.decimal128(7, 2)), ("s", pa.struct([])),
        ("l", pa.list_(pa.struct([("b", pa.float32())]))),
        ("m", pa.map_(pa.string(), pa.int32())),
    ) == []  # fmt: skip


def test_columns_and_fields_of_structs_are_added() -> None:
    assert added(("more", pa.date32()), ("s", pa.struct([("z", pa.int8())]))) == ["more", "s"]
    assert added(("l", pa.list_(pa.struct([("c", pa.string())])))) == ["l"]
    assert added(("m", pa.map_(pa.string(), pa.int64())), ("n", pa.int32())) == []


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (("n", pa.int64()), "column 'n' is int64, and int32 in delta t: a column keeps its type"),
        (("n", pa.string()), "column 'n' is string, and int32 in"),
        (("at", pa.timestamp("us")), "column 'at' is timestamp[us], and timestamp[us, tz=UTC] in"),
        (("d", pa.decimal128(12, 2)), "column 'd' is decimal128(12, 2), and decimal128(10, 2)"),
        (("s", pa.int64()), "column 's' is int64, and struct<a: int64> in"),
        (("s", pa.struct([("a", pa.string())])), "column 's.a' is string, and int64 in"),
        (("l", pa.list_(pa.struct([("b", pa.string())]))), "column 'l.element.b' is string"),
        (("m", pa.map_(pa.string(), pa.string())), "column 'm.value' is string, and int64"),
        (("Name", pa.string()), "column 'Name': delta t has 'name': write it like that"),
        (("x", pa.null()), "column 'x' has no type: cast its null to one"),
        (("ID", pa.int64()), "two columns have the name 'ID'"),
    ],
)
def test_a_misfit_names_the_column(field: object, told: str) -> None:
    with pytest.raises(MisfitError) as caught:
        added(field)
    assert told in str(caught.value)


def test_what_is_never_null_must_come() -> None:
    with pytest.raises(MisfitError, match="column 'id' of delta t is never null, and no row has i"):
        added_fields(TABLE, pa.schema([("n", pa.int32())]), "delta t")


def test_divisions() -> None:
    texts = ["month", "day(at)", "days(at)", "bucket(16, id)", "truncate( 3 ,name)", "identity(n)"]
    found = divisions_of(texts)
    assert found == (
        Division("month"), Division("at", "day"), Division("at", "day"),
        Division("id", "bucket", 16), Division("name", "truncate", 3), Division("n"),
    )  # fmt: skip
    assert [str(one) for one in found] == [
        "month", "day(at)", "day(at)", "bucket(16, id)", "truncate(3, name)", "n",
    ]  # fmt: skip
    for text in ("week(at)", "bucket(at)", "day(3, at)", "day(at", "bucket(0, at)"):
        with pytest.raises(MisfitError, match="expected a column, year"):
            Division.of(text)
    with pytest.raises(MisfitError, match=r"day\(at\): Delta takes column names only"):
        divisions_of(texts, has_transforms=False)


def test_a_table_keeps_its_divisions() -> None:
    same_divisions((), (Division("a"),), "delta t")
    same_divisions((Division("a"),), (Division("a"),), "delta t")
    with pytest.raises(
        MisfitError, match="given a, expected nothing: delta t is already divided by that"
    ):
        same_divisions((Division("a"),), (), "delta t")
