r"""Text from clients as people may see it: in lines of the log, in terminals, on command lines.

Names and texts come from clients and may hold any bytes. Written as they are,
a line feed begins a forged line of the log, and an escape sequence changes the terminal of whoever
reads it. So each character that is not printable is written as the bytes of its UTF-8, each as
`\xNN`; a byte that is no UTF-8 (a surrogate escape in our strings) is `\xNN` too.

    one_line(text)     for messages: a backslash stays what it is
    escaped(name)      for names: a backslash is doubled, so that `unescaped` gives the name again
    unescaped(text)    the name that was escaped; text without a backslash is itself
"""

import re
from typing import Final

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(\\))")


def one_line(text: str) -> str:
    r"""The text with `\xNN` for each byte of what is not printable, so it has no line feed."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _bytes_of(char) for char in text])


def escaped(name: str) -> str:
    """As `one_line`, with backslashes doubled; `unescaped` gives the name again."""
    return one_line(name.replace("\\", "\\\\"))


def unescaped(text: str) -> str:
    r"""The name in `text`, in which `\xNN` is a byte and two backslashes are one.

    A backslash before anything else is a backslash. Bytes that are no UTF-8 are surrogate escapes
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
