"""Which of a join's matches may be cached: keys that were matched with all of their rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen, kernel
from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE

__all__ = ["Candidates", "find_candidates"]


class Candidates(NamedTuple):
    """Keys that were matched with all of their rows, and these rows."""

    keys: Ints
    frequency: Ints  # number of stream tuples that each key was matched with
    bounds: Ints  # rows of key i are bounds[i] to bounds[i + 1]
    starts: Ints
    flags: Bytes


@kernel
def _candidates(
    keys: Ints, starts: Ints, flags: Bytes, frame_bytes: int, threshold: int
) -> tuple[Ints, Ints, Ints, Ints, Bytes]:
    n = keys.size
    out_keys, out_frequency = np.empty(n, np.int64), np.empty(n, np.int64)
    bounds = np.empty(n + 1, np.int64)
    out_starts, out_flags = np.empty(n, np.int64), np.empty(n, np.uint8)
    found, rows = 0, 0
    bounds[0] = 0
    begin = 0
    while begin < n:
        end = begin + 1
        while end < n and keys[end] == keys[begin]:
            end += 1
        # The rows of a key are in one page (or the key is no candidate), in ascending order. A row may appear once
        # for every tuple that it was matched with.
        page = starts[begin] // frame_bytes
        at, last = rows, np.int64(-1)
        pairs = 0
        for i in range(begin, end):
            if starts[i] // frame_bytes == page:
                pairs += 1
                if starts[i] > last:
                    out_starts[at] = starts[i]
                    out_flags[at] = flags[i]
                    last = starts[i]
                    at += 1
        complete = (out_flags[rows] & FIRST) != 0 and (out_flags[at - 1] & LAST) != 0
        complete = complete and (out_flags[rows] & WHOLE) != 0
        frequency = (end - begin) // (at - rows)
        if complete and frequency >= threshold:
            out_keys[found] = keys[begin]
            out_frequency[found] = frequency
            found += 1
            rows = at
            bounds[found] = rows
        begin = end
    return out_keys[:found], out_frequency[:found], bounds[: found + 1], out_starts[:rows], out_flags[:rows]


def find_candidates(keys: Ints, starts: Ints, flags: Bytes, frame_bytes: int, threshold: int) -> Candidates:
    """Return the keys that were matched with all their rows and at least ``threshold`` tuples.

    Pairs of the same key must be adjacent, which they are if pages are probed in order.
    """
    return Candidates(*_candidates(frozen(keys), frozen(starts), frozen(flags), frame_bytes, threshold))
