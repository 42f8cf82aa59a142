"""MessageFactory: ids begin anew with each start, and never before recovery ended."""

import pytest

from penstock.errors import StorageError
from penstock.message import START_MAX, START_SHIFT, Entry, MessageFactory, QueuedMessage


def test_a_message_is_persistent_without_expiry_and_in_no_store_unless_said() -> None:
    message = QueuedMessage(7, b"h", b"body", 4, 99)
    assert (message.id, message.header, message.body, message.size) == (7, b"h", b"body", 4)
    assert (message.time, message.expiry_ms, message.store_file) == (99, 0, 0)
    assert message.persistent


def test_the_size_stays_when_the_body_leaves_ram() -> None:
    message = QueuedMessage(7, b"", b"body", 4, 99)
    message.body = None
    assert message.size == 4


def test_an_entry_is_on_no_slot_at_first() -> None:
    message = QueuedMessage(7, b"", b"", 0, 0)
    entry = Entry(3, message)
    assert (entry.seq, entry.message, entry.on_slot) == (3, message, False)


def test_no_id_before_recovery_has_ended() -> None:
    with pytest.raises(StorageError, match="before recovery has ended"):
        MessageFactory().create()


def test_ids_ascend_and_carry_the_number_of_the_start() -> None:
    factory = MessageFactory()
    factory.open(5)
    ids = [factory.create() for _ in range(3)]
    assert ids == [(5 << START_SHIFT) + n for n in (1, 2, 3)]
    assert factory.start == 5


def test_a_start_number_must_be_above_that_of_every_id_seen() -> None:
    factory = MessageFactory()
    factory.seen(6 << START_SHIFT | 17)
    factory.seen(3 << START_SHIFT)
    with pytest.raises(StorageError, match="highest id seen, 6"):
        factory.open(6)
    factory.open(7)
    assert factory.create() > 6 << START_SHIFT | 17


@pytest.mark.parametrize("start", [0, START_MAX + 1])
def test_a_start_number_is_of_24_bits_and_not_zero(start: int) -> None:
    with pytest.raises(StorageError, match="start number"):
        MessageFactory().open(start)


def test_the_last_start_number_is_good() -> None:
    factory = MessageFactory()
    factory.open(START_MAX)
    assert factory.create() < 1 << 64


def test_nothing_is_recovered_after_the_factory_is_open() -> None:
    factory = MessageFactory()
    factory.open(1)
    with pytest.raises(StorageError, match="recovered after ids were handed out"):
        factory.seen(1)
    with pytest.raises(StorageError, match="open already"):
        factory.open(2)
