import logging

import pytest

from penstock.server.log_lines import teller


@pytest.mark.parametrize(
    ("kind", "level"),
    [("checkpoint", "INFO"), ("disk_full", "WARNING"), ("corruption", "ERROR")],
)
def test_events_that_somebody_must_look_at_stand_out(
    kind: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        teller(logging.getLogger("penstock.test"))(kind, "something, 100 %")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (level, f"{kind}: something, 100 %")
    ]
