"""DashboardFiles: the files of `files`, at `/` and below it.

A file is read when it is asked for, so a developer changes one and loads the page again. Its ETag
is a hash of its content, and `no-cache` makes a browser ask each time whether it is still the same:
the answer is then 304 without a body. Names have letters, digits, `-`, `_` and one dot, so none
leads out of the directory.

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
_PATH: Final = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.([a-z]+)")
_METHODS: Final = ("GET", "HEAD")


class DashboardFiles:
    """Answers requests for the files below `directory`."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._packed: dict[str, tuple[str, bytes]] = {}  # path -> ETag, gzip

    def answer(self, request: Request, path: str) -> Response | None:
        """Return the file at this path of an address, None if there is none."""
        name = path.removeprefix("/") or INDEX
        found = _PATH.fullmatch(name)
        if found is None or found[1] not in TYPES:
            return None
        try:
            data = self._fs.read(f"{self._directory}/{name}")
        except OSError:
            return None
        if request.method not in _METHODS:
            return Response(status_code=405, headers={**HEADERS, "Allow": ", ".join(_METHODS)})
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers = {**HEADERS, "ETag": tag, "Content-Type": TYPES[found[1]]}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            if self._packed.get(name, ("", b""))[0] != tag:
                self._packed[name] = tag, gzip.compress(data, mtime=0)
            data = self._packed[name][1]
        headers["Content-Length"] = str(len(data))
        return Response(b"" if request.method == "HEAD" else data, headers=headers)
