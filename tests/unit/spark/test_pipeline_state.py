"""State directories: what Spark and we wrote there, read back; and one run at a time."""

import json
from pathlib import Path

import pytest

from penstock.errors import LockedError
from penstock.spark.pipeline_file import parse_pipeline
from penstock.spark.pipeline_state import (
    RunFacts,
    StateLock,
    find_states,
    read_state,
    write_facts,
)

FILE = '[pipeline]\nname = "flights"\nstate = "{state}"\n[source]\nqueue = "events"\n'
FILE += '[[sink]]\nparquet = "lake"\n'
OFFSET = {"events": {"0": 17, "1": 4, "id": "abc"}}


def make_checkpoint(state: Path, planned: int, committed: int) -> None:
    checkpoint = state / "checkpoint"
    for name, last in (("offsets", planned), ("commits", committed)):
        (checkpoint / name).mkdir(parents=True)
        for batch in range(last + 1):
            text = "v1\n{}\n" + json.dumps(OFFSET)
            (checkpoint / name / str(batch)).write_text(text)
            (checkpoint / name / f".{batch}.crc").touch()
    (checkpoint / "metadata").write_text('{"id":"q-1"}')


def test_a_state_is_read_back(tmp_path: Path) -> None:
    state = tmp_path / "flights"
    make_checkpoint(state, 5, 4)
    spec = parse_pipeline("f.toml", FILE.format(state=state), "f")
    write_facts(spec, RunFacts(1.0, 2.0, "done", rows=21, sinks={"parquet lake": 20}))
    found = read_state(str(state))
    assert found is not None
    assert (found.name, found.query_id, found.planned, found.committed) == ("flights", "q-1", 5, 4)
    assert found.offsets == (OFFSET,)
    assert found.facts["run"]["sinks"] == {"parquet lake": 20}
    assert found.facts["source"] == {"kind": "queue", "name": "events", "path": None}
    assert not found.is_running


def test_a_checkpoint_alone_is_a_state_too(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "x", 0, 0)
    (tmp_path / "other").mkdir()
    found = find_states(str(tmp_path))
    assert [(state.name, state.committed) for state in found] == [("x", 0)]
    assert find_states(str(tmp_path / "none")) == []
    assert read_state(str(tmp_path / "other")) is None
    assert [state.name for state in find_states(str(tmp_path / "x"))] == ["x"]


def test_a_first_batch_that_was_not_committed_has_no_offsets(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 0, -1)
    found = read_state(str(tmp_path))
    assert found is not None
    assert (found.planned, found.committed, found.offsets) == (0, None, ())


def test_one_run_at_a_time(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    lock = StateLock(state)
    write_facts(parse_pipeline("f.toml", FILE.format(state=state), "f"), RunFacts(1.0))
    found = read_state(state)
    assert found is not None
    assert found.is_running
    with pytest.raises(LockedError, match=r"a run of this pipeline, process \d+"):
        StateLock(state)
    lock.release()
    lock.release()
    StateLock(state).release()


def test_a_remote_state_has_no_lock_and_no_facts() -> None:
    StateLock("hdfs://there/state").release()
    spec = parse_pipeline("f.toml", FILE.format(state="hdfs://there/state"), "f")
    write_facts(spec, RunFacts(1.0))
    assert not Path("hdfs:").exists()
