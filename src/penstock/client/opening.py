"""`penstock.open`: a box in a directory, or on a broker.

A path is a directory of this process's own (`penstock.embedded`). "amqp://..." is a broker that
several processes use (`penstock.client.remote_box`). What they give has the same methods. Only what
is opened is loaded.

To type checkers `penstock.open` is `open_box`, and gives a Box, whatever it opens: a program that
works on one works on the other, and should not have to say which it got.
"""

import difflib
import re
from pathlib import Path
from typing import Any, Final

URLS: Final = ("amqp://", "amqps://")
LIKE_A_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def is_url(path: object) -> bool:
    """Whether it is the URL of a broker. OptionError: it is another URL, or a broker's with a
    mistake in it; it is not taken for a directory, and its password is not shown."""
    if not isinstance(path, str):
        return False
    if path.startswith(URLS):
        return True
    scheme = LIKE_A_URL.match(path)
    if scheme is not None:
        from penstock.client.amqp_url import without_password
        from penstock.errors import OptionError

        near = difflib.get_close_matches(scheme[1].lower(), ["amqp", "amqps"], n=1)
        hint = f", did you mean {near[0]}:// ?" if near else ""
        expected = f"a directory, or amqp://user:password@host:port/vhost{hint}"
        raise OptionError("path", without_password(path), expected)
    return False


def open_any(path: str | Path, **options: Any) -> Any:
    """Open the box in a directory (options: penstock.embedded.box.open_box), or that of a broker
    (options: penstock.client.remote_box.open_remote)."""
    if is_url(path):
        from penstock.client.remote_box import open_remote

        return open_remote(str(path), **options)
    from penstock.embedded.box import open_box

    return open_box(path, **options)


def open_any_aio(path: str | Path, **options: Any) -> Any:
    """As open_any, for asyncio: `box = await open(...)`, or `async with open(...) as box:`."""
    if is_url(path):
        from penstock.client.remote_aio import open_remote_aio

        return open_remote_aio(str(path), **options)
    from penstock.embedded.aio import open as open_aio

    return open_aio(path, **options)
