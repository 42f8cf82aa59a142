"""The contract of a BackingQueue, asked of the VariableQueue in every combination that matters:
policy, mode, limit, whether the checkpoint keeps small queues in sections, where bodies are."""

import pytest

from penstock.queues.backing_queue import UNLIMITED
from tests.contracts.backing_queue import BackingQueueContract
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import Opener
from tests.helpers.variable_queues import LIMIT, opens

# policy, mode, limit in bytes, sections, body bytes
COMBINATIONS = {
    "unlimited": ("ratio", "default", UNLIMITED, False, 0),
    "unlimited-sections-stored": ("ratio", "default", UNLIMITED, True, STORED),
    "zero": ("ratio", "default", 0, False, 0),
    "zero-stored": ("ratio", "default", 0, False, STORED),
    "zero-sections": ("ratio", "default", 0, True, 0),
    "zero-eager": ("eager", "default", 0, False, 0),
    "small": ("ratio", "default", LIMIT, False, 0),
    "small-stored": ("ratio", "default", LIMIT, False, STORED),
    "small-sections": ("ratio", "default", LIMIT, True, 0),
    "small-eager": ("eager", "default", LIMIT, False, 0),
    "small-eager-sections-stored": ("eager", "default", LIMIT, True, STORED),
    "unlimited-eager": ("eager", "default", UNLIMITED, False, 0),
    "zero-even": ("even", "default", 0, False, 0),
    "small-even": ("even", "default", LIMIT, False, 0),
    "small-even-sections-stored": ("even", "default", LIMIT, True, STORED),
    "lazy": ("ratio", "lazy", UNLIMITED, False, 0),
    "lazy-small-stored": ("ratio", "lazy", LIMIT, False, STORED),
    "lazy-eager-sections": ("eager", "lazy", LIMIT, True, 0),
    "lazy-sections-stored": ("ratio", "lazy", 0, True, STORED),
}


@pytest.mark.parametrize("combination", COMBINATIONS)
class TestVariableQueue(BackingQueueContract):
    @pytest.fixture
    def rig(self, combination: str) -> EngineRig:
        return EngineRig(sections=COMBINATIONS[combination][3])

    @pytest.fixture
    def body_bytes(self, combination: str) -> int:
        return COMBINATIONS[combination][4]

    @pytest.fixture
    def opens(self, combination: str) -> Opener:
        policy, mode, limit, _, _ = COMBINATIONS[combination]
        return opens(policy=policy, mode=mode, limit=limit)
