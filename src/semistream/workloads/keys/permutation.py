"""A seeded random-looking permutation of [0, n) that is computed, not stored.

A Feistel network over a grid. A number is written as row and column of a grid of about √n × √n cells, just
large enough for n; each round moves the column by a random amount that depends on the row, or the row by one
that depends on the column. Each round can be undone, so the whole is a bijection of the grid whatever the
random amounts are. The few cells beyond n are skipped by going round again ("cycle walking": J. Black and P.
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), which keeps it a bijection of [0, n). Memory
is a handful of words for any n.

Example
-------
>>> permutation = Permutation(size=10, seed=3)
>>> moved = permutation.apply(np.arange(10))
>>> sorted(moved.tolist()) == list(range(10)), permutation.invert(moved).tolist() == list(range(10))
(True, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel
from semistream.workloads.keys.draws import sequence_seed

__all__ = ["MAX_SIZE", "Permutation"]

MAX_SIZE = 2**62
"""Maximum size: a row or a column of the grid must fit into 32 bits."""

# The fewest rounds that look random if each round moves at random (Luby and Rackoff, SIAM J. Comput. 1988).
_ROUNDS = 4
_FIRST_FACTOR = np.uint64(0x9FB21C651E98DF25)
_SECOND_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@kernel
def _step(value: np.uint64, round_key: np.uint64, below: np.uint64) -> np.uint64:
    """Return the random amount in [0, below) for ``value`` in one round."""
    word = (value ^ round_key) * _FIRST_FACTOR
    word = (word ^ (word >> _HALF)) * _SECOND_FACTOR
    return ((word >> _HALF) * below) >> _HALF


@kernel
def _apply(size: np.uint64, rows: np.uint64, columns: np.uint64, round_keys: NDArray[np.uint64],
           values: NDArray[np.int64]) -> None:  # fmt: skip
    for i in range(values.size):
        value = np.uint64(values[i])
        while True:
            row = value // columns
            column = value - row * columns
            for turn in range(0, round_keys.size, 2):
                column += _step(row, round_keys[turn], columns)
                if column >= columns:
                    column -= columns
                row += _step(column, round_keys[turn + 1], rows)
                if row >= rows:
                    row -= rows
            value = row * columns + column
            if value < size:
                break
        values[i] = np.int64(value)


@kernel
def _invert(size: np.uint64, rows: np.uint64, columns: np.uint64, round_keys: NDArray[np.uint64],
            values: NDArray[np.int64]) -> None:  # fmt: skip
    for i in range(values.size):
        value = np.uint64(values[i])
        while True:
            row = value // columns
            column = value - row * columns
            for turn in range(round_keys.size - 2, -1, -2):
                # Subtract without going below zero: add the rest up to a full cycle.
                row += rows - _step(column, round_keys[turn + 1], rows)
                if row >= rows:
                    row -= rows
                column += columns - _step(row, round_keys[turn], columns)
                if column >= columns:
                    column -= columns
            value = row * columns + column
            if value < size:
                break
        values[i] = np.int64(value)


@dataclass(frozen=True, slots=True)
class Permutation:
    """A permutation of the integers from 0 to ``size - 1``, chosen by ``seed``."""

    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"size of a permutation must be from 1 to {MAX_SIZE}, not {self.size}")

    def apply(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the image of each of ``values``, which must be in [0, size)."""
        moved = self._checked_copy(values)
        _apply(*self._network(), moved)
        return moved

    def invert(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the preimage of each of ``values``: the inverse of `apply`."""
        moved = self._checked_copy(values)
        _invert(*self._network(), moved)
        return moved

    def _network(self) -> tuple[np.uint64, np.uint64, np.uint64, NDArray[np.uint64]]:
        columns = math.isqrt(self.size - 1) + 1
        rows = -(-self.size // columns)
        round_keys = np.array([sequence_seed(self.seed, "permutation", turn) for turn in range(_ROUNDS)])
        return np.uint64(self.size), np.uint64(rows), np.uint64(columns), frozen(round_keys)

    def _checked_copy(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        copy: NDArray[np.int64] = np.array(values, dtype=np.int64).ravel()
        if copy.size and not 0 <= (low := int(copy.min())) <= (high := int(copy.max())) < self.size:
            wrong = low if low < 0 else high
            raise ValueError(f"{wrong} is not in [0, {self.size}), the range of this permutation")
        return copy
