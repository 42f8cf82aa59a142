"""The contract, asked of the ReferenceQueue: what the others are compared with keeps it itself."""

import pytest

from tests.contracts.backing_queue import BackingQueueContract
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import Opener
from tests.helpers.reference_queue import open_reference


@pytest.mark.parametrize("sections", [True, False], ids=["sections", "files"])
@pytest.mark.parametrize("body_bytes", [0, STORED], ids=["small", "stored"])
class TestReferenceQueue(BackingQueueContract):
    @pytest.fixture
    def rig(self, sections: bool) -> EngineRig:
        return EngineRig(sections=sections)

    @pytest.fixture
    def opens(self) -> Opener:
        return open_reference
