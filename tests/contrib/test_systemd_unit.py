"""The unit of systemd, by what systemd says of it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parent.parent.parent / "contrib" / "systemd" / "penstock.service"
EXPOSURE_MAX = 2.0  # of 10, which a service without any restriction has


def analyze(*arguments: str) -> str:
    """What systemd-analyze says; the test is skipped where there is none (Debian: systemd)."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt install systemd)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_unit_is_right(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("/usr/bin/penstock", "/bin/true"))
    assert UNIT.name not in analyze("verify", str(here))  # other units may be wrong


def test_the_unit_may_do_little() -> None:
    said = analyze("security", "--offline=yes", str(UNIT))
    exposure = re.search(r"Overall exposure level for penstock.service: ([\d.]+)", said)
    assert exposure
    assert float(exposure[1]) <= EXPOSURE_MAX


def test_the_time_of_a_start_and_the_files_are_not_the_default() -> None:
    text = UNIT.read_text()
    for line in ("Type=notify", "TimeoutStartSec=infinity", "LimitNOFILE=65536", "WatchdogSec=30"):
        assert line in text.splitlines()
