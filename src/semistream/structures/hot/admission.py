"""How often keys that are not held were requested: a sketch of frequencies that age.

When a key is evicted, its frequency is written to two bytes of an array, chosen by its hash, unless a byte already has
a higher value. When a key is admitted, it gets the lower of its two bytes. Keys that share bytes can make a key look
more frequent than it is, never less. So two bytes per key distinguish a key that returns again and again from a key
that is requested once, and the second does not evict the first (the idea of TinyLFU).

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
"""Maximum of a frequency: it is stored in one byte."""

_OTHER = 0x5BD1E995
_HALF = np.uint64(32)


@inner_kernel
def recall(sketch: Bytes, key: Int) -> Int:
    """Return the approximate frequency of a key when it was evicted, less than `MOST`."""
    hashed = mix(key ^ _OTHER)
    one, two = sketch[home(hashed, sketch.size)], sketch[home(hashed << _HALF, sketch.size)]
    least = one if one < two else two
    return np.int64(least) if least < MOST else np.int64(MOST - 1)


@inner_kernel
def remember(sketch: Bytes, key: Int, count: Int) -> None:
    """Record the frequency of a key that is evicted now."""
    hashed = mix(key ^ _OTHER)
    one, two = home(hashed, sketch.size), home(hashed << _HALF, sketch.size)
    if sketch[one] < count:
        sketch[one] = count
    if sketch[two] < count:
        sketch[two] = count
