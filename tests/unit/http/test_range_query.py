import pytest
from starlette.datastructures import QueryParams

from penstock.http.ranges import RANGE_NAMES, RangeQuery, range_query
from penstock.http.requests import HttpError, given


def parsed(text: str) -> RangeQuery:
    return range_query(given(QueryParams(text), RANGE_NAMES))


def test_nothing_is_needed() -> None:
    assert parsed("") == RangeQuery(0, None, None, None, None)


def test_all_of_it() -> None:
    assert parsed("partition=3&from=10&to=20&limit=5") == RangeQuery(3, 10, 20, None, 5)


@pytest.mark.parametrize(
    ("since", "us"),
    [
        ("1000", 1000),
        ("-5", -5),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:01.000002%2B01:00", 1_000_002),
        ("1970-01-02", 86_400_000_000),
        ("1970-01-01 00:00:01", 1_000_000),
    ],
)
def test_a_time(since: str, us: int) -> None:
    assert parsed(f"since={since}").since_us == us


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("form=1", "unknown parameter 'form', expected partition, from, to, since, limit"),
        ("from=1&from=2", "'from' was given twice"),
        ("from=-1", "'from': given '-1', expected a whole number from 0"),
        ("from=", "'from': given ''"),
        ("to=1.5", "'to': given '1.5'"),
        ("limit=9223372036854775808", "'limit'"),
        ("partition=2147483648", "'partition'"),
        ("from=%D9%A1", "'from'"),  # a digit, but none of ours
        ("since=yesterday", "'since': given 'yesterday', expected a time such as"),
        ("since=1970-01-01T01:00:01+01:00", "%2B"),
        ("since=1&from=1", "exclude each other"),
    ],
)
def test_what_is_wrong_is_said(query: str, told: str) -> None:
    with pytest.raises(HttpError) as caught:
        parsed(query)
    assert caught.value.status == 400
    assert told in caught.value.reason
