"""What the user says of ADAPTIVEJOIN's memory."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.structures.array_source import ArraySource

__all__ = ["AdaptiveOptions"]


@dataclass(frozen=True)
class AdaptiveOptions:
    """What the user says of the memory; see `AdaptiveJoin`."""

    window: int | None
    aging: float
    arrays: ArraySource | None
    ranged: bool

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 tuple, not {self.window}; None lets memory move")
