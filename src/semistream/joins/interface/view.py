"""A snapshot of a join's state, taken between two iterations, for measurements and tests.

Every join has a `View`; a family of joins adds fields. A view does not reference the join's own state.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["View"]


@dataclass(frozen=True)
class View:
    """The state that every join reports."""

    arrived: int
    """Tuples in the stream buffer."""
    waiting: int
    """Tuples that the algorithm holds."""
    inbox: int
    """Maximum bytes of tuples in the stream buffer, which may belong to a stage before this join."""
    parts: dict[str, int]
    """Bytes of each part of the memory."""
