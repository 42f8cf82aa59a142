"""DashboardFiles: the files of `files`, at `/` and below it.

A file is read when it is asked for, so a developer changes one and loads the page again. The page
names its files below a version, a hash of all of them; modules name others relative to themselves,
so these have the version too. A browser keeps what is below the version of today and does not ask
again. Anything else has `no-cache`: a browser asks each time whether it is still the same, and is
told 304 without a body if its ETag, a hash of the content, is. Names have letters, digits, `-`,
`_` and one dot, so none leads out of the directory.

Every answer has HEADERS: nothing is loaded or run that does not come from here, no script stands in
a page, and no other site can show a page of ours in a frame.
"""

import gzip
import hashlib
import re
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.storage.files.filesystem import FileSystem

FILES: Final = str(Path(__file__).parent / "files")
INDEX: Final = "index.html"
TYPES: Final = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml",
}  # fmt: skip
HEADERS: Final = {
    "Cache-Control": "no-cache", "Vary": "accept-encoding",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip
KEPT: Final = "max-age=31536000, immutable"
_PATH: Final = re.compile(r"(?:v-([0-9a-f]{16})/)?((?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.([a-z]+))")
_NAMED: Final = re.compile(rb'(?<=(?:href|.src)=")(?=[a-z])')  # in the page
_METHODS: Final = ("GET", "HEAD")


class DashboardFiles:
    """Answers requests for the files below `directory`."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._packed: dict[str, tuple[str, bytes]] = {}  # path -> ETag, gzip
        self._version = ""  # of all files, when the page was given last

    def answer(self, request: Request, path: str) -> Response | None:
        """Return the file at this path of an address, None if there is none."""
        found = _PATH.fullmatch(path.removeprefix("/") or INDEX)
        if found is None or found[3] not in TYPES:
            return None
        version, name, suffix = found.groups()
        if version and name == INDEX:
            return None
        try:
            data = self._fs.read(f"{self._directory}/{name}")
        except OSError:
            return None
        if name == INDEX or (version and not self._version):
            self._version = self._hash(self._directory).hex()[:16]
        if name == INDEX:
            data = _NAMED.sub(b"v-%b/" % self._version.encode(), data)
        if request.method not in _METHODS:
            return Response(status_code=405, headers={**HEADERS, "Allow": ", ".join(_METHODS)})
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers = {**HEADERS, "ETag": tag, "Content-Type": TYPES[suffix]}
        if version and version == self._version:
            headers["Cache-Control"] = KEPT
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            if self._packed.get(name, ("", b""))[0] != tag:
                self._packed[name] = tag, gzip.compress(data, mtime=0)
            data = self._packed[name][1]
        headers["Content-Length"] = str(len(data))
        return Response(b"" if request.method == "HEAD" else data, headers=headers)

    def _hash(self, directory: str) -> bytes:
        """Return the hash of all files in a directory and below it."""
        digest = hashlib.sha256()
        for name in sorted(self._fs.list(directory)):
            path = f"{directory}/{name}"
            is_dir = self._fs.is_dir(path)
            digest.update(self._hash(path) if is_dir else self._fs.read(path))
        return digest.digest()
