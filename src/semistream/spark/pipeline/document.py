"""A TOML file in which every error is reported with its line.

Python's TOML parser reports no line numbers, so `lines_of` finds them with the parser itself. A statement is the
shortest run of lines that parses on its own: a header, ``key = value``, or a value over several lines. Parsing it gives
its content, and its first line is known.

A `Section` returns the values of a table with the requested types. Errors are collected in a list of `Problem`, so that
all errors of a file are reported together. A key that no code reads is unknown, which is also an error.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from semistream.core.arguments import nearest
from semistream.core.errors import SemistreamError

__all__ = ["Document", "PipelineError", "Problem", "Section", "lines_of"]

T = TypeVar("T")
Place = tuple[str | int, ...]
"""Path of a value in the file: names of tables and keys, and indexes of array elements."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER = re.compile(r"\s*\[")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"}


@dataclass(frozen=True, order=True)
class Problem:
    """One error and its line."""

    line: int
    message: str


class PipelineError(SemistreamError, ValueError):
    """A pipeline that cannot run; `problems` lists all its errors."""

    def __init__(self, path: Path | str, problems: Iterable[Problem]) -> None:
        self.path = str(path)
        self.problems = sorted(set(problems))
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "one problem"
        listed = "\n".join(f"  line {problem.line}: {problem.message}" for problem in self.problems)
        super().__init__(f"{self.path} has {count}:\n{listed}")


def lines_of(text: str) -> dict[Place, int]:
    """Return the line, from 1, on which each table, key and element of an array of tables begins.

    >>> lines_of(chr(10).join(["a = [", "2,", "]", "[[b]]", "c.d = 3"]))
    {('a',): 1, ('a', 0): 1, ('b',): 4, ('b', 0): 4, ('b', 0, 'c'): 5, ('b', 0, 'c', 'd'): 5}
    """
    found: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines: TOML has no other line ends
    at = 0
    while at < len(lines):
        end = at + 1
        while (said := _parsed("\n".join(lines[at:end]))) is None and end < len(lines):
            end += 1
        if said and _HEADER.match(lines[at]):
            table = _enter(said, counts)
            for depth in range(1, len(table) + 1):
                found.setdefault(table[:depth], at + 1)
        elif said:
            _note(said, table, at + 1, found)
        at = end
    return found


def _parsed(statement: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None


def _enter(said: Mapping[str, Any], counts: dict[Place, int]) -> Place:
    """Return the place of a header. ``[[a]]`` adds an element to a; ``[a.b]`` is b of the last element of a."""
    place: Place = ()
    inside: Any = said
    while inside:
        name, inside = next(iter(inside.items()))
        place = (*place, name)
        if isinstance(inside, list):
            counts[place] = counts.get(place, -1) + 1
            inside = {}
        if place in counts:
            place = (*place, counts[place])
    return place


def _note(said: Any, place: Place, line: int, found: dict[Place, int]) -> None:
    parts: Iterable[tuple[str | int, Any]] = ()
    if isinstance(said, dict):
        parts = said.items()
    elif isinstance(said, list):
        parts = enumerate(said)
    for name, inside in parts:
        found.setdefault((*place, name), line)
        _note(inside, (*place, name), line, found)


class Document:
    """A pipeline file: its values, its line numbers, and the errors found so far."""

    def __init__(self, path: Path, text: str, environment: Mapping[str, str] = os.environ) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.environment = environment
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: numbers may be too long
            line = re.search(r"at line (\d+)", str(error))
            last = text.rstrip("\n").count("\n") + 1
            told = f"not TOML: {error}"
            if line and re.search(r"=\s*[^\s\"'\[{#]*[A-Za-z%/][^\"']*$", text.splitlines()[int(line[1]) - 1]):
                told += '; put texts in quotes, such as "64MB"'
            raise PipelineError(path, [Problem(int(line[1]) if line else last, told)]) from None
        self._lines = lines_of(text)
        self.root = Section(self, values, ())

    def line(self, place: Place) -> int:
        """Return the line of a place, or of the table it belongs to if the place is missing."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def note(self, place: Place, message: str) -> None:
        """Record an error at a place."""
        self.problems.append(Problem(self.line(place), message))


class Section:
    """A table of the file."""

    def __init__(self, document: Document, values: Mapping[str, Any], place: Place) -> None:
        self.document = document
        self.place = place
        self._values = values
        self._asked: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def title(self) -> str:
        """Name of this table in messages."""
        names = ".".join(str(part) for part in self.place if isinstance(part, str))
        return f"[{names}]" if names else "the file"

    def note(self, message: str, name: str | None = None) -> None:
        """Record an error in this table, or in one of its values."""
        self.document.note(self.place if name is None else (*self.place, name), message)

    def text(self, name: str, default: str | None = None, *, required: bool = False) -> str | None:
        """Return a text, with ``${NAME}`` replaced by the environment variable of that name."""
        found = self._get(name, str, required)
        filled = None if found is None else self._filled(found, name)
        return default if filled is None else filled

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """Return a whole number that is at least ``least``."""
        found = self._get(name, int, False)
        if found is not None and found < least:
            self.note(f"{name} must be at least {least}, not {found}", name)
            return default
        return default if found is None else found

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        found = self._get(name, bool, False)
        return default if found is None else found

    def texts(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """Return a list of texts; a single text is a list of one."""
        if isinstance(self._values.get(name), str):
            found = self.text(name)
            return () if found is None else (found,)
        listed = self._get(name, list, required) or []
        if any(not isinstance(part, str) for part in listed):
            self.note(f"{name} must be a text or a list of texts", name)
            return ()
        filled = [self._filled(part, name) for part in listed]
        return () if None in filled else tuple(part for part in filled if part is not None)

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str | None:
        """Return one of a few texts; without a default it must be given."""
        given = self._get(name, str, default is None)
        found = None if given is None else self._filled(given, name)
        if found is not None and found not in choices:
            self.note(f"{name} is {found!r}; {_choose(found, choices)}", name)
            return default
        return default if found is None else found

    def read(self, name: str, reader: Callable[[Any], T], *, required: bool = False) -> T | None:
        """Return a text or number converted by ``reader``; the message of its `ValueError` is recorded as the error."""
        self._asked.append(name)
        if name not in self._values:
            if required:
                self.note(f"{self.title} needs {name}")
            return None
        given = self._values[name]
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            self.note(f"{name} must be text or a number, not {_word(given)}", name)
            return None
        filled = self._filled(given, name) if isinstance(given, str) else given
        if filled is None:
            return None
        try:
            return reader(filled)
        except ValueError as error:
            self.note(f"{name}: {error}", name)
            return None

    def options(self, name: str) -> dict[str, str]:
        """Return a table of settings, with each value as text, as Spark needs it."""
        given = self._get(name, dict, False) or {}
        settings: dict[str, str] = {}
        for key, value in given.items():
            if isinstance(value, bool):
                settings[key] = str(value).lower()
            elif isinstance(value, str):
                if (filled := self._filled(value, name, key)) is not None:
                    settings[key] = filled
            elif isinstance(value, int | float):
                settings[key] = str(value)
            else:
                self.document.note((*self.place, name, key), f"{key} must be text, a number, true or false")
        return settings

    def values(self, name: str) -> dict[str, Any]:
        """Return a table of any values, unchanged."""
        return dict(self._get(name, dict, False) or {})

    def section(self, name: str, *, required: bool = False) -> Section | None:
        """Return a table within this one."""
        found = self._get(name, dict, required)
        return None if found is None else Section(self.document, found, (*self.place, name))

    def sections(self, name: str) -> list[Section]:
        """Return the elements of an array of tables, ``[[name]]``."""
        found = self._get(name, list, False) or []
        if any(not isinstance(part, dict) for part in found):
            self.note(f"{name} must be tables: write [[{name}]] above each", name)
            return []
        return [Section(self.document, part, (*self.place, name, number)) for number, part in enumerate(found)]

    def finish(self) -> None:
        """Record an error for every key that was never read."""
        for name in self._values:
            if name not in self._asked:
                self.note(f"{self.title} has no {name!r}; {_choose(name, self._asked)}", name)

    def _get(self, name: str, kind: type[T], required: bool) -> T | None:
        self._asked.append(name)
        if name not in self._values:
            if required:
                self.note(f"{self.title} needs {name}")
            return None
        found = self._values[name]
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            hint = f": write [[{name}]]" if kind is list and isinstance(found, dict) else ""
            self.note(f"{name} must be {_WORDS[kind]}, not {_word(found)}{hint}", name)
            return None
        return found

    def _filled(self, text: str, *names: str) -> str | None:
        """Return a text with its environment variables replaced; record an error and return None if one is not set."""
        environment = self.document.environment
        unset = [found for found in dict.fromkeys(_VARIABLE.findall(text)) if found not in environment]
        if unset:
            listed = " and ".join(f"${{{found}}}" for found in unset)
            are = "which is" if len(unset) == 1 else "which are"
            self.document.note(
                (*self.place, *names), f"{names[-1]} uses {listed}, {are} not in the environment; set it"
            )
            return None
        return _VARIABLE.sub(lambda match: environment[match[1]], text)


def _word(value: Any) -> str:
    return next((word for kind, word in _WORDS.items() if type(value) is kind), f"a {type(value).__name__}")


def _choose(given: str, choices: Sequence[str]) -> str:
    return nearest(given, choices, f"use one of {', '.join(choices)}")
