"""Staged pages: written, checked when they are named, swept; never one that is still needed."""

import errno

import pytest

from penstock.errors import CorruptionError, SyncFailedError
from penstock.storage.pages import staging
from penstock.storage.pages.batches import (
    ADOPTED,
    DECIDED,
    BatchRecord,
    BatchTable,
    QueryOwner,
    StagedPage,
)
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    PAGE_HEADER_BYTES,
    PageRecord,
    block_crc,
    check_index,
    decode_blocks,
    decode_frames,
    decode_header,
    decode_row,
    page_seed,
)
from penstock.storage.pages.staging import (
    StagedPageWriter,
    StagingError,
    Sweep,
    check_pages,
    query_directory,
    query_path,
    staged_bytes,
    staging_path,
)
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_batches import rows_of, stage
from tests.helpers.tiny_engine import PATH, make_vhost

QUERY = "q"
S = 1_000_000


@pytest.fixture
def fs() -> FaultyFileSystem:
    found = FaultyFileSystem()
    make_vhost(found)
    return found


def at(page: StagedPage, query: str = QUERY) -> str:
    return f"{query_path(PATH, query)}/{page.name}"


# ---- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_staged_page_is_whole_and_its_index_is_sealed(fs: FaultyFileSystem, chunk: int) -> None:
    rows = rows_of(0, 10, 50)
    page = stage(fs, PATH, QUERY, 3, rows, chunk=chunk, time_us=77)
    data = fs.read(at(page))
    header = decode_header("p", data)
    assert header.is_staged
    assert (header.id, header.number, header.base, header.base_time_us) == (page.page_id, 0, 0, 0)
    found: list[PageRecord] = []
    decode_frames(data, PAGE_HEADER_BYTES, page_seed(page.page_id), 0, 0, 99, 1 << 30, found)
    assert [(r.payload, r.meta, r.time_us) for r in found] == [(*row, 0) for row in rows]
    index = fs.read(at(page)[:-4] + "idx")
    sealed = check_index("i", index)
    assert (sealed.count, sealed.page_bytes, sealed.id) == (10, len(data), page.page_id)
    assert (sealed.first_time_us, sealed.last_time_us) == (77, 77)
    assert decode_row(index, 64) == (64, 50, 0)
    assert (page.rows, page.bytes) == (10, len(data))


def test_the_blocks_of_a_large_page_are_summed(fs: FaultyFileSystem) -> None:
    rows = [(bytes([n]) * 300_001, b"") for n in range(12)]
    page = stage(fs, PATH, QUERY, 0, rows, chunk=5)
    data, index = fs.read(at(page)), fs.read(at(page)[:-4] + "idx")
    crcs = decode_blocks(index, check_index("i", index))
    assert len(crcs) == 4
    for block, crc in enumerate(crcs):
        piece = data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        assert block_crc(page_seed(page.page_id), block, piece) == crc


def test_what_is_synced_survives_a_power_cut(fs: FaultyFileSystem) -> None:
    page = stage(fs, PATH, QUERY, 0, rows_of(0, 3))
    after = fs.crash("lost")
    check_pages(after, PATH, QUERY, 0, [page])
    assert after.read(query_path(PATH, QUERY) + "/.queue_name".replace("queue", "query")) == b"q\n"


def test_nothing_is_staged_twice(fs: FaultyFileSystem) -> None:
    page = stage(fs, PATH, QUERY, 0, rows_of(0, 3))
    before = fs.read(at(page))
    with pytest.raises(FileExistsError):
        stage(fs, PATH, QUERY, 0, rows_of(7, 3))
    assert fs.read(at(page)) == before
    with pytest.raises(ValueError, match="the name of a staged page"):
        StagedPageWriter(fs, query_path(PATH, QUERY), "../x", 1, 1)


def test_what_is_discarded_is_gone(fs: FaultyFileSystem) -> None:
    directory = query_directory(fs, staging_path(PATH), QUERY)
    writer = StagedPageWriter(fs, directory, "0.0.a.0", 5, 1)
    assert len(fs.list(directory)) == 3
    writer.discard()
    writer.discard()
    assert fs.list(directory) == [".query_name"]


def test_the_bytes_that_are_staged_are_counted(fs: FaultyFileSystem) -> None:
    assert staged_bytes(fs, PATH) == {}
    page = stage(fs, PATH, QUERY, 0, rows_of(0, 3))
    index = fs.size(at(page)[:-4] + "idx")
    # A file costs a block at least.
    assert page.bytes < staging.FILE_BYTES_MIN > index
    assert staged_bytes(fs, PATH) == {"": 3 * staging.FILE_BYTES_MIN}


# ---- checking ------------------------------------------------------------------------------------


def test_the_pages_of_a_commit_are_checked(fs: FaultyFileSystem) -> None:
    pages = [stage(fs, PATH, QUERY, 4, rows_of(n * 5, 5), partition=n) for n in range(3)]
    pages.append(stage(fs, PATH, QUERY, 4, rows_of(50, 1), attempt="1-00000002"))
    check_pages(fs, PATH, QUERY, 4, pages)
    check_pages(fs, PATH, QUERY, 4, [])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "4.9.0-00000001.0.page"}, "it is not there"),
        ({"name": "../../CURRENT"}, "expected <batch>"),
        ({"name": "5.0.0-00000001.0.page"}, "of another batch than 4"),
        ({"page_id": 3}, "its token says 0000000000000003, 5 and"),
        ({"rows": 4}, "of 5 rows and"),
        ({"bytes": 99}, "its token says .*, 5 and 99"),
    ],
)
def test_a_token_that_is_not_true_is_refused(
    fs: FaultyFileSystem, change: dict[str, object], text: str
) -> None:
    page = stage(fs, PATH, QUERY, 4, rows_of(0, 5))
    with pytest.raises(StagingError, match=text):
        check_pages(fs, PATH, QUERY, 4, [page._replace(**change)])  # type: ignore[arg-type]


def test_a_page_named_twice_or_damaged_or_not_finished_is_refused(fs: FaultyFileSystem) -> None:
    page = stage(fs, PATH, QUERY, 4, rows_of(0, 5))
    with pytest.raises(StagingError, match="named twice"):
        check_pages(fs, PATH, QUERY, 4, [page, page])
    index = at(page)[:-4] + "idx"
    kept = fs.read(index)
    fs.damage_flip(index, 20, 1)
    with pytest.raises(StagingError, match="does not verify"):
        check_pages(fs, PATH, QUERY, 4, [page])
    fs.unlink(index)
    with pytest.raises(StagingError, match="has no index"):
        check_pages(fs, PATH, QUERY, 4, [page])
    fs.open(index, create=True).pwrite(kept, 0)
    check_pages(fs, PATH, QUERY, 4, [page])
    fs.damage_flip(at(page), 20, 1)
    with pytest.raises(StagingError, match="header does not verify"):
        check_pages(fs, PATH, QUERY, 4, [page])
    with pytest.raises(CorruptionError):
        decode_header("p", fs.read(at(page)))


# ---- sweeping ------------------------------------------------------------------------------------


def table(*batches: tuple[str, int, list[StagedPage]]) -> BatchTable:
    found = BatchTable()
    for query, number, pages in batches:
        found.apply(DECIDED, BatchRecord(query, number, 1, "{}", tuple(pages)))
    return found


def test_what_is_old_and_undecided_is_swept(fs: FaultyFileSystem) -> None:
    old = stage(fs, PATH, QUERY, 1, rows_of(0, 3), time_us=100 * S)
    young = stage(fs, PATH, QUERY, 1, rows_of(0, 3), partition=1, time_us=950 * S)
    sweep = Sweep(table(), [])
    assert sweep.run(fs, PATH, 100.0, 1000 * S) == [at(old)]
    assert sweep.run(fs, PATH, 100.0, 1000 * S) == []
    check_pages(fs, PATH, QUERY, 1, [young])
    assert sweep.run(fs, PATH, 100.0, 2000 * S) == [at(young)]
    assert fs.list(staging_path(PATH)) == []


def test_what_is_decided_stays_and_what_comes_too_late_goes(fs: FaultyFileSystem) -> None:
    named = stage(fs, PATH, QUERY, 5, rows_of(0, 3), time_us=0)
    zombie = stage(fs, PATH, QUERY, 5, rows_of(0, 3), attempt="1-00000002", time_us=0)
    older = stage(fs, PATH, QUERY, 4, rows_of(0, 3), time_us=0)
    fresh = stage(fs, PATH, QUERY, 4, rows_of(0, 3), attempt="9-00000009", time_us=190 * S)
    newer = stage(fs, PATH, QUERY, 6, rows_of(0, 3), time_us=0)
    gone = Sweep(table((QUERY, 5, [named])), []).run(fs, PATH, 86400.0, 200 * S)
    assert sorted(gone) == sorted([at(zombie), at(older)])
    check_pages(fs, PATH, QUERY, 5, [named])
    check_pages(fs, PATH, QUERY, 6, [newer])
    check_pages(fs, PATH, QUERY, 4, [fresh])


def test_what_waits_for_a_checkpoint_is_not_swept(fs: FaultyFileSystem) -> None:
    """Its batch is done, and a crash may take that back."""
    pages = [stage(fs, PATH, QUERY, 5, rows_of(0, 3), partition=n, time_us=0) for n in range(3)]
    found = table((QUERY, 5, pages[:1]))
    found.apply(ADOPTED, BatchRecord(QUERY, 5))
    assert Sweep(found, [(QUERY, pages[1].name)]).run(fs, PATH, 0.0, 200 * S) == [at(pages[2])]


def test_files_without_an_age_go_and_other_files_stay(fs: FaultyFileSystem) -> None:
    page = stage(fs, PATH, QUERY, 1, rows_of(0, 3), time_us=999 * S)
    fs.unlink(at(page)[:-4] + "idx")
    directory = query_path(PATH, QUERY)
    fs.open(directory + "/something else", create=True).close()
    assert Sweep(table(), []).run(fs, PATH, 100.0, 1000 * S) == [at(page)]
    assert fs.list(directory) == [".query_name", "something else"]


def test_a_batch_is_deleted_whole_and_no_other(fs: FaultyFileSystem) -> None:
    for n in range(3):
        stage(fs, PATH, QUERY, 1, rows_of(0, 3), partition=n)
    other = stage(fs, PATH, QUERY, 11, rows_of(0, 3))
    elsewhere = stage(fs, PATH, "r", 1, rows_of(0, 3))
    assert staging.delete_batch(fs, PATH, QUERY, 1) == 3
    assert staging.delete_batch(fs, PATH, QUERY, 1) == 0
    assert staging.delete_batch(fs, PATH, "unknown", 1) == 0
    check_pages(fs, PATH, QUERY, 11, [other])
    check_pages(fs, PATH, "r", 1, [elsewhere])


# ---- whose a query is ----------------------------------------------------------------------------

ANN, BEN = QueryOwner("ann", "{}"), QueryOwner("ben", "")


@pytest.mark.parametrize("mode", ["killed", "lost"])
def test_the_first_owner_stays_after_any_crash(fs: FaultyFileSystem, mode: str) -> None:
    assert staging.read_owner(fs, PATH, QUERY) is None
    assert staging.claim(fs, PATH, QUERY, ANN) == ANN
    fs = fs.crash(mode)
    assert staging.read_owner(fs, PATH, QUERY) == ANN
    assert staging.claim(fs, PATH, QUERY, BEN) == ANN
    assert staging.claim(fs, PATH, "other", BEN) == BEN


@pytest.mark.parametrize("mode", ["killed", "lost"])
def test_a_claim_that_fails_can_be_made_again(mode: str) -> None:
    """Wherever the disk fails, and then the power: the owner is Ann, or nobody."""
    owners = set()
    for nth in range(1, 30):
        fs = FaultyFileSystem()
        make_vhost(fs)
        fs.fail(errno.EIO, nth=nth)
        try:
            staging.claim(fs, PATH, QUERY, ANN)
        except (OSError, SyncFailedError):
            fs = fs.crash(mode)
            owners.add(staging.read_owner(fs, PATH, QUERY))
            assert staging.claim(fs, PATH, QUERY, BEN) in (ANN, BEN)
            continue
        break
    else:
        raise AssertionError("it fails for ever")
    assert None in owners
    assert owners <= {None, ANN}
