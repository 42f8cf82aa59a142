"""The Debian package, really installed here: a broker of its own user, an upgrade, a removal.

It needs root, and a machine on which neither the package nor its user is. What it leaves behind by
design, data and user, is deleted at the end.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.dist import package, run

DATA = Path("/var/lib/penstock")
CONFIG = Path("/etc/penstock/penstock.toml")
UNIT = Path("/lib/systemd/system/penstock.service")
PENSTOCK = "/usr/bin/penstock"
SERVE = ("setpriv", "--reuid=penstock", "--regid=penstock", "--clear-groups", PENSTOCK, "serve")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dpkg") is None, reason="needs root and dpkg"
)


def has_user() -> bool:
    return "penstock" in {entry.pw_name for entry in pwd.getpwall()}


@pytest.fixture
def machine() -> Iterator[None]:
    there = [path for path in (DATA, CONFIG, UNIT, Path("/usr/lib/penstock")) if path.exists()]
    assert not there, f"{there} exist: this check installs the package, and deletes all of it"
    assert not has_user()
    yield
    run("dpkg", "--purge", "penstock")
    shutil.rmtree(DATA, ignore_errors=True)
    if has_user():
        run("userdel", "penstock")


class Service:
    """`penstock serve` as the unit runs it, as long as the context lasts."""

    def __enter__(self) -> None:
        environment = {"PENSTOCK_PORT": "0", "PENSTOCK_HTTP_PORT": "0"}
        self.process = subprocess.Popen(
            SERVE, cwd=DATA, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "is ready" not in line:
            self.process.terminate()
            raise AssertionError(line)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=120)
        assert self.process.returncode == 0


@pytest.mark.usefixtures("machine")
def test_install_upgrade_and_remove(tmp_path: Path) -> None:
    run("dpkg", "-i", package("*.deb"))
    assert DATA.stat().st_mode & 0o777 == 0o700
    assert DATA.owner() == "penstock"
    assert UNIT.exists()
    with Service():
        assert run(PENSTOCK, "health_check", cwd="/") == "ok\n"
        run(PENSTOCK, "declare_queue", "letters", cwd="/")
        run(PENSTOCK, "publish", "letters", "Dear Ada", cwd="/")
    CONFIG.write_text(CONFIG.read_text() + 'log_level = "warning"\n')

    newer = tmp_path / "newer"  # the same with another version, quicker than built again
    run("dpkg-deb", "--raw-extract", package("*.deb"), newer)
    control = newer / "DEBIAN" / "control"
    control.write_text(re.sub(r"^Version: .*", "Version: 99.0", control.read_text(), flags=re.M))
    run("dpkg-deb", "-Znone", "--build", newer, tmp_path)
    run("dpkg", "-i", *tmp_path.glob("*.deb"))
    assert 'log_level = "warning"' in CONFIG.read_text()
    with Service():
        assert "Dear Ada" in run(PENSTOCK, "get", "letters", cwd="/")

    run("dpkg", "--remove", "penstock")
    assert not Path(PENSTOCK).exists()
    assert CONFIG.exists()
    said = run("dpkg", "--purge", "penstock")
    assert "rm -r /var/lib/penstock && userdel penstock" in said
    assert not CONFIG.exists()
    assert not Path("/usr/lib/penstock").exists()
    assert any(DATA.iterdir())
