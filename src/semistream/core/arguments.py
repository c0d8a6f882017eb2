"""Shared checks of arguments. Bad arguments raise `ValueError`; the message names value and limit."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["check_at_least", "check_between", "check_text", "listed", "nearest"]


def listed(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return names, given as one text or as any iterable, as a tuple that can be iterated repeatedly.

    >>> listed("id"), listed(name for name in ["id", "day"])
    (('id',), ('id', 'day'))
    >>> listed(5)
    Traceback (most recent call last):
    ...
    ValueError: names of columns must be text, or a list of texts, not 5
    """
    if isinstance(names, str):
        return (names,)
    given: object = names  # callers without types may give anything
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else None
    if found is None or not all(isinstance(name, str) for name in found):
        raise ValueError(f"names of columns must be text, or a list of texts, not {given if found is None else found}")
    return found


def check_text(what: str, **values: object) -> None:
    """Raise unless each value is text; None stands for a default and passes. ``what`` says what the text is.

    >>> check_text("the name of one column of the stream", as_of=["at"])
    Traceback (most recent call last):
    ...
    ValueError: as_of must be text, the name of one column of the stream, not ['at']
    """
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} must be text, {what}, not {value!r}")


def check_at_least(least: float, **values: float | None) -> None:
    """Raise unless each value is ``least`` or more; None stands for a default and passes.

    >>> check_at_least(1, rows=10, shards=0)
    Traceback (most recent call last):
    ...
    ValueError: shards must be at least 1, not 0
    """
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


def check_between(low: float, high: float, **values: float | None) -> None:
    """Raise unless each value is between ``low`` and ``high``, both excluded; None passes.

    >>> check_between(0, 0.5, buffer_share=0.5)
    Traceback (most recent call last):
    ...
    ValueError: buffer_share must be between 0 and 0.5, not 0.5
    """
    for name, value in values.items():
        if value is not None and not low < value < high:
            raise ValueError(f"{name} must be between {low} and {high}, not {value}")


def nearest(given: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "did you mean 'x'?" for the known name most similar to the given one, or ``otherwise`` if none is similar.

    >>> nearest("meshjion", ["hybridjoin", "meshjoin"])
    "did you mean 'meshjoin'?"
    """
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
