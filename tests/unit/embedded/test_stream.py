"""Streams of a box in a directory, for threads: the contract, and what only it does."""

from tests.contracts.stream import StreamContract
from tests.contracts.stream_life import StreamLifeContract


class TestStreams(StreamContract):
    pass


class TestLife(StreamLifeContract):
    pass
