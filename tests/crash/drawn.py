"""The part of what crash tests could do that `make test` does; `make crash` does all of it.

How much is wanted: PENSTOCK_CRASH_IMAGES (tests/conftest.py).
"""

from collections.abc import Iterable

from tests.conftest import IMAGES_OF_MAKE_CRASH, crash_images_wanted
from tests.crash.mutants import Mutant

IS_WHOLE = crash_images_wanted() >= IMAGES_OF_MAKE_CRASH


def drawn_mutants(mutants: Iterable[Mutant]) -> list[Mutant]:
    """All of them, or of each rule the first, which is soon noticed: that its text still stands in
    the source is looked at for each."""
    mutants = list(mutants)
    if IS_WHOLE:
        return mutants
    return list({mutant.rule: mutant for mutant in reversed(mutants)}.values())[::-1]
