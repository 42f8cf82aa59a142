"""All scripts, by family. A family is a function that makes them."""

from collections.abc import Callable

from tests.conformance.compared import (
    corpus_arguments,
    corpus_content,
    corpus_messages,
    corpus_methods,
    corpus_permissions,
    corpus_policies,
    corpus_wire,
)
from tests.conformance.compared.script import Script

FAMILIES: tuple[Callable[[], list[Script]], ...] = (
    *corpus_arguments.FAMILIES,
    *corpus_methods.FAMILIES,
    *corpus_messages.FAMILIES,
    *corpus_content.FAMILIES,
    *corpus_wire.FAMILIES,
    *corpus_policies.FAMILIES,
    *corpus_permissions.FAMILIES,
)


def scripts() -> list[Script]:
    """Every script. No two have one id."""
    found = [script for family in FAMILIES for script in family()]
    ids = [script.id for script in found]
    twice = {one for one in ids if ids.count(one) > 1}
    assert not twice, f"two scripts of one id: {sorted(twice)}"
    return found
