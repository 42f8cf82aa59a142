"""Default queue types and policies on a broker of processes: a change reaches a vhost that runs."""

from pathlib import Path

from tests.helpers.live_broker import LiveBroker


def type_of(broker: LiveBroker, queue: str) -> str:
    """The type of a queue that is declared without one, in vhost "v"."""
    broker.control("declare_queue", "v", queue=queue)
    rows = broker.control("list_queues", "v")
    return str(next(row["type"] for row in rows if row["name"] == queue))


def test_a_default_queue_type_reaches_a_vhost_that_runs(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        broker.control("add_vhost", name="v", default_queue_type="quorum", tags="a,b")
        assert type_of(broker, "first") == "quorum"
        broker.control("update_vhost_metadata", name="v", default_queue_type="undefined")
        assert type_of(broker, "second") == "classic"
        broker.control("update_vhost_metadata", name="v", default_queue_type="quorum")
        assert type_of(broker, "third") == "quorum"
        broker.control("set_policy", "v", name="p", pattern="d$", definition={"max-length": 1})
        assert broker.stop() == 0
    with LiveBroker(tmp_path / "data") as broker:
        assert type_of(broker, "fourth") == "quorum"
        rows = broker.control("list_queues", "v")
        assert [(row["name"], row["policy"]) for row in rows] == [
            ("first", None), ("fourth", None), ("second", "p"), ("third", "p"),
        ]  # fmt: skip
        (row,) = [row for row in broker.control("list_vhosts") if row["name"] == "v"]
        assert (row["tags"], row["default_queue_type"]) == (["a", "b"], "quorum")
