"""Random numbers by position: the value at a position of a seeded sequence does not depend on earlier draws.

Every generator of this package is a pure function of a seed and a position. A stream therefore has the same rows
whether it is split into batches of seven rows or of a million, or started in the middle. No generator has state to
save.

A word is the position, spaced by the golden ratio and scrambled (SplitMix64: Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014). Sequences for different purposes get seeds of their
own from `sequence_seed`, so that a row's key says nothing about, say, its quantity.

Example
-------
>>> seed = sequence_seed(7, "dice")
>>> whole = integers(seed, 0, 10, below=6)
>>> parts = [integers(seed, 0, 3, below=6), integers(seed, 3, 7, below=6)]
>>> bool((np.concatenate(parts) == whole).all())
True
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel

__all__ = [
    "draw_word",
    "fractions",
    "integers",
    "integers_at",
    "scale_to",
    "scramble",
    "sequence_seed",
    "word_fraction",
]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORD = 2.0**-64


def sequence_seed(seed: int, *purpose: str | int) -> np.uint64:
    """Return the seed of the sequence for one purpose; different purposes give unrelated sequences.

    >>> bool(sequence_seed(1, "keys") == sequence_seed(1, "times"))
    False
    """
    text = "/".join(str(part) for part in (int(seed), *purpose))
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


@kernel
def scramble(word: np.uint64) -> np.uint64:
    """Return ``word`` with every bit made to depend on every other (a bijection of 64-bit words)."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST_FACTOR
    word = (word ^ (word >> np.uint64(27))) * _SECOND_FACTOR
    return word ^ (word >> np.uint64(31))


@kernel
def draw_word(seed: np.uint64, position: int) -> np.uint64:
    """Return the 64 random bits at ``position`` of the sequence of ``seed``."""
    return scramble(seed + _GOLDEN * np.uint64(position + 1))


@kernel
def word_fraction(word: np.uint64) -> float:
    """Return ``word`` / 2⁶⁴, so that small fractions keep all their precision; it may round up to 1."""
    return np.float64(word) * _WORD


@kernel
def scale_to(word: np.uint64, below: np.uint64) -> np.uint64:
    """Return the integer part of ``below`` · ``word`` / 2⁶⁴: uniform on [0, below) up to ``below`` / 2⁶⁴."""
    word_high, word_low = word >> _HALF, word & _LOW_HALF
    below_high, below_low = below >> _HALF, below & _LOW_HALF
    middle = word_high * below_low + ((word_low * below_low) >> _HALF)
    carried = word_low * below_high + (middle & _LOW_HALF)
    return word_high * below_high + (middle >> _HALF) + (carried >> _HALF)


@kernel
def _fractions(seed: np.uint64, start: int, out: NDArray[np.float64]) -> None:
    for i in range(out.size):
        # 53 bits, not 64, so that the fraction never rounds up to 1.
        out[i] = np.float64(draw_word(seed, start + i) >> np.uint64(11)) * 2.0**-53


@kernel
def _integers(seed: np.uint64, start: int, below: np.uint64, out: NDArray[np.int64]) -> None:
    for i in range(out.size):
        out[i] = np.int64(scale_to(draw_word(seed, start + i), below))


@kernel
def _integers_at(seed: np.uint64, positions: NDArray[np.int64], below: np.uint64, out: NDArray[np.int64]) -> None:
    for i in range(out.size):
        out[i] = np.int64(scale_to(draw_word(seed, positions[i]), below))


def fractions(seed: np.uint64, start: int, count: int) -> NDArray[np.float64]:
    """Return the numbers in [0, 1) at positions ``start`` … ``start + count - 1``."""
    out = np.empty(count, dtype=np.float64)
    _fractions(seed, start, out)
    return out


def integers(seed: np.uint64, start: int, count: int, below: int) -> NDArray[np.int64]:
    """Return the integers in [0, below) at positions ``start`` … ``start + count - 1``."""
    out = np.empty(count, dtype=np.int64)
    _integers(seed, start, np.uint64(below), out)
    return out


def integers_at(seed: np.uint64, positions: NDArray[np.int64], below: int) -> NDArray[np.int64]:
    """Return the integers in [0, below) at any positions: a seeded hash of ``positions``."""
    out = np.empty(positions.size, dtype=np.int64)
    _integers_at(seed, frozen(positions), np.uint64(below), out)
    return out
