"""The bench of scaling: its reader, the tables of what is measured, and where they are put."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.live_broker import LiveBroker

BENCH = Path(__file__).parent.parent / "bench"
COST = {"msgs_s": 50_000.0, "server_us_per_msg": 4.0, "server_cpus": 0.5, "is_ok": True}
FIGURES = {
    "vhost": [{"what": "published into a backlog", "size": 256, **COST}],
    "vhosts": [{"size": 1024, "alone": COST, **{**COST, "msgs_s": 80_000.0}}],
    "http": {
        "count": 10, "size": 1024,
        "rows": [{"readers": 2, "runs": [{"mb_s": 500.0, "cpu_s_per_gb": 0.5}]}],
    },
}  # fmt: skip
FACTS = {
    "version": "0", "build": "pure", "commit": "c", "date": "d", "cpu": "x", "cores": 2,
    "kernel": "k", "filesystem": "f", "python": "3", "is_quick": True, "seconds": 1.0,
}  # fmt: skip


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import scaling  # type: ignore[import-not-found]  # on the path of bench/ alone

    return scaling


def test_the_tables(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = {"figures": {"scan": {"count": 1_000_000, "size": 500,
             "seconds": {"penstock": [1.0]}}}, "cores": 2}  # fmt: skip
    monkeypatch.setattr(scaling.page, "last", lambda part: spark)
    text = "\n".join(scaling.sections({"figures": FIGURES, **FACTS}))
    assert "`python bench/scaling.py --quick`, 1 s." in text
    for row in (
        ["256", "published into a backlog", "50,000", "13", "4.0", "250,000"],
        ["1,024", "in two at once, together", "80,000", "82", "4.0", "0.50"],
        ["2", "500", "250", "0.50", "2,000"],
        ["sum(length(value))", "250", "8"],
    ):
        assert any([cell.strip() for cell in line.split("|")[1:-1]] == row
                   for line in text.splitlines()), row  # fmt: skip


def test_the_page_has_its_marks_and_gets_the_tables(
    scaling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "scaling.md"
    page.write_text(scaling.PAGE.read_text())
    monkeypatch.setattr(scaling, "PAGE", page)
    monkeypatch.setattr(scaling, "ROOT", tmp_path)
    for _ in range(2):
        scaling.write_page({"figures": FIGURES, **FACTS})
        text = page.read_text()
        assert text.count("### One vhost") == 1
        assert [text.count(mark) for mark in scaling.MARKS] == [1, 1]
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="two marks"):
        scaling.write_page({"figures": FIGURES, **FACTS})


@pytest.mark.real
def test_a_reader_takes_the_whole_stream(scaling: Any, tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        scaling.publish(broker.port, 10_000)
        assert scaling.fetch(broker.http_port, 10_000) > 10_000 * scaling.RECORD_BYTES
    assert scaling.cpu_s(os.getpid()) > 0
