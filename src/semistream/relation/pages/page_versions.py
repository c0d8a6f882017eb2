"""The version of a key that is valid at a time: found in a page of a history, whose rows are sorted by key and time.

The index names the only page that may hold it (`ClusteredIndex.at`). Times are read from the rows in place.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, inner_kernel, kernel
from semistream.relation.keys.valid_times import OPEN
from semistream.relation.pages.page_layout import HEADER, row_start

__all__ = ["find_versions", "time_of", "version_in"]

_EARLIEST = int(np.iinfo(np.int64).min)
_UNSIGNED, _FLIPPED = 0, 2  # values of `TimeFields.sign`


@inner_kernel
def time_of(flat: Bytes, at: Int, width: Int, sign: Int) -> Int:
    """Return the time that is stored at a byte."""
    value = np.int64(0)
    for byte in range(width):
        value |= np.int64(flat[at + byte]) << np.int64(8 * byte)
    if sign == _FLIPPED:
        return value ^ np.int64(_EARLIEST)
    if sign == _UNSIGNED:
        return value
    unused = np.int64(64 - 8 * width)
    return (value << unused) >> unused


@inner_kernel
def version_in(
    flat: Bytes, words: Ints, base: Int, stride: int, fields: Ints, key: Int, time: Int, following: Int
) -> tuple[Int, Int, Int]:
    """Find the row of a key that is valid at a time in the page at byte ``base``.

    ``words`` views the same bytes, and ``fields`` are `TimeFields`. ``following`` is when the first row of the next
    page begins, if it belongs to the key, or else `OPEN`. Returns where the row starts, -1 if none is valid, and the
    first and last time at which this is the answer.
    """
    rows = np.int64(words[base // 8 + 1]) >> 32
    top = (base + HEADER) // 8
    low: Int = np.int64(0)
    high: Int = rows
    while low < high:
        middle = (low + high) >> 1
        if words[top + middle] < key:
            low = middle + 1
        else:
            high = middle
    first = low
    high = rows
    while low < high:  # the first row that belongs to a later key, or begins later
        middle = (low + high) >> 1
        later = words[top + middle] > key
        if not later:
            begin = row_start(flat, base, rows, middle, stride) + fields[0]
            later = time_of(flat, begin, fields[1], fields[2]) > time
        if later:
            high = middle
        else:
            low = middle + 1
    until = following
    if low < rows and words[top + low] == key:
        until = time_of(flat, row_start(flat, base, rows, low, stride) + fields[0], fields[1], fields[2])
    if until != OPEN:
        until -= 1
    if low == first:
        return np.int64(-1), np.int64(_EARLIEST), until
    start = row_start(flat, base, rows, low - 1, stride)
    since = time_of(flat, start + fields[0], fields[1], fields[2])
    if fields[3] < 0 or (np.int64(flat[start + fields[4]]) & fields[5]) != 0:
        return start, since, until
    end = time_of(flat, start + fields[3], fields[1], fields[2])
    if end <= time:
        return np.int64(-1), end, until
    return start, since, min(until, end - 1)


@kernel
def find_versions(
    flat: Bytes, words: Ints, frame_bytes: int, stride: int, fields: Ints,
    keys: Ints, times: Ints, following: Ints, frame_of: Ints, starts: Ints,
) -> None:  # fmt: skip
    """Write where the row of each key that is valid at its time starts in the frames, -1 if none is."""
    for i in range(keys.size):
        start, _, _ = version_in(
            flat, words, frame_of[i] * frame_bytes, stride, fields, keys[i], times[i], following[i]
        )
        starts[i] = start
