"""Conditions that a source receives. Older versions of Spark never pass any."""

from __future__ import annotations

__all__ = [
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
]


class Filter:
    """A condition on columns."""


class _Comparison(Filter):
    attribute: tuple[str, ...]
    value: object


class EqualTo(_Comparison):
    """``=``."""


class EqualNullSafe(_Comparison):
    """``<=>``."""


class GreaterThan(_Comparison):
    """``>``."""


class GreaterThanOrEqual(_Comparison):
    """``>=``."""


class LessThan(_Comparison):
    """``<``."""


class LessThanOrEqual(_Comparison):
    """``<=``."""


class In(_Comparison):
    """``IN``."""
