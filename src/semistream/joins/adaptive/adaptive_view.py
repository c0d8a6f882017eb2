"""What ADAPTIVEJOIN reports about its window and its arena of rows."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.joins.interface.view import View

__all__ = ["AdaptiveView"]


@dataclass(frozen=True)
class AdaptiveView(View):
    """What every join reports, and the two parts between which memory moves."""

    window_tuples: int
    """Capacity of the window in tuples."""
    window_limit: int
    """Capacity of the window in bytes of tuples."""
    window_bytes: int
    """Bytes of tuples in the window, without lent ones."""
    lent: int
    """Tuples in the window whose memory belongs to the caller."""
    rows: int
    """Capacity of the arena in rows."""
