"""`penstock.open`: a box in a directory, or on a broker.

A path is a directory of this process (`penstock.embedded.directory_box`). "amqp://..." is a broker
that several processes may use (`penstock.client.box`). Either opens a `penstock.Box`. Only what is
opened is loaded.

To type checkers `penstock.open` is `open_box`, whose options are those of a directory.
"""

import difflib
import re
from pathlib import Path
from typing import Any, Final

URLS: Final = ("amqp://", "amqps://")
LIKE_A_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def is_url(path: object) -> bool:
    """Return whether this is the URL of a broker. OptionError if it is another URL, or a broker's
    with a mistake in it, so that it is not used as a directory; the password is not shown."""
    if not isinstance(path, str):
        return False
    if path.startswith(URLS):
        return True
    scheme = LIKE_A_URL.match(path)
    if scheme is not None:
        from penstock.amqp_url import without_password
        from penstock.errors import OptionError

        near = difflib.get_close_matches(scheme[1].lower(), ["amqp", "amqps"], n=1)
        hint = f", did you mean {near[0]}:// ?" if near else ""
        expected = f"a directory, or amqp://user:password@host:port/vhost{hint}"
        raise OptionError("path", without_password(path), expected)
    return False


def open_any(path: str | Path, **options: Any) -> Any:
    """Open the box in a directory (options: penstock.embedded.directory_box.open_box), or that of a
    broker (options: penstock.client.box.open_remote)."""
    if is_url(path):
        from penstock.client.box import open_remote

        return open_remote(str(path), **options)
    from penstock.embedded.directory_box import open_box

    return open_box(path, **options)
