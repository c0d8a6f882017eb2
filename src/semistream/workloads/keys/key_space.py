"""The key values of a master table, and nearby key values that are absent from it.

Generators number keys from 0. The keys of a real table start anywhere and have gaps. A key in a gap is in the range
of a page without being on it. This is how a join sees a stream tuple without a match.

Example
-------
>>> space = KeySpace(size=4, first=100, stride=10)
>>> space.present(np.arange(4)).tolist(), space.absent(np.arange(4)).tolist()
([100, 110, 120, 130], [101, 112, 123, 134])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.arguments import check_at_least

__all__ = ["KeySpace"]


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The keys ``first``, ``first + stride``, …, ``size`` of them.

    Parameters
    ----------
    stride
        1 is a table without gaps: its absent keys are below the first and beyond the last key, where an index can rule
        them out. From 2 upwards they are between the present keys, and a page must be read to detect the miss.
    """

    size: int
    first: int = 0
    stride: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, size=self.size, stride=self.stride)
        # Absent keys reach `size` beyond either end.
        ends = (self.first - self.size - 1, self.first + self.size * (self.stride + 1))
        if ends[0] < -(2**63) or ends[1] >= 2**63:
            raise ValueError(
                f"{self.size} keys from {self.first} in strides of {self.stride} do not fit 64 bits; "
                "choose a smaller stride or another first key"
            )

    def present(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the keys with the given numbers, in [0, size)."""
        return index * self.stride + self.first

    def absent(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a key that is not in the table for each number; different numbers give different keys."""
        if self.stride > 1:
            return index * self.stride + (self.first + 1) + index % (self.stride - 1)
        return np.where(index % 2 == 0, self.first - 1 - index, self.first + self.size + index)
