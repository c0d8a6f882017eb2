"""Sizes of experiments: the papers' sizes when simulated, smaller ones on a real disk and in tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from semistream_lab.experiments.spec import PAGE_BYTES, DeviceKind, Scale

__all__ = ["Size"]

T = TypeVar("T")

_SEEK_SECONDS = 0.0085
_PAGE_SECONDS = PAGE_BYTES / 100e6


@dataclass(frozen=True)
class Size:
    """The device and scale that experiments are described for."""

    device: DeviceKind
    scale: Scale

    @property
    def simulated(self) -> bool:
        """Whether the device is the simulated one."""
        return self.device == "simulated"

    @property
    def published(self) -> bool:
        """Whether sizes are those of the papers."""
        return self.simulated and self.scale == "full"

    def pick(self, full: T, test: T, real: T) -> T:
        """Return the value that applies: the papers', the one for tests, or the one for a real disk."""
        if self.scale == "test":
            return test
        return full if self.simulated else real

    def some(self, values: Sequence[T]) -> list[T]:
        """Return all values at full simulated size, else only first, middle and last."""
        if self.published or len(values) <= 3:
            return list(values)
        return [values[0], values[len(values) // 2], values[-1]]

    def seek_seconds(self, share: float = 1.0) -> float:
        """Return the seek time of the simulated disk for an R that is ``share`` of the paper's.

        In tests the seek is scaled like R and memory. This keeps all proportions: the number of partitions of R, the
        number of tuples that share a read, and the share of a read that is its seek.
        """
        return _SEEK_SECONDS * (share if self.scale == "test" else 1.0)

    def scanning(self, share: float = 1.0) -> dict[str, Any]:
        """Return the options of a join that scans R: the cost of a seek of the simulated disk, in pages."""
        return {"seek_pages": round(self.seek_seconds(share) / _PAGE_SECONDS, 2)} if self.simulated else {}
