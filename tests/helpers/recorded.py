"""Answers of RabbitMQ's HTTP API that were recorded, to compare ours with.

tests/http/recorded has one file for each address; operators' scripts and strict clients rely on the
members and types in them.
"""

import json
from pathlib import Path
from typing import Any

RECORDED = Path("tests/http/recorded")
LEFT_OUT = {"priority_lengths", "next_deliver_seq_id"}  # of backing_queue_status; nobody reads them
# Ours are null or absent where nothing happened yet, or whole where RabbitMQ's are not.
MAY_DIFFER = {"consumer_utilisation", "consumer_capacity", "target_ram_count", "policy"}


def check_like(ours: Any, theirs: Any, path: str = "") -> None:
    """Assert that ours has what theirs has, with the same types."""
    if isinstance(theirs, dict) and path.rpartition(".")[2] not in (
        "arguments", "garbage_collection", "effective_policy_definition", "open_files",
    ):  # fmt: skip
        assert isinstance(ours, dict), path
        missing = set(theirs) - set(ours) - LEFT_OUT
        assert not missing, f"{path}: {sorted(missing)}"
        for name in set(theirs) & set(ours) - MAY_DIFFER:
            if not name.startswith("peer_") and theirs[name] is not None and ours[name] is not None:
                inner = "" if name in ("readers",) else f"{path}.{name}"
                if inner:
                    check_like(ours[name], theirs[name], inner)
    elif isinstance(theirs, list) and theirs and ours and isinstance(theirs[0], dict):
        check_like(ours[0], theirs[0], path)
    elif isinstance(theirs, float):
        assert isinstance(ours, int | float), path
    else:
        assert type(ours) is type(theirs), path


def recorded_answer(name: str) -> Any:
    """What RabbitMQ has answered."""
    return json.loads((RECORDED / f"{name}.json").read_text())
