"""Options: one descriptor and one checker for everything that a user sets.

Each door has a table of `Option`s: the broker's configuration, the storage engine, the limits. A
row says under which name the option is given, what it may be (its `Kind`), what it is by default,
and what it means in one sentence. `value_of` checks a value that was given; `--help`, `penstock
config explain` and the pages of docs/reference are made from the same rows. So a new option is one
row and one test.

A Kind has two functions. `check` takes a value with its type, as TOML, JSON or a program gives it,
and returns it as the program uses it. `parse` makes that value from a text, as the environment, a
flag or a URL gives it, and leaves a text that is none to `check`. What is wrong is a
WrongValueError, which knows what was expected; the door makes its own error of it.

Times as text: numbers with units, as "500ms", "90 s", "1h30m", "7d"; also min, w and whole words.

Sizes as text: a whole number is bytes; B, kB, MB, GB, TB count by 1000 and KiB, MiB, GiB, TiB by
1024, in letters of either case. A number with a point and no unit is a fraction of a whole, from
0.0 to 1.0; "max" is all of it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from penstock.errors import OptionError

BYTES_MAX: Final = 1 << 62
SIZE_EXPECTED: Final = (
    'a size such as "16 MiB", "64MB" or 1048576 (bytes), a fraction such as "0.4", '
    'or "max" for all there is'
)
UNITS: Final[dict[str, int]] = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
LARGE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
# Of times as text.
UNITS_MS: Final[dict[str, int]] = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}  # fmt: skip
SECONDS_MAX: Final = 10 * 366 * 86400.0
# How an option joins with the same key of a policy (penstock.broker.policies).
POLICY_KEY: Final = "the option"
POLICY_LIMIT: Final = "the lower one"
FIRST_RELEASE: Final = "0.1"
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_TRUTHS: Final[dict[str, object]] = {"true": True, "1": True, "false": False, "0": False}


class WrongValueError(ValueError):
    """A value that an option may not have. expected: in words. given: the part of the value that is
    wrong, in a tuple; () for the whole value."""

    def __init__(self, expected: str, given: tuple[object, ...] = ()) -> None:
        super().__init__(expected)
        self.expected = expected
        self.given = given


Check = Callable[[object], Any]


def unparsed(text: str) -> object:
    """Return a text as it is: of a kind that has no other form."""
    return text


@dataclass(frozen=True, slots=True)
class Kind:
    """What the values of an option are. words: for help and the documentation. check: returns a
    given value as the program uses it, raises WrongValueError. parse: returns the value that a text
    stands for, or the text. shown: returns a value as users write it. low: the least number."""

    words: str
    check: Check
    parse: Callable[[str], object] = unparsed
    shown: Callable[[Any], str] = str
    low: float | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One option. name: as users write it. meaning: a sentence or less, for help and the
    documentation, in Markdown. field: what the program calls it, if that is another name. default:
    as users write it, if it is not the one of the program's field. since: the first release that
    has it. applies: to which of several kinds of things it applies, if not to all. policy: whether
    a policy may have it as a key, and which value counts then: POLICY_KEY, POLICY_LIMIT, "" for no
    key. is_live: of a broker: a running one takes a new value."""

    name: str
    kind: Kind
    meaning: str
    field: str = ""
    default: str | None = None
    applies: tuple[str, ...] = ()
    since: str = FIRST_RELEASE
    policy: str = ""
    is_live: bool = False

    @property
    def target(self) -> str:
        """Return the name of the program's field: that of maxBytes is max_bytes."""
        if self.field or self.name.islower():
            return self.field or self.name
        return "".join("_" + c.lower() if c.isupper() else c for c in self.name)


def value_of(kind: Kind, place: str, given: object) -> Any:
    """Return a given value as the program uses it; a text may stand for it.

    place: what an error calls the value: the option, or where it was given. Raises OptionError.
    """
    return _checked(kind, place, given, kind.parse(given) if isinstance(given, str) else given)


def values_of(options: Mapping[str, Option], given: Mapping[str, object]) -> dict[str, Any]:
    """Return given values, checked, by the names of the program's fields. A door for programs: each
    name is a row's. Raises OptionError."""
    return {
        options[name].target: value_of(options[name].kind, name, value)
        for name, value in given.items()
    }


def checked(kind: Kind, place: str, given: object) -> Any:
    """As `value_of`, for doors where a value has its type: a text does not stand for another."""
    return _checked(kind, place, given, given)


def _checked(kind: Kind, place: str, given: object, value: object) -> Any:
    try:
        return kind.check(value)
    except WrongValueError as error:
        part = error.given[0] if error.given else given
        raise OptionError(place, part, error.expected) from None


def check_callable(name: str, given: object) -> None:
    """Raise OptionError unless this is None or can be called."""
    if given is not None and not callable(given):
        raise OptionError(name, given, "a callable, or None")


def check_known(name: str, value: object, known: Iterable[str]) -> None:
    """Raise an OptionError, which suggests the right name, for an option that there is not."""
    names = list(known)
    if name not in names:
        raise OptionError(name, value, names)


def by_name(options: Iterable[Option]) -> Mapping[str, Option]:
    """Return the rows of a table by their names."""
    return {option.name: option for option in options}


def plain(meaning: str) -> str:
    """Return a text of the documentation without links and backticks, for a terminal."""
    return _LINK.sub(r"\1", meaning).replace("`", "")


# ---- kinds ---------------------------------------------------------------------------------------


def whole(low: int, high: int, expected: str = "") -> Kind:
    """A whole number from low to high. expected: what errors say instead of that."""
    wanted = expected or f"a whole number from {low} to {high}"

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise WrongValueError(wanted)
        return value

    return Kind(wanted.removeprefix("a "), check, number_in, low=low)


def whole_from(low: int) -> Kind:
    """A whole number, at least `low`."""

    def check(value: object) -> int:
        if type(value) is not int:
            raise WrongValueError("a whole number")
        if value < low:
            raise WrongValueError(f"at least {low}")
        return value

    return Kind(f"whole number, at least {low}", check, number_in, low=low)


def number_from(low: float) -> Kind:
    """A number, at least `low`."""

    def check(value: object) -> float:
        if type(value) is not int and type(value) is not float:
            raise WrongValueError("a number")
        if not value >= low:
            raise WrongValueError(f"at least {low:g}")
        return value

    return Kind(f"number, at least {low:g}", check, number_in, _plain_number, low)


def seconds(most: float = SECONDS_MAX) -> Kind:
    """A time in seconds, whole or not, above 0 and up to `most`, by default ten years."""
    expected = "seconds, above 0" + (f" and up to {most:g}" if most < SECONDS_MAX else "")

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongValueError(expected)
        if not 0 < value <= most:
            raise WrongValueError(expected)
        return float(value)

    return Kind(expected, check, number_in, _plain_number)


def flag(expected: str = "true or false") -> Kind:
    """True or false; 1 and 0 as texts. expected: what errors say."""

    def check(value: object) -> bool:
        if not isinstance(value, bool):
            raise WrongValueError(expected)
        return value

    def parse(text: str) -> object:
        return _TRUTHS.get(text.lower(), text)

    return Kind("true or false", check, parse, lambda value: str(value).lower())


def text(expected: str) -> Kind:
    """A text that is not empty and has no NUL. expected: what it is, for errors."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise WrongValueError(expected)
        return value

    return Kind("text", check)


def choice(*choices: str, expected: str = "") -> Kind:
    """One of these texts. expected: what errors say instead of a list."""
    wanted = expected or listed(choices)

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise WrongValueError(wanted)
        return value

    return Kind(", ".join(f"`{one}`" for one in choices), check)


def one_of(*choices: str) -> Kind:
    """One of these texts, of which errors say so."""
    return choice(*choices, expected=f"one of {', '.join(choices)}")


def listed(choices: Sequence[str]) -> str:
    """Return "a, b or c"."""
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def names(expected: str = 'names with commas between them, as "a.net, b.net"') -> Kind:
    """Different names as a tuple of texts, from a list, or a text with commas between them."""

    def check(value: object) -> tuple[str, ...]:
        found = value.split(",") if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise WrongValueError(expected)
        return tuple(dict.fromkeys(name.strip() for name in found if name.strip()))

    return Kind("names with commas between them", check, shown=", ".join)


def some_of(allowed: Sequence[str], more: str = "") -> Kind:
    """At least one of these names, as `names`. more: what else is expected, for the error."""
    expected = f"some of {', '.join(allowed)}{more}"
    kind = names(expected)

    def check(value: object) -> tuple[str, ...]:
        found: tuple[str, ...] = kind.check(value)
        if not found or not set(found) <= set(allowed):
            raise WrongValueError(expected)
        return found

    return replace(kind, check=check)


def size(low: int) -> Kind:
    """Bytes, from a number or a text such as "8GiB"; at least `low`."""
    expected = f'a size such as "8GiB", at least {low} bytes'

    def check(value: object) -> int:
        number = -1
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str):
            number = bytes_in(value, 0)
        if not low <= number < BYTES_MAX:
            raise WrongValueError(expected)
        return number

    return Kind(f"size, at least {format_bytes(low)}", check, shown=_compact_bytes, low=low)


def or_word(kind: Kind, word: str) -> Kind:
    """As `kind`, or a word, which the program has as None."""

    def check(value: object) -> Any:
        if value == word:
            return None
        try:
            return kind.check(value)
        except WrongValueError as error:
            raise WrongValueError(f"{error.expected}, or {word}") from None

    def parse(given: str) -> object:
        return given if given == word else kind.parse(given)

    def shown(value: object) -> str:
        return word if value is None else kind.shown(value)

    return Kind(f"{kind.words}, or `{word}`", check, parse, shown)


# ---- numbers, times and sizes as text ------------------------------------------------------------


def ms_in(given: object) -> float:
    """Return the milliseconds of a time: seconds, a timedelta, or a text as the head of this module
    has it, in which a number alone is seconds; -1 if it is none."""
    if isinstance(given, timedelta):
        return given.total_seconds() * 1000
    if isinstance(given, str):
        return _text_ms(given)
    return given * 1000 if isinstance(given, int | float) and not isinstance(given, bool) else -1


def _text_ms(text: str) -> float:
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = part and (part[2] or ("s" if part.end() == len(text) and not at else ""))
        if part is None or unit not in UNITS_MS:
            return -1
        total += float(part[1]) * UNITS_MS[unit]
        at = part.end()
    return total if text.strip() else -1


def number_in(text: str) -> object:
    """Return the number in a text; the text itself if it is none."""
    if "_" in text or text != text.strip():  # which Python takes
        return text
    kinds: tuple[Callable[[str], object], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parse_bytes(name: str, given: str | int | float, whole_bytes: int) -> int:
    """Return the bytes of a size as people write it: see the head of this module.

    whole_bytes: what fractions are of. Raises OptionError(name, given, what was expected) for
    anything else, for negative numbers, and for 2**62 bytes or more.
    """
    if isinstance(given, bool):
        raise OptionError(name, given, SIZE_EXPECTED)
    if isinstance(given, str):
        number = bytes_in(given, whole_bytes)
    elif isinstance(given, int):
        number = given
    else:
        number = _fraction(given, whole_bytes)
    if not 0 <= number < BYTES_MAX:
        raise OptionError(name, given, SIZE_EXPECTED)
    return number


def bytes_in(text: str, whole_bytes: int) -> int:
    """Return the bytes of a size as text, -1 if it is none."""
    text = text.strip()
    if text.lower() == "max":
        return whole_bytes
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower()
    digits = digits.strip()
    before, point, part = digits.partition(".")
    if not (before.isascii() and before.isdigit()) or (point and not part.isdigit()):
        return -1
    if not part.isascii() or len(digits) > 30:
        return -1
    if unit:
        return round(float(digits) * UNITS[unit]) if unit in UNITS else -1
    return _fraction(float(digits), whole_bytes) if point else int(digits)


def many(count: int, what: str) -> str:
    """Return a count for people: "1 queue", "10,000 queues", "2 batches"."""
    ending = "" if count == 1 else "es" if what.endswith(("ch", "sh", "s")) else "s"
    return f"{count:,} {what}{ending}"


def format_bytes(number: int) -> str:
    """Return a size for people: powers of 1024, at most one decimal: "812 B", "16 MiB", "1.5
    GiB"."""
    if number < 1024:
        return f"{number} B"
    value = float(number)
    unit = LARGE_UNITS[0]
    for larger in LARGE_UNITS:
        value /= 1024
        unit = larger
        if value < 1023.95:  # rounds to less than 1024
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def _fraction(fraction: float, whole_bytes: int) -> int:
    """Return that part of the whole, -1 if the fraction is not a number from 0 to 1."""
    return int(fraction * whole_bytes) if 0.0 <= fraction <= 1.0 else -1


def _compact_bytes(number: int) -> str:
    """Return a size as it is written in a file: "8GiB"; bytes, if that would not be exact."""
    shown = format_bytes(number).replace(" ", "")
    return shown if bytes_in(shown, 0) == number else str(number)


def _plain_number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else str(round(value))
