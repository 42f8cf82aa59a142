"""Patterns: regular expressions of permissions, matched in time linear in the name.

An administrator writes a pattern, and any user sends a name, so a pattern that backtracks lets one
user delay everybody: "^(a+)+$" takes Python's `re` minutes for 40 letters. RE2 (the package
google-re2) follows all ways at once. Its language is RabbitMQ's (PCRE) without what cannot be
matched like that: references to groups ("\\1"), look-ahead and look-behind, possessive and atomic
groups. Such a pattern is refused when it is set.

Without the package, Python's `re` matches. Then a pattern that may backtrack through more than two
repeats is refused as well: repeats and alternatives within a repeat, and more than two repeats in a
row.

Names are text with surrogates for bytes that are not UTF-8; these are matched as U+FFFD.
"""

import re
from typing import Any, Final

try:
    import re2
except ImportError:
    re2 = None

PATTERN_CHARS_MAX: Final = 1024
MEMORY_BYTES: Final = 1 << 20  # of a compiled pattern
REPEATS_MAX: Final = 2  # one after the other, for `re`

_parser: Final[Any] = getattr(re, "_parser")  # noqa: B009 - it has no stubs


class Pattern:
    """One pattern, which is searched anywhere in a name. Raises ValueError if it is malformed,
    cannot be matched in linear time, or is longer than PATTERN_CHARS_MAX."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_CHARS_MAX:
            raise ValueError(f"{len(pattern)} characters, at most {PATTERN_CHARS_MAX}")
        self.text: Final = pattern
        self._compiled: Any = _compiled(pattern)

    def is_in(self, name: str) -> bool:
        """Return whether the pattern is found anywhere in the name."""
        if not name.isascii():
            name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return self._compiled.search(name) is not None


def has_re2() -> bool:
    """Return whether RE2 is installed."""
    return re2 is not None


def _compiled(pattern: str) -> Any:
    try:
        pattern.encode()
        if re2 is None:
            return _backtracking(pattern)
        options = re2.Options()
        options.max_mem = MEMORY_BYTES
        options.log_errors = False
        return re2.compile(pattern, options)
    except (UnicodeEncodeError, OverflowError, RecursionError, re.error) as error:
        raise ValueError(str(error)) from error
    except ValueError:
        raise
    except Exception as error:  # re2.error derives from Exception
        said = error.args[0] if error.args else error
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ValueError(text) from error


# ---- without RE2 ---------------------------------------------------------------------------------


def _backtracking(pattern: str) -> re.Pattern[str]:
    if _repeats(_parser.parse(pattern)) > REPEATS_MAX:
        raise ValueError(
            f"more than {REPEATS_MAX} repeats in a row; the package google-re2 can match it"
        )
    return re.compile(pattern)


def _repeats(parsed: Any) -> int:
    """Return how many repeats a match may backtrack through; the most of all alternatives."""
    n = 0
    for kind, value in parsed:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            if not _is_fixed(value[2]):
                raise ValueError(
                    "a repeat or an alternative is repeated; the package google-re2 can match it"
                )
            n += 1
        elif name == "SUBPATTERN":
            n += _repeats(value[3])
        elif name == "BRANCH":
            n += max(_repeats(branch) for branch in value[1])
        elif name not in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):
            raise ValueError(f"{name} cannot be matched in linear time")
    return n


def _is_fixed(parsed: Any) -> bool:
    """Return whether it matches in one way only."""
    return all(
        str(kind) in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT")
        or (str(kind) == "SUBPATTERN" and _is_fixed(value[3]))
        for kind, value in parsed
    )
