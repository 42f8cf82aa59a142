"""A damaged file is one event of a box and a count, however many messages were in it."""

from pathlib import Path

import pytest

import penstock
from penstock.embedded.events import FILES_MAX, DamageReports


def test_a_lost_file_is_a_few_lines(tmp_path: Path) -> None:
    box_path = tmp_path / "box"
    with penstock.open(box_path, durability="os", small_queue_entries=0) as box:
        q = box.queue("q", max_memory=0)
        q.put_many([b"%d" % n for n in range(300)])
    (lost,) = box_path.glob("vhosts/*/queues/*/*.qs")
    lost.unlink()
    events: list[tuple[str, str]] = []
    with penstock.open(box_path, on_event=lambda kind, text: events.append((kind, text))) as box:
        q = box.queue("q")
        assert len(q) == 300
        with pytest.raises(penstock.QueueEmptyError):
            q.get(timeout=0)
        assert q.info()["set_aside"] == 300
    told = [text for kind, text in events if kind == "corruption"]
    assert str(lost) in told[0] or lost.name in told[0]
    assert len(told) < 10
    counts = [int(text.rpartition(": ")[2].split()[0]) for text in told[1:]]
    assert 1 + sum(counts) == 300


def test_files_are_told_apart_up_to_a_number() -> None:
    told: list[str] = []
    damage = DamageReports(lambda _, text: told.append(text))
    for n in range(FILES_MAX + 3):
        damage.found(f"queue 'q': /d/{n}.qs: at byte 7: wrong checksum")
    damage.found("queue 'q': /d/5.qs: at byte 9: wrong checksum")
    assert len(told) == FILES_MAX + 1
    told.clear()
    damage.tick()
    damage.tick()
    assert told == ["/d/5.qs: 1 more in this file", "other files: 2 more in this file"]
