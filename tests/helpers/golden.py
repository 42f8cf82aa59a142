"""Golden files: what a format looked like when it was last read by a person.

`golden(name, text)` compares with tests/golden/<name>.txt. A difference is either a mistake or a
change of format, and that is for a person to say: run pytest with `--update-golden` (or set
PENSTOCK_UPDATE_GOLDEN=1) and read the diff.
"""

import difflib
import os
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"
BYTES_PER_LINE = 16


def golden(name: str, text: str) -> None:
    """Fail, with a diff, unless tests/golden/<name>.txt holds `text`."""
    path = GOLDEN / f"{name}.txt"
    if not text.endswith("\n"):
        text += "\n"
    if "--update-golden" in sys.argv or os.environ.get("PENSTOCK_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), f"{path} is missing: make it with --update-golden, and read it"
    kept = path.read_text(encoding="utf-8")
    if kept != text:
        lines = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), str(path), "now", lineterm=""
        )
        raise AssertionError("\n".join(["differs from the golden file", *lines]))


def hexdump(data: bytes) -> str:
    """Sixteen bytes a line, with position; a run of lines of zeros is one line with "*"."""
    lines: list[str] = []
    for start in range(0, len(data), BYTES_PER_LINE):
        piece = data[start : start + BYTES_PER_LINE]
        if not any(piece) and start and start + BYTES_PER_LINE < len(data):
            if lines[-1] != "*":
                lines.append("*")
            continue
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in piece)
        lines.append(f"{start:06x}  {piece.hex(' '):<47}  {text}")
    return "\n".join(lines)
