"""What tests of staged uploads do: post chunks of records to an HttpRig, and see what is staged."""

from pathlib import Path
from typing import Any

from tests.helpers.asgi_client import Reply
from tests.helpers.http_rig import HttpRig

ADDRESS = "/api/staging/%2F/query%2F1/7/3/0-0123abcd"
RECORDS = [(b"row %d" % n, b"meta") for n in range(100)]


def post(
    rig: HttpRig, body: bytes | list[bytes | None], address: str = ADDRESS, **how: Any
) -> Reply:
    return rig.ask(address, method="POST", body=body, **how)


def files(rig: HttpRig) -> list[Path]:
    """All pages and indexes that are staged."""
    return sorted(rig.directory.rglob("*.page")) + sorted(rig.directory.rglob("*.idx"))
