"""docs/how-it-works/memory.md lists every counter of a queue and every event of paging.

The Python of the page runs in test_docs; here its tables are held against the code.
"""

import re
from pathlib import Path

import penstock
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.queues.rows import ROW_BYTES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "how-it-works" / "memory.md").read_text()
EVENT = re.compile(r"""(?:report|_report|tell|_tell|_event)\(\s*"([a-z_]+)",""")


def section(title: str) -> str:
    """What stands below a heading of the page."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(text: str) -> set[str]:
    """What is in backquotes in the first column of a table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_counter_of_a_queue_is_in_the_table_and_no_other(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "box") as box:
        kinds = [box.queue("plain"), box.queue("with priorities", priorities=2)]
        for queue in kinds:
            queue.put(b"body", delay="1h")
            queue.put(b"body")
            assert set(queue.info()) == first_column(section("Counters of a queue")), queue.name
        for name in ("memory_bytes", "counted_bytes", "is_alarmed", "is_disk_full"):
            assert name in box.info()
            assert f"`{name}`" in section("Counters of a queue")


def test_every_event_of_paging_and_memory_is_in_the_table() -> None:
    told: set[str] = set()
    for name in ("paging", "memory_monitor", "variable_queue"):
        text = (ROOT / "src" / "penstock" / "queues" / f"{name}.py").read_text()
        told.update(EVENT.findall(text))
    assert {"flowed", "page_in_failed", "memory_alarm"} <= told
    assert told <= first_column(section("Events"))


def test_what_a_message_is_counted_for() -> None:
    states = section("Alpha, beta, gamma, delta")
    assert f"| alpha | in RAM | in RAM | {ALPHA_BYTES} bytes, its header, its body" in states
    assert f"| beta | on disk | in RAM | {ROW_BYTES} bytes |" in states
    assert f"| gamma | on disk | in RAM, and on disk | {ROW_BYTES} bytes |" in states
