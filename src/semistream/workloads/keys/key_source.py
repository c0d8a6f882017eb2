"""Keys of stream tuples: uniform and Zipf keys, and the interface of all key sources.

A `KeySource` is a small, picklable description that gives the keys at any positions of an endless stream. Keys are
integers in ``[0, size)``; `KeySpace` converts them to the key values of a table. The key at a position depends only on
the description, never on how the stream is split into calls.

Example
-------
>>> source = ZipfKeys(size=2000, exponent=1.0, shape="noperm", seed=42)
>>> keys = source.keys(start=0, count=50_000)
>>> bool((np.concatenate([source.keys(0, 7), source.keys(7, 13)]) == keys[:20]).all())
True
>>> round(float((keys < 400).mean()), 2)      # a fifth of the keys, four fifths of the stream
0.8
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semistream.workloads.keys.draws import integers, sequence_seed
from semistream.workloads.keys.permutation import Permutation
from semistream.workloads.keys.zipf import ZipfLaw

__all__ = ["KeySource", "Shape", "UniformKeys", "ZipfKeys", "check_shape"]

Shape = Literal["noperm", "random"]
"""Position of the frequent keys: ``noperm``, first in key order; ``random``, anywhere."""


def check_shape(shape: str) -> None:
    """Raise `ValueError` for anything but a `Shape`."""
    if shape not in ("noperm", "random"):
        raise ValueError(f"shape must be 'noperm' (frequent keys first) or 'random' (anywhere), not {shape!r}")


class KeySource(ABC):
    """The keys of an endless stream, by position."""

    size: int
    """Keys are in ``[0, size)``."""

    def keys(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the keys of the tuples ``start`` … ``start + count - 1``."""
        if start < 0 or count < 0:
            raise ValueError(f"start and count must be at least 0, not {start} and {count}")
        return self._keys(start, count)

    @abstractmethod
    def _keys(self, start: int, count: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class UniformKeys(KeySource):
    """All keys are equally likely. A cache cannot use any skew, so this is the hardest stream for the joins.

    >>> UniformKeys(size=10, seed=1).keys(0, 100_000).mean().round(1)
    np.float64(4.5)
    """

    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        ZipfLaw(self.size, 0.0)

    def _keys(self, start: int, count: int) -> NDArray[np.int64]:
        return integers(sequence_seed(self.seed, "uniform keys"), start, count, below=self.size)


@dataclass(frozen=True, slots=True)
class ZipfKeys(KeySource):
    """Keys whose frequency falls with their rank as ``rank^-exponent`` (SSIJ §VI, "NoPerm" and "Random").

    Parameters
    ----------
    size
        Number of distinct keys.
    exponent
        Skew: 0 is uniform, 1 is the papers' usual stream, above 1 is steeper.
    shape
        ``noperm``: the most frequent key is 0, the next 1, and so on. In an R sorted by key the hot tuples
        then share few pages, which favours joins that cache pages. ``random``: a seeded permutation spreads
        them over all pages.
    seed
        Two sources with the same seed and different shapes draw the same ranks.
    """

    size: int
    exponent: float = 1.0
    shape: Shape = "noperm"
    seed: int = 0

    def __post_init__(self) -> None:
        check_shape(self.shape)
        ZipfLaw(self.size, self.exponent)

    @property
    def law(self) -> ZipfLaw:
        """The law of the ranks: their probabilities, and the share of the most frequent ones."""
        return ZipfLaw(self.size, self.exponent)

    def hottest(self, count: int) -> NDArray[np.int64]:
        """Return the ``count`` most frequent keys, the most frequent first.

        >>> ZipfKeys(size=100).hottest(3).tolist()
        [0, 1, 2]
        """
        return self.place(np.arange(min(count, self.size), dtype=np.int64))

    def _keys(self, start: int, count: int) -> NDArray[np.int64]:
        ranks = self.law.ranks(sequence_seed(self.seed, "zipf keys"), start, count)
        ranks -= 1
        return self.place(ranks)

    def place(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the keys of these ranks. Rank 0 is the most frequent."""
        return order if self.shape == "noperm" else Permutation(self.size, self.seed).apply(order)
