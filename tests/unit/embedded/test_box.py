"""The blocking box: the contract, and what only it does."""

from tests.contracts.box import QueueContract
from tests.contracts.box_life import BoxContract


class TestQueues(QueueContract):
    pass


class TestBox(BoxContract):
    pass
