"""Records and sections of batches, and the table that both live work and replay change."""

import pytest

from penstock.storage.log.record import RecordError
from penstock.storage.pages import batches
from penstock.storage.pages.batches import (
    ADOPTED,
    DECIDED,
    DECIDED_BY,
    FORGOTTEN,
    PROGRESS,
    Batch,
    BatchFacts,
    BatchRecord,
    BatchTable,
    QueryOwner,
    StagedPage,
    decode_batch,
    decode_section,
    encode_section,
    parse_name,
)
from tests.helpers.golden import golden, hexdump

PAGES = [
    StagedPage("7.0.0-00000001.0.page", 0xFEDCBA9876543210, 3, 400),
    StagedPage("7.1.0-00000002.0.page", 5, 2, 300),
]
QUERY = "a query/ü"
FACTS = BatchFacts(QueryOwner("ann\udcff", '{"queue":"q"}'), 5, 0x1EDCBA9876543210, True)


def decided(number: int = 7, query: str = QUERY) -> BatchRecord:
    return BatchRecord(query, number, 123, "{}", tuple(PAGES))


def table() -> BatchTable:
    found = BatchTable()
    found.apply(DECIDED, decided())
    return found


def progress(page: int, frame: int, number: int = 7) -> BatchRecord:
    return BatchRecord(QUERY, number, page=page, frame=frame)


# ---- records -------------------------------------------------------------------------------------

RECORDS = {
    DECIDED: (decided(), 2),
    DECIDED_BY: (decided()._replace(facts=FACTS), 2),
    PROGRESS: (progress(1, 9), 0),
    ADOPTED: (BatchRecord(QUERY, 7, 55, page=1, stream=4, base=1 << 40), 0),
    FORGOTTEN: (BatchRecord(QUERY, 7), 0),
}
DATA = {
    flags: (batches.encode_batch(record, flags), count, record)
    for flags, (record, count) in RECORDS.items()
}


@pytest.mark.parametrize("flags", DATA)
def test_a_record_is_read_as_it_was_written(flags: int) -> None:
    data, count, wanted = DATA[flags]
    assert decode_batch(data, flags, count) == wanted


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (DECIDED, "decided"),
        (PROGRESS, "progress"),
        (ADOPTED, "adopted"),
        (FORGOTTEN, "forgotten"),
        (DECIDED_BY, "decided_by"),
    ],
)
def test_golden_bytes(flags: int, name: str) -> None:
    golden(f"record_batch_{name}", hexdump(DATA[flags][0]))


@pytest.mark.parametrize("flags", DATA)
def test_a_record_of_another_length_is_refused(flags: int) -> None:
    data, count, _ = DATA[flags]
    for length in range(len(data)):
        with pytest.raises(RecordError, match="BATCH"):
            decode_batch(data[:length], flags, count)
    with pytest.raises(RecordError, match=f"data of {len(data)} bytes expected"):
        decode_batch(data + b"\0", flags, count)


def test_unknown_flags_and_texts_that_are_none_are_refused() -> None:
    with pytest.raises(RecordError, match="unknown flags 0x05"):
        decode_batch(DATA[FORGOTTEN][0], 5, 0)
    data = batches.encode_batch(BatchRecord("q", 1), FORGOTTEN)
    with pytest.raises(RecordError, match="utf-8"):
        decode_batch(data[:-1] + b"\xff", FORGOTTEN, 0)


@pytest.mark.parametrize(
    ("query", "number", "target", "text"),
    [
        ("", 1, "{}", "the query's name has 0 bytes"),
        ("q" * 70_000, 1, "{}", "the query's name has 70000 bytes"),
        ("q", 1, "t" * 70_000, "the target has 70000 bytes"),
        ("q", -1, "{}", "not -1"),
        ("q", 1 << 64, "{}", "from 0 to"),
    ],
)
def test_what_does_not_fit_is_refused(query: str, number: int, target: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        batches.encode_batch(BatchRecord(query, number, target=target), DECIDED)


# ---- the table -----------------------------------------------------------------------------------


def test_a_batch_goes_on_and_is_done_behind_its_last_page() -> None:
    found = table()
    batch = found.by_query[QUERY]
    assert (batch.rows, batch.bytes, batch.page_count) == (5, 700, 2)
    found.apply(PROGRESS, progress(0, 2))
    assert (batch.page, batch.frame, batch.current.name) == (0, 2, PAGES[0].name)
    found.apply(PROGRESS, progress(0, 3))
    assert (batch.page, batch.frame, batch.is_done) == (1, 0, False)
    assert not found.dead
    found.apply(ADOPTED, progress(1, 0))
    assert (batch.page, batch.frame, batch.is_done) == (2, 0, True)
    assert found.dead == [(QUERY, page.name) for page in PAGES]
    assert not batch.pages
    assert (batch.rows, batch.bytes, found.last_number(QUERY)) == (5, 700, 7)


@pytest.mark.parametrize(
    ("flags", "one", "text"),
    [
        (PROGRESS, progress(0, 0), "is at page 0 frame 1 of 2 pages, and continues at 0, 0"),
        (PROGRESS, progress(3, 0), "continues at 3, 0"),
        (PROGRESS, progress(0, 2, 8), "batch 8 of .* continues, known is batch 7"),
        (PROGRESS, BatchRecord("other", 7), "known is no batch"),
        (FORGOTTEN, BatchRecord("other", 7), "known is no batch"),
        (DECIDED, decided(8), "after batch 7, which is not done"),
        (DECIDED, decided(7), "batch 7 of .* after batch 7"),
    ],
)
def test_what_cannot_be_is_refused(flags: int, one: BatchRecord, text: str) -> None:
    found = table()
    found.apply(PROGRESS, progress(0, 1))
    with pytest.raises(ValueError, match=text):
        found.apply(flags, one)
    batch = found.by_query[QUERY]
    assert (batch.number, batch.page, batch.frame) == (7, 0, 1)


def test_a_newer_batch_follows_one_that_is_done() -> None:
    found = table()
    found.apply(PROGRESS, progress(2, 0))
    found.apply(DECIDED, decided(9))
    assert found.last_number(QUERY) == 9
    found.apply(PROGRESS, progress(2, 0, 9))
    with pytest.raises(ValueError, match="after batch 9, which is done"):
        found.apply(DECIDED, decided(8))


def test_what_is_forgotten_leaves_its_pages_to_be_deleted() -> None:
    found = table()
    found.apply(FORGOTTEN, BatchRecord(QUERY, 7))
    assert not found.by_query
    assert len(found.dead) == 2
    assert found.last_number(QUERY) == -1


# ---- sections ------------------------------------------------------------------------------------


def same(one: Batch, other: Batch) -> bool:
    names = [name for name in Batch.__slots__ if name != "encoded"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_a_section_is_read_as_it_was_written() -> None:
    found = table()
    batch = found.by_query[QUERY]
    found.apply(PROGRESS, progress(1, 1))
    batch.holds = {3: 1 << 50, 9: 0}
    data = encode_section(batch)
    golden("checkpoint_batch", hexdump(data))
    assert same(decode_section(data), batch)
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode_section(data[:length])
    with pytest.raises(RecordError):
        decode_section(data + b"\0")


def test_a_section_with_facts_is_read_as_it_was_written() -> None:
    found = BatchTable()
    found.apply(DECIDED_BY, DATA[DECIDED_BY][2])
    batch = found.by_query[QUERY]
    batch.holds = {3: 1 << 50}
    data = encode_section(batch)
    golden("checkpoint_batch_by", hexdump(data))
    assert same(decode_section(data), batch)
    batch.facts = None
    whole = len(encode_section(batch))
    for length in range(len(data)):
        if length == whole:  # as a version without facts would have written it
            assert same(decode_section(data[:length]), batch)
            continue
        with pytest.raises(RecordError):
            decode_section(data[:length])
    with pytest.raises(RecordError):
        decode_section(data + b"\0")


def test_facts_that_do_not_fit_are_refused() -> None:
    for owner in (QueryOwner("u" * 70_000, "{}"), QueryOwner("u", "t" * 70_000)):
        with pytest.raises(ValueError, match="70000 bytes"):
            batches.encode_batch(
                BatchRecord("q", 1, 1, "{}", facts=BatchFacts(owner, 0, 0)), DECIDED_BY
            )


def test_a_section_is_made_anew_when_its_batch_changes() -> None:
    found = table()
    (first,) = found.capture()
    assert found.capture()[0] is first
    for page, frame in ((0, 1), (0, 2), (1, 1), (2, 0)):
        found.apply(PROGRESS, progress(page, frame))
        (data,) = found.capture()
        assert same(decode_section(data), found.by_query[QUERY])


# ---- names ---------------------------------------------------------------------------------------


def test_the_name_of_a_staged_page_says_what_it_is() -> None:
    assert parse_name("12.3.0-89abcdef.4.page") == (12, 3, "0-89abcdef", 4)
    assert batches.is_name("12.3.0-89abcdef.4.page")


@pytest.mark.parametrize(
    "name",
    ["", "1.2.a.3", "1.2.a.3.idx", "1.2.a/b.3.page", "../1.2.a.3.page", "1.2..3.page",
     "-1.2.a.3.page", "1.2.a.3.page\n", "1.2.a.3.page.page", "1.2.é.3.page"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(name: str) -> None:
    assert not batches.is_name(name)
    with pytest.raises(ValueError, match="the name of a staged page is"):
        parse_name(name)
