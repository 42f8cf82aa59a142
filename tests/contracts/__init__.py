"""What any implementation of a seam must do, asked of each by its unit tests."""

import pytest

# Contracts are no test modules, so pytest would not explain their assertions unasked.
pytest.register_assert_rewrite(
    "tests.contracts.filesystem",
    "tests.contracts.box",
    "tests.contracts.box_life",
    "tests.contracts.backing_queue",
    "tests.contracts.backing_queue_log",
    "tests.contracts.backing_queue_pending",
)
