"""The Debian package and its unit under a real systemd, which is booted in a container.

The container has the files of this machine with a layer above them that is thrown away, and no
network. It needs root and systemd-nspawn (Debian: systemd-container).
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packages.dist import package, run

LIMIT_S = 300.0
# What runs in the container: no shell of a user, so nothing else of this machine is started.
STEPS = """
set -ex
dpkg -i /opt/check/penstock.deb
systemctl is-active penstock
penstock health_check
penstock declare_queue letters
penstock publish letters 'Dear Ada'
pid=$(systemctl show penstock -p MainPID --value)
grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/$pid/status
grep '^Uid:' /proc/$pid/status | grep $(id -u penstock)
systemctl reload penstock
systemctl restart penstock
penstock get letters

mkdir /etc/systemd/system/penstock.service.d
printf '[Service]\\nWatchdogSec=5\\n' > /etc/systemd/system/penstock.service.d/quick.conf
systemctl daemon-reload
systemctl restart penstock
kill -STOP $(systemctl show penstock -p MainPID --value)
until [ "$(systemctl show penstock -p NRestarts --value)" = 1 ] && penstock health_check ping
do sleep 1; done

dpkg --remove penstock
! systemctl is-active penstock
journalctl -u penstock --no-pager
echo all steps done
"""
SERVICE = """
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=append:/opt/check/log
StandardError=append:/opt/check/log
ExecStart=/bin/sh /opt/check/steps
ExecStopPost=/bin/systemctl exit 0
"""
BOOT = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/whole"
# No unit of this machine is started but what check.service needs.
find "$1/whole/etc/systemd/system" -mindepth 1 -delete
rm -f "$1/whole/etc/machine-id"
cp -r "$1/opt" "$1/etc" "$1/whole/"
systemd-nspawn --quiet --directory="$1/whole" --boot --register=no --keep-unit --private-network \\
    --console=pipe systemd.unit=check.service
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-nspawn") is None,
    reason="needs root and systemd-nspawn (Debian: apt install systemd-container)",
)
def test_the_service_under_systemd(tmp_path: Path) -> None:
    for name in ("upper", "work", "whole", "opt/check", "etc/systemd/system"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(package("*.deb"), tmp_path / "opt/check/penstock.deb")
    (tmp_path / "opt/check/steps").write_text(STEPS)
    (tmp_path / "etc/systemd/system/check.service").write_text(SERVICE)
    booted = subprocess.run(
        ["unshare", "--mount", "sh", "-c", BOOT, "sh", str(tmp_path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    log = tmp_path / "upper/opt/check/log"
    said = log.read_text() if log.exists() else booted.stdout + booted.stderr
    run("rm", "-rf", tmp_path / "upper", tmp_path / "work")
    for line in (
        "\nactive\n", "\nDear Ada\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n",
        "Seccomp:\t2\n", "the configuration is read again", "Watchdog timeout (limit 5s)",
        "\nall steps done\n",
    ):  # fmt: skip
        assert line in said, said
