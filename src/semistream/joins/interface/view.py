"""What a join shows of itself to those who measure and test it: a picture taken between two turns.

Every join has a `View`; a family adds what is particular to it. Whoever looks takes no hold of the join's own state.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["View"]


@dataclass(frozen=True)
class View:
    """What every join shows."""

    arrived: int
    """Tuples in the stream buffer."""
    waiting: int
    """Tuples that the algorithm holds."""
    inbox: int
    """Bytes that tuples in the stream buffer may have, be they this join's own or those of a stage before it."""
    parts: dict[str, int]
    """Bytes of each part of the memory."""
