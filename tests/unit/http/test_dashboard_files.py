"""Files of the dashboard: addresses, headers, the browser's cache, and nothing outside."""

import gzip
import hashlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from setuptools import Distribution

from penstock.http.dashboard.static_files import FILES, TYPES
from tests.helpers.http_rig import HttpRig

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(path for path in Path(FILES).rglob("*") if path.is_file())
NOT_SERVED = (".LICENSE", ".md")
IMPORTS = re.compile(r"""(?:from|import|import\()\s*"(\.[^"]+)\"""")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    pages = tmp_path / "files" / "pages"
    pages.mkdir(parents=True)
    (tmp_path / "files" / "index.html").write_text("<!doctype html>")
    (pages / "one.js").write_text("export const a = 1;\n")
    (pages / "README.md").write_text("not served")
    (tmp_path / "secret.js").write_text("secret")
    yield rig
    rig.close()


def test_the_page_and_its_parts(rig: HttpRig) -> None:
    reply = rig.ask("/", user=None)
    assert (reply.status, reply.body) == (200, b"<!doctype html>")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; script-src 'self'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    reply = rig.ask("/pages/one.js", user=None)
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "content-security-policy" in reply.headers
    packed = rig.ask("/pages/one.js", user=None, headers={"accept-encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == reply.body == b"export const a = 1;\n"
    head = rig.ask("/pages/one.js", user=None, method="HEAD")
    assert (head.body, head.headers["content-length"]) == (b"", str(len(reply.body)))
    assert rig.ask("/", user=None, method="POST").status == 405
    assert rig.ask("/", user=None, headers={"host": "evil.example"}).status == 421


def test_the_page_names_each_module_so_that_none_is_found_only_by_reading_another() -> None:
    index = Path(FILES, "index.html").read_text()
    modules = {str(path.relative_to(FILES)) for path in SHIPPED if path.suffix == ".js"}
    named = re.findall(r'<link rel="modulepreload" href="([^"]+)">', index)
    assert set(named) == modules - {"app.js", "theme.js"}


def test_a_browser_asks_whether_a_file_is_still_the_same(rig: HttpRig) -> None:
    reply = rig.ask("/pages/one.js", user=None)
    assert reply.headers["cache-control"] == "no-cache"
    known = {"if-none-match": reply.headers["etag"]}
    again = rig.ask("/pages/one.js", user=None, headers=known)
    assert (again.status, again.body) == (304, b"")
    (rig.directory / "files" / "pages" / "one.js").write_text("new")
    changed = rig.ask("/pages/one.js", user=None, headers=known)
    assert (changed.status, changed.body) == (200, b"new")
    assert hashlib.sha256(b"new").hexdigest().startswith(changed.headers["etag"].strip('"'))


@pytest.mark.parametrize(
    "address",
    [
        "/none.js", "/pages", "/pages/", "/pages/README.md", "/../secret.js",
        "/pages/../index.html", "/%2e%2e/secret.js", "/pages//one.js", "//secret.js", "/.js",
        "/pages/%2e%2e/index.html",
    ],
)  # fmt: skip
def test_nothing_else_is_served(rig: HttpRig, address: str) -> None:
    reply = rig.ask(address, user=None)
    assert (reply.status, reply.json()["error"]) == (404, "not_found")


def test_every_file_is_in_the_wheel_and_in_the_source_archive() -> None:
    """Both have what build_py finds."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = "penstock.http.dashboard"
    build = Distribution(
        {
            "packages": [package], "package_dir": {package: str(Path(FILES).parent)},
            "package_data": settings["package-data"],
        }
    ).get_command_obj("build_py")  # fmt: skip
    build.ensure_finalized()
    ((_, source, _, names),) = build.data_files
    assert sorted(Path(source, name) for name in names) == SHIPPED


def test_every_file_is_served_or_a_licence_and_names_files_that_are_there() -> None:
    for path in SHIPPED:
        assert path.suffix.removeprefix(".") in TYPES or path.suffix in NOT_SERVED, path
        if path.suffix == ".js":
            for name in IMPORTS.findall(path.read_text()):
                assert (path.parent / name).is_file(), (path, name)
