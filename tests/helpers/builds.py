"""Which build a test is run on.

Calls between compiled modules do not pass through what a test puts in the place of a method, so a
test that injects a failure there says nothing about a compiled build. It is run uncompiled.
"""

import pytest

import penstock

pure_only = pytest.mark.skipif(
    penstock.build_kind() != "pure", reason="a compiled method cannot be replaced"
)
