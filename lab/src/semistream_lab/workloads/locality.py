"""Temporal locality: for a while the stream has keys of one part of R only, then of the next part.

SSIJ §VI: 40 M stream tuples in 20 intervals of 2 M; interval ``i`` is Zipf of exponent 1 over the ``i``-th
twentieth of the key range. At any time the reads stay within 5 % of R, and at a switch the whole cache becomes
useless.

Example
-------
>>> source = LocalityKeys(size=5_000_000)
>>> keys = source.keys(start=1_999_999, count=2)
>>> [int(key) // 250_000 for key in keys]
[0, 1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.arguments import check_at_least
from semistream.workloads.keys.key_source import KeySource, Shape, ZipfKeys, check_shape

__all__ = ["LocalityKeys"]


@dataclass(frozen=True, slots=True)
class LocalityKeys(KeySource):
    """Zipf keys over one part of the key range after another.

    Parameters
    ----------
    size
        Total number of distinct keys in all parts.
    intervals
        Number of parts. After the last part the stream returns to the first.
    interval_rows
        Stream tuples per part. Small values penalise joins that adapt slowly. The paper counts tuples, not
        seconds; at a constant arrival rate the two are equivalent.
    exponent, shape
        As for `ZipfKeys`, within each part.
    """

    size: int
    intervals: int = 20
    interval_rows: int = 2_000_000
    exponent: float = 1.0
    shape: Shape = "noperm"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(self.shape)
        if not 1 <= self.intervals <= self.size:
            raise ValueError(f"intervals must be from 1 to the {self.size} keys, not {self.intervals}")
        check_at_least(1, interval_rows=self.interval_rows)
        self._part(0)

    def part_bounds(self, interval: int) -> tuple[int, int]:
        """Return the first key of an interval's part, and the first key after it.

        >>> LocalityKeys(size=100).part_bounds(21)
        (5, 10)
        """
        part = interval % self.intervals
        return part * self.size // self.intervals, (part + 1) * self.size // self.intervals

    def _part(self, interval: int) -> ZipfKeys:
        first, beyond = self.part_bounds(interval)
        return ZipfKeys(beyond - first, self.exponent, self.shape, self.seed)

    def _keys(self, start: int, count: int) -> NDArray[np.int64]:
        out = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            interval, offset = divmod(start + done, self.interval_rows)
            length = min(count - done, self.interval_rows - offset)
            first, _ = self.part_bounds(interval)
            np.add(self._part(interval).keys(start + done, length), first, out=out[done : done + length])
            done += length
        return out
