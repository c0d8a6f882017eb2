"""The key values of a master table, and key values near them that it does not have.
 Generators number keys from 0; a real table's keys start somewhere and have gaps. A key in a gap falls into
the range of a page without being on it, which is how a stream tuple that matches nothing looks to a join.

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
        1 is a table without gaps: its absent keys lie below the first and beyond the last, where an index may
        rule them out at once. From 2 on they lie between the present ones, and a page must be read to miss
        them.
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
