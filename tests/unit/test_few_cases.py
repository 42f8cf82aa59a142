"""--cases: of a test with parameters the cases that between them have the most values."""

import itertools

import pytest

from tests.helpers.few_cases import few_cases

KINDS = ("a", "b", "c")
SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_test_with_twelve_cases(kind: str, size: int) -> None:
    assert (kind, size) in itertools.product(KINDS, SIZES)


def test_the_few_differ_in_each_parameter(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--cases"):
        pytest.skip("the cases are few already")
    here = [item for item in request.session.items if item.nodeid.startswith("tests/unit/test_few")]
    all_cases = [item for item in here if "twelve" in item.name]
    if len(all_cases) != len(KINDS) * len(SIZES):
        pytest.skip("was asked for by name, without the others")
    kept = list(few_cases(here, 3))
    chosen = [item.callspec.params for item in kept if "twelve" in item.name]  # type: ignore[attr-defined]
    assert {given["kind"] for given in chosen} == set(KINDS)
    assert len({given["size"] for given in chosen}) == 3
    assert [item for item in here if item not in all_cases] == [
        item for item in kept if item not in all_cases
    ]
