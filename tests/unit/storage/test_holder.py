"""DictHolder: what is in RAM of one queue, and what a checkpoint still has to write."""

from penstock.message import Entry, QueuedMessage
from penstock.storage.index.queue_index import DictHolder, unwritten


def filled(*seqs: int, keeps: bool = False) -> DictHolder:
    holder = DictHolder(keeps=keeps)
    for seq in seqs:
        holder.add(Entry(seq, QueuedMessage(seq, b"", b"x", 1, 0)))
    return holder


def seqs(entries: list[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_get_answers_with_what_is_in_ram() -> None:
    holder = filled(1, 2)
    found = holder.get(2)
    assert found is not None
    assert found.seq == 2
    assert holder.get(3) is None


def test_pop_takes_the_entry_out() -> None:
    holder = filled(1)
    taken = holder.pop(1)
    assert taken is not None
    assert (taken.seq, holder.get(1), holder.pop(1)) == (1, None, None)


def test_drop_takes_a_run_of_which_some_may_not_be_there() -> None:
    holder = filled(1, 2, 4, 5)
    holder.drop(2, 3)
    assert sorted(holder.entries) == [1, 5]


def test_materialise_gives_what_is_on_no_slot_below_the_cut_ascending() -> None:
    holder = filled(5, 1, 3, 9)
    holder.entries[3].on_slot = True
    assert seqs(holder.materialise(9)) == [1, 5]
    assert sorted(holder.entries) == [1, 3, 5, 9]


def test_materialised_entries_leave_ram_unless_they_are_kept() -> None:
    for keeps in (False, True):
        holder = filled(1, 2, 3, keeps=keeps)
        entries = holder.materialise(3)
        for entry in entries:
            entry.on_slot = True
        holder.materialised(entries)
        assert sorted(holder.entries) == ([1, 2, 3] if keeps else [3])
        assert seqs(holder.materialise(10)) == [3]


def test_a_slot_is_for_what_is_persistent_comes_before_the_cut_and_has_none() -> None:
    message = QueuedMessage(1, b"", b"x", 1, 0)
    transient = QueuedMessage(1, b"", b"x", 1, 0, persistent=False)
    entries = [Entry(5, message), Entry(4, message), Entry(3, transient), Entry(2, message, True)]
    assert seqs(unwritten(entries, 5)) == [4]


def test_candidates_of_a_dict_come_all_at_once_descending() -> None:
    holder = filled(5, 1, 3, 9)
    assert seqs(holder.candidates(9, 1)) == [5, 3, 1]
    assert holder.unsettled() == []
