"""How often keys that are not held were asked for: a sketch of frequencies, which age.

A key that goes leaves its frequency in two bytes of an array that its hash names, unless more is there already; a key
that comes takes the lesser of its two bytes. Two keys that share a byte may make one look more frequent than it is, and
never less. So a key that comes back again and again is told from one that comes once, for a byte a key, and the second
does not push out the first (the idea of TinyLFU).

Examples
--------
>>> sketch = np.zeros(100, np.uint8)
>>> remember(sketch, 7, 3)
>>> recall(sketch, 7), recall(sketch, 8)
(3, 0)
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes
from semistream.core.compiled import Int, inner_kernel
from semistream.structures.directory import home, mix

__all__ = ["MOST", "recall", "remember"]


MOST = 255
"""The most that a frequency is counted to."""

_OTHER = 0x5BD1E995
_HALF = np.uint64(32)


@inner_kernel
def recall(sketch: Bytes, key: Int) -> Int:
    """Return about how often a key was asked for when it went, less than `MOST`."""
    hashed = mix(key ^ _OTHER)
    one, two = sketch[home(hashed, sketch.size)], sketch[home(hashed << _HALF, sketch.size)]
    least = one if one < two else two
    return np.int64(least) if least < MOST else np.int64(MOST - 1)


@inner_kernel
def remember(sketch: Bytes, key: Int, count: Int) -> None:
    """Note how often a key was asked for that goes now."""
    hashed = mix(key ^ _OTHER)
    one, two = home(hashed, sketch.size), home(hashed << _HALF, sketch.size)
    if sketch[one] < count:
        sketch[one] = count
    if sketch[two] < count:
        sketch[two] = count
