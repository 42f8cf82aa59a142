"""`make audit`: are there known vulnerabilities in the versions of constraints.txt?

    python tools/audit.py constraints.txt

Asks the vulnerability service of PyPI by pip-audit. Where that cannot be reached pip-audit says
"No known vulnerabilities found" of packages that it has skipped, and exits with 0. So what it
skipped is counted here, and nothing that was not looked up is called clean. Exit status:

    0   every version was looked up, and nothing is known of any
    1   vulnerabilities are known: each is a line, with the versions that have it mended
    69  versions could not be looked up: the service did not answer, or does not know them
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

EX_UNAVAILABLE: Final = 69
SHOWN_MAX: Final = 5


def asked(path: str) -> tuple[list[dict[str, Any]], str]:
    """What pip-audit found of each package; if it broke off, nothing and why."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", path, "--no-deps"]
    command += ["--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines()
        return [], lines[-1] if lines else f"pip-audit ended with status {done.returncode}"
    return found, ""


def told(wanted: set[str], found: list[dict[str, Any]], why: str) -> tuple[int, list[str]]:
    """Exit status and lines. wanted: names of all packages that were to be looked up."""
    lines = [
        f"{one['name']} {one['version']}: {vuln['id']}, mended in "
        + (", ".join(vuln["fix_versions"]) or "no version yet")
        for one in found
        for vuln in one.get("vulns", ())
    ]
    if lines:
        return 1, [*lines, f"make audit: FAILED: {len(lines)} known vulnerabilities"]
    known = {plain(one["name"]) for one in found if "skip_reason" not in one}
    missing = sorted(wanted - known)
    if missing:
        skipped = [str(one["skip_reason"]) for one in found if "skip_reason" in one]
        reason = why or (skipped[0] if skipped else "pip-audit does not mention them")
        names = ", ".join(missing[:SHOWN_MAX]) + (" ..." if len(missing) > SHOWN_MAX else "")
        return EX_UNAVAILABLE, [
            f"make audit: NOT KNOWN: {len(missing)} of {len(wanted)} versions could not be looked "
            f"up ({names}): {reason}. Is the vulnerability service reachable from here?"
        ]
    return 0, [f"make audit: nothing is known against any of {len(wanted)} versions"]


def plain(name: str) -> str:
    """A name as PyPI compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


def pinned(path: str) -> set[str]:
    """The names in a file of NAME==VERSION."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return {plain(line.partition("==")[0]) for line in lines if "==" in line and line[0] != "#"}


def main() -> int:
    (path,) = sys.argv[1:]
    status, lines = told(pinned(path), *asked(path))
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
