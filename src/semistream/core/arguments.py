"""Shared checks of arguments. Bad arguments raise `ValueError`; the message names value and limit."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["check_at_least", "check_between", "listed", "nearest"]


def listed(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return names, given as one text or as any iterable, as a tuple that can be iterated repeatedly.

    >>> listed("id"), listed(name for name in ["id", "day"])
    (('id',), ('id', 'day'))
    """
    return (names,) if isinstance(names, str) else tuple(names)


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
