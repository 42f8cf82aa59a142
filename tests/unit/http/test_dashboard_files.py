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

STATIC_IMPORTS = re.compile(r"""(?:\bfrom|^import)\s*"(\.[^"]+)\"""", re.MULTILINE)


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


def static_imports(module: str) -> set[str]:
    """The modules that this one needs before it runs, itself included."""
    found, left = {module}, [module]
    while left:
        path = Path(FILES, left.pop())
        for name in STATIC_IMPORTS.findall(path.read_text()):
            needed = str((path.parent / name).resolve().relative_to(Path(FILES).resolve()))
            if needed not in found:
                found.add(needed)
                left.append(needed)
    return found


def test_the_page_names_the_modules_of_the_shell_and_of_each_page() -> None:
    """So that none is found only by reading another, and none of another page is waited for."""
    index = Path(FILES, "index.html").read_text()
    shell = static_imports("app.js")
    named = re.findall(r'<link rel="modulepreload" href="([^"]+)">', index)
    assert set(named) == shell - {"app.js"}
    assert "lib/uplot.js" not in shell  # as large as half of it

    pages = re.findall(r'import\("\./([a-z]+)\.js"\)', Path(FILES, "pages/index.js").read_text())
    of_page: dict[str, set[str]] = {page: set() for page in pages}
    for names, module in re.findall(r'<link data-pages="([^"]+)" href="([^"]+)">', index):
        for page in names.split():
            of_page[page].add(module)
    assert of_page == {page: static_imports(f"pages/{page}.js") - shell for page in pages}


def test_a_page_with_a_full_cache_asks_for_no_file(rig: HttpRig) -> None:
    """The files have the version of all of them in their addresses, which a change changes."""
    index = rig.directory / "files" / "index.html"
    index.write_text('<script src="pages/one.js"></script><link href="pages/one.js">')
    page = rig.ask("/", user=None)
    assert page.headers["cache-control"] == "no-cache"
    first, other = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert first == other
    assert re.fullmatch(r"v-[0-9a-f]{16}/pages/one\.js", first)
    kept = rig.ask(f"/{first}", user=None)
    assert kept.body == b"export const a = 1;\n"
    assert kept.headers["cache-control"] == "max-age=31536000, immutable"
    version = first.partition("/")[0]
    assert rig.ask(f"/{version}/index.html", user=None).status == 404

    (rig.directory / "files" / "pages" / "one.js").write_text("new")
    assert first not in rig.ask("/", user=None).body.decode()
    old = rig.ask(f"/{first}", user=None)  # of a page that is still open
    assert (old.body, old.headers["cache-control"]) == (b"new", "no-cache")


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
