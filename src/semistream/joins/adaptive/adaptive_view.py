"""What ADAPTIVEJOIN shows of its window and of the rows that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.joins.interface.view import View

__all__ = ["AdaptiveView"]


@dataclass(frozen=True)
class AdaptiveView(View):
    """What every join shows, and the two parts between which memory moves."""

    window_tuples: int
    """Tuples that the window has room for,"""
    window_limit: int
    """and bytes of theirs."""
    window_bytes: int
    """Bytes in the window, but for what is lent."""
    lent: int
    """Tuples in the window that are still the caller's."""
    rows: int
    """Rows that there is room for."""
