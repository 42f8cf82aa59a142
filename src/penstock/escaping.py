r"""Text from clients, escaped for log lines, terminals and command lines.

Names and texts from clients may contain any bytes. Unescaped, a line feed would begin a forged line
of the log, and an escape sequence would change the reader's terminal. So each character that is not
printable is written as the bytes of its UTF-8, each as `\xNN`, and so is a byte that is not UTF-8
(a surrogate escape in our strings).

    one_line(text)     for messages: a backslash stays what it is
    escaped(name)      for names: a backslash is doubled, so that `unescaped` gives the name again
    unescaped(text)    the name that was escaped; text without a backslash is itself
"""

import re
from typing import Final

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(\\))")


def one_line(text: str) -> str:
    r"""Return the text with `\xNN` for each byte of what is not printable, without line feeds."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _bytes_of(char) for char in text])


def escaped(name: str) -> str:
    """Return the text as `one_line` does, with backslashes doubled, for `unescaped`."""
    return one_line(name.replace("\\", "\\\\"))


def unescaped(text: str) -> str:
    r"""Return the name in `text`, in which `\xNN` is a byte and two backslashes are one.

    A backslash before anything else is a backslash. Bytes that are not UTF-8 are surrogate escapes
    in the result, as in all names of queues and exchanges."""
    if "\\" not in text:
        return text
    data = text.encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_byte_in, data).decode("utf-8", "surrogateescape")


def _byte_in(found: "re.Match[bytes]") -> bytes:
    digits = found[1]
    return b"\\" if digits is None else bytes([int(digits, 16)])


def _bytes_of(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return "".join([f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass")])
