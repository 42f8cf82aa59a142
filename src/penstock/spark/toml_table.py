"""TomlTable: a table of a pipeline's file, which knows where it stands and tells what is wrong.

Each call takes one key as what it should be, and raises PipelineFileError with the file, the table,
the key, what was given and what is expected. An unknown key is told with the one that is probably
meant.

Not here: which keys there are (pipeline_file.py).
"""

import difflib
from collections.abc import Mapping
from typing import Any

from penstock.errors import OptionError


class PipelineFileError(OptionError):
    """Something in a pipeline's file is wrong: where in it, and what."""

    def __init__(self, place: str, text: str) -> None:
        Exception.__init__(self, f"{place}: {text}")
        self.name = place
        self.given = None
        self.expected = text


class TomlTable:
    """See the head of this module. place: the file; name: of the table, such as "[sink]"."""

    def __init__(self, place: str, name: str, values: Mapping[str, Any]) -> None:
        self._place = place
        self._name = name
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def get(self, key: str, default: object = None) -> Any:
        """What stands there, of whatever kind."""
        return self._values.get(key, default)

    @property
    def where(self) -> str:
        """Of the table, for messages: "flights.toml: [source]"."""
        return f"{self._place}: {self._name}" if self._name else self._place

    def wrong(self, key: str, given: object, expected: str) -> PipelineFileError:
        """The error of a value that is not what it should be."""
        return PipelineFileError(self.where, f"{key}: given {given!r}, expected {expected}")

    def known(self, names: tuple[str, ...]) -> None:
        """PipelineFileError: there is a key beside these."""
        for key in self._values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
                what = "key" if self._name else "table"
                raise PipelineFileError(self.where, f"unknown {what} {key!r}, {hint}")

    def table(self, key: str, *, is_needed: bool = False) -> "TomlTable":
        """An inner table; empty if it is not there and need not be."""
        if is_needed and key not in self._values:
            raise PipelineFileError(self.where, f"it has no [{key}]")
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            raise self.wrong(key, values, f"a table [{key}]")
        return TomlTable(self._place, f"[{key}]", values)

    def tables(self, key: str) -> list["TomlTable"]:
        """The tables of an array."""
        values = self._values.get(key, [])
        values = [values] if isinstance(values, dict) else values  # [sink], where there is one
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.wrong(key, values, f"tables [[{key}]]")
        return [
            TomlTable(self._place, f"[[{key}]] {number}", one)
            for number, one in enumerate(values, start=1)
        ]

    def one_of(self, kinds: tuple[str, ...]) -> tuple[str, str]:
        """The one key of these that is there, and its text."""
        found = [kind for kind in kinds if kind in self._values]
        if len(found) != 1:
            told = f"has {' and '.join(found)}" if found else "has none"
            raise PipelineFileError(self.where, f"{told} of {', '.join(kinds)}: expected one")
        text = self.text(found[0])
        assert text is not None
        return found[0], text

    def text(self, key: str) -> str | None:
        """A text that is not blank; None: there is none."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, value, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, or one of them."""
        value = self._values.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(x, str) and x for x in values):
            raise self.wrong(key, value, "a list of texts")
        return tuple(values)

    def number(self, key: str) -> int | None:
        """1 or more; None: there is none."""
        value = self._values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise self.wrong(key, value, "a whole number, 1 or more")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def flat(self) -> list[tuple[str, object]]:
        """Names with dots, whether they were written with quotes or not."""

        def flatten(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, object]]:
            rows: list[tuple[str, object]] = []
            for name, value in values.items():
                if isinstance(value, dict):
                    rows += flatten(f"{prefix}{name}.", value)
                else:
                    rows.append((prefix + name, value))
            return rows

        return flatten("", self._values)
