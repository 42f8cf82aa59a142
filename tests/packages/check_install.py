"""The wheel in an empty environment for each extra, and the sdist without a network."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.dist import DIST, ROOT, package, run

CONSTRAINTS = ROOT / "constraints.txt"
LIBRARY = Path(__file__).parent / "library.py"
UNAVAILABLE = 69
SERVE = ("serve", "--port", "0", "--http-port", "0", "--data", "data")
# What runs in an environment with these extras, besides the library. "": the library alone.
IMPORTS = {
    "": "",
    "cli": "rich",
    "server": "penstock.http.process, re2",
    "server,oauth2,otel,tls": "jwt, opentelemetry.trace, cryptography.x509",
    "spark": "pyspark_penstock, penstock.spark.source",
    "spark,lake": "deltalake, pyiceberg.catalog.sql",
}


def environment(directory: Path, python: str = sys.executable) -> Path:
    """An empty environment. The directory of its commands."""
    run(python, "-m", "venv", directory)
    return directory / "bin"


@pytest.mark.parametrize("extras", IMPORTS)
def test_the_wheel_with_each_extra(extras: str, tmp_path: Path) -> None:
    bin_ = environment(tmp_path / "venv")
    wheel = package("*.whl")
    pip = (bin_ / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", "-c", CONSTRAINTS, f"{wheel}[{extras}]" if extras else wheel)
    run(*pip, "check")
    assert run(bin_ / "python", LIBRARY, "letters.d", cwd=tmp_path) == "Dear Ada\nno broker\n"
    if not extras:
        installed = run(*pip, "list", "--format=freeze")
        names = {line.split("==")[0] for line in installed.splitlines()}
        assert names - {"pip", "setuptools"} == {"penstock", "librt", "zlib-ng"}
    else:
        run(bin_ / "python", "-c", f"import {IMPORTS[extras]}", cwd=tmp_path)
        run(bin_ / "penstock", "store", "verify", "letters.d", cwd=tmp_path)
    serve = (str(bin_ / "penstock"), *SERVE)
    if "server" in extras:
        serve_and_stop(serve, tmp_path)
    else:
        said = run(*serve, code=UNAVAILABLE, cwd=tmp_path)
        wanted = re.search(r"type pip install '(penstock\[server\] @ file:[^']*\.whl)'", said)
        assert wanted is not None, said
        run(*pip, "install", "-q", "-c", CONSTRAINTS, wanted[1])
        serve_and_stop(serve, tmp_path)


@pytest.mark.parametrize("python", ["python3.12", "python3.13", "python3.14"])
def test_another_python(python: str, tmp_path: Path) -> None:
    """Uncompiled, with the versions that the bounds allow: constraints.txt is of Python 3.11."""
    if subprocess.run(["sh", "-c", f"{python} -c ''"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not installed")
    bin_ = environment(tmp_path / "venv", python)
    pip = (bin_ / "python", "-m", "pip", "--disable-pip-version-check")
    pure = {**os.environ, "PENSTOCK_PURE": "1"}
    run(*pip, "install", "-q", f"{package('*.tar.gz')}[server]", env=pure)
    assert run(bin_ / "python", LIBRARY, "letters.d", cwd=tmp_path) == "Dear Ada\nno broker\n"
    serve_and_stop((str(bin_ / "penstock"), *SERVE), tmp_path)


def serve_and_stop(command: tuple[str, ...], directory: Path) -> None:
    """A broker that becomes ready and stops in order."""
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert "is ready" in line
    assert process.returncode == 0


def test_the_sdist_builds_without_a_network(tmp_path: Path) -> None:
    """With the build's own packages in a directory, and no index."""
    requires = re.search(r"requires = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert requires
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    names = requires[1].replace(chr(34), "").split(", ")
    run(*pip, "download", "-q", "-c", CONSTRAINTS, "-d", tmp_path / "at-hand", *names, "wheel")
    offline = {
        **os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "at-hand"),
        "PENSTOCK_PURE": "1",
    }  # fmt: skip
    made = tmp_path / "made"
    run(*pip, "wheel", "-q", "--no-deps", "-w", made, package("*.tar.gz"), env=offline)
    (wheel,) = made.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_and_sdist_are_as_an_index_wants_them() -> None:
    files = [path for path in DIST.iterdir() if path.suffix in (".whl", ".gz")]
    run(ROOT / ".venv-package/bin/twine", "check", "--strict", *files)
