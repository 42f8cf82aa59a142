"""examples/celery_tasks.py: Celery's worker and the program that sends tasks, on a live broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("celery")

import penstock
from tests.helpers.live_broker import LiveBroker

PROGRAM = Path(__file__).parent.parent / "examples" / "celery_tasks.py"


def test_the_guide_shows_the_settings_of_the_example() -> None:
    page = (PROGRAM.parent.parent / "docs" / "guides" / "celery.md").read_text(encoding="utf-8")
    block = page.partition("```py\n")[2].partition("```")[0]
    for part in block.split("\n\n"):
        assert part.strip() in PROGRAM.read_text(encoding="utf-8")


def test_tasks_are_done_and_a_poisonous_one_becomes_a_dead_letter(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker, penstock.open(broker.url) as box:
        dead = box.queue("shop.dead")
        text = PROGRAM.read_text(encoding="utf-8")
        text = text.replace("localhost:5672", f"localhost:{broker.port}")
        (tmp_path / PROGRAM.name).write_text(text)
        log = tmp_path / "worker.log"
        with log.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "--app", "celery_tasks", "worker", "-c", "2"],
                cwd=tmp_path, stdout=output, stderr=output, env={**os.environ, "C_FORCE_ROOT": "1"},
            )  # fmt: skip
        try:
            done = subprocess.run(
                [sys.executable, PROGRAM.name],
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr + log.read_text()
            assert done.stdout == "5\norder 7 is charged, at attempt 3\n"
            with dead.get(timeout=120) as job:
                assert job.headers["task"] == "celery_tasks.poison"
                assert [death.reason for death in job.deaths] == ["delivery_limit"]
        finally:
            worker.terminate()
            worker.wait()
