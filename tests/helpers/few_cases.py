"""Of a test with many cases, the few that between them have the most values of its parameters.

The uncompiled lane of `make test` runs these: what differs between the two builds is a line of the
code, and one case that passes through it shows that. All cases are run compiled.
"""

from collections.abc import Iterable, Iterator

import pytest

Value = tuple[str, int]  # name of a parameter, and the identity of its value


def few_cases(items: Iterable[pytest.Item], most: int) -> Iterator[pytest.Item]:
    """At most so many of each test function, by choice the same each time."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        yield from cases if len(cases) <= most else _most_values(cases, most)


def _most_values(cases: list[pytest.Item], most: int) -> Iterator[pytest.Item]:
    """One after the other those with the most values that none before it had."""
    left = {case: _values_of(case) for case in cases}
    for _ in range(most):
        best = max(left, key=lambda case: len(left[case]))
        seen = left.pop(best)
        left = {case: values - seen for case, values in left.items()}
        yield best


def _values_of(case: pytest.Item) -> set[Value]:
    """The values of its parameters, those of fixtures too."""
    call = getattr(case, "callspec", None)
    return set() if call is None else {(name, id(value)) for name, value in call.params.items()}
