"""stats: the figures are those of the store, and nothing is changed."""

import pytest

from penstock.errors import CorruptionError
from penstock.storage.tools.stats import stats
from tests.helpers.tool_stores import DATA, content, image, make, vhost_path


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_figures(is_clean: bool) -> None:
    fs = make(is_clean=is_clean)
    before = image(fs)
    found = stats(fs, DATA)
    assert image(fs) == before
    wanted = content(fs)
    assert {q.name.encode(): q.count for q in found.queues} == {
        name: len(messages) for name, messages in wanted.items()
    }
    assert {q.name.encode(): q.bytes for q in found.queues} == {
        name: sum(len(message[1]) for message in messages) for name, messages in wanted.items()
    }
    assert found.messages == 17
    assert (found.vhosts, found.clean_vhosts) == (1, int(is_clean))
    assert found.log_records == (0 if is_clean else 13)
    assert found.store_live_bytes > 1350
    assert found.files["large bodies"] == (1, 1350 + 44)
    of_files = sum(size for _, size in found.files.values())
    there = sum(len(data) for path, data in before.items() if "/vhosts/" in path)
    assert 0 <= of_files - there < 100  # but the text of locks
    assert 5_000 < found.ram_bytes < 50_000


def test_a_vhost_alone_and_a_damaged_store() -> None:
    fs = make(is_clean=True)
    assert stats(fs, vhost_path(fs)).queues == stats(fs, DATA).queues
    fs.damage_flip(vhost_path(fs) + "/CURRENT", 2)
    with pytest.raises(CorruptionError, match="CURRENT"):
        stats(fs, DATA)
