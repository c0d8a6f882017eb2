"""Finds the pages of a key: the clustered index, and the index for an R in any other order.

Both have one vectorised call, ``locate(keys)``, which returns the pages of each key as compressed rows: the pages of
``keys[i]`` are ``pages[bounds[i]:bounds[i + 1]]``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import Int, frozen, kernel
from semistream.relation.devices.device import Device
from semistream.relation.pages.page_layout import find_rows

__all__ = ["ClusteredIndex", "Index", "Located", "ScatteredIndex", "last_not_after", "locate_in_shards", "page_order"]


class Located:
    """Pages of each of many keys, as compressed rows."""

    __slots__ = ("bounds", "pages")

    def __init__(self, bounds: Ints, pages: Ints) -> None:
        self.bounds = bounds
        self.pages = pages

    @property
    def counts(self) -> Ints:
        """Number of pages of each key. Zero means that R does not contain the key."""
        return np.diff(self.bounds)


class Index(Protocol):
    """The interface of an index of one shard."""

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        ...

    def locate(self, keys: Ints) -> Located:
        """Return the pages of each key."""
        ...


@kernel
def _lower_bound(values: Ints, key: int) -> int:
    low, high = 0, values.size
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _locate_clustered(first: Ints, continues: NDArray[np.bool_], last_key: int, keys: Ints) -> tuple[Ints, Ints, int]:
    begin = np.empty(keys.size, np.int64)
    count = np.zeros(keys.size, np.int64)
    total = 0
    for i in range(keys.size):
        key = keys[i]
        at = _lower_bound(first, key)
        if at < first.size and first[at] == key:
            end = at + 1
            while end < first.size and first[end] == key:
                end += 1
            begin[i] = at - 1 if continues[at] else at
            count[i] = end - begin[i]
        elif at > 0 and key <= last_key:
            begin[i] = at - 1
            count[i] = 1
        total += count[i]
    return begin, count, total


@kernel
def _expand(begin: Ints, count: Ints, total: int) -> tuple[Ints, Ints]:
    bounds = np.empty(begin.size + 1, np.int64)
    pages = np.empty(total, np.int64)
    at = 0
    for i in range(begin.size):
        bounds[i] = at
        for page in range(begin[i], begin[i] + count[i]):
            pages[at] = page
            at += 1
    bounds[begin.size] = at
    return bounds, pages


@kernel
def _walk_to(first: Ints, at: Int, key: Int, past: bool) -> Int:
    """Return the first position from ``at`` on that is not below ``key`` (or, if ``past``, that is above it).

    Nearby positions are found in few steps: doubling steps find an upper end, then binary search finds the position.
    """
    pages = first.size
    step = 1
    while at + step <= pages and (first[at + step - 1] < key or (past and first[at + step - 1] == key)):
        at += step
        step *= 2
    top = at + step - 1
    if top > pages:
        top = pages
    while at < top:
        middle = (at + top) >> 1
        if first[middle] < key or (past and first[middle] == key):
            at = middle + 1
        else:
            top = middle
    return at


@kernel
def _locate_between(
    first: Ints, continues: NDArray[np.bool_], last_key: int, low: Ints, high: Ints
) -> tuple[Ints, Ints]:
    begin = np.empty(low.size, np.int64)
    count = np.zeros(low.size, np.int64)
    at: Int = np.int64(0)  # with a plain int, Numba would also compile `_walk_to` for the constant 0
    for i in range(low.size):
        if i > 0 and low[i] < low[i - 1]:
            at = np.int64(0)
        at = _walk_to(first, at, low[i], False)
        here = at < first.size and first[at] == low[i] and not continues[at]
        begin[i] = at if here or at == 0 else at - 1
        if low[i] <= high[i] and low[i] <= last_key:
            count[i] = max(_walk_to(first, at, high[i], True) - begin[i], 0)
    return begin, count


class ClusteredIndex:
    """The first key of each page of an R sorted by key: the inner nodes of the papers' B⁺-tree as a flat array.

    Parameters
    ----------
    first
        First key of each page, ascending.
    continues
        Whether the page's first key is also the last key of the previous page.
    last_key
        Last key of the last page, so that keys past the end are known to be absent.
    ids
        Page ids in key order, if updates have changed the order of pages.
    times
        In a history, when the first row of each page begins to be valid.
    """

    def __init__(
        self,
        first: Ints,
        continues: NDArray[np.bool_],
        last_key: int,
        ids: Ints | None = None,
        times: Ints | None = None,
    ) -> None:
        self.first = first
        self.continues = continues
        self.last_key = last_key
        self.ids = ids
        self.times = times

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        arrays = self.first, self.continues, self.ids, self.times
        return sum(array.nbytes for array in arrays if array is not None)

    def locate(self, keys: Ints) -> Located:
        """Return the pages of each key: one page, or a run of pages if the key has many rows."""
        begin, count, total = _locate_clustered(self.first, self.continues, self.last_key, keys)
        bounds, pages = _expand(begin, count, total)
        return Located(bounds, pages if self.ids is None else self.ids[pages])

    def between(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Return the first position and the number of pages, in key order, that may hold keys in ``[low[i], high[i]]``.

        One pass serves a whole batch. If ``low`` ascends, the pass moves only forward.
        """
        return _locate_between(self.first, self.continues, self.last_key, frozen(low), frozen(high))

    def at(self, keys: Ints, times: Ints) -> tuple[Ints, Ints]:
        """Return the position of the page that may hold each key's version at a time, and when the next one begins.

        In a history, the last row of the key that begins by that time is in this page, if there is one: no other page
        is needed. The position is -1 if there is none. The second number is the begin of the next page's first row, if
        it belongs to the key; otherwise the greatest number.
        """
        assert self.times is not None
        below, upto = np.searchsorted(self.first, keys, "left"), np.searchsorted(self.first, keys, "right")
        after = last_not_after(self.times, below, upto, times) + 1
        position = np.where(keys > self.last_key, -1, after - 1)
        more = after < upto
        following = np.full(keys.size, np.iinfo(np.int64).max)
        following[more] = self.times[after[more]]
        return position, following

    def check(self) -> None:
        """Assert that the pages are in order."""
        assert self.times is None or self.times.shape == self.first.shape
        assert self.first.shape == self.continues.shape
        assert self.ids is None or (self.ids.shape == self.first.shape and np.unique(self.ids).size == self.ids.size)
        assert np.all(self.first[1:] >= self.first[:-1]), "first keys are not ascending"  # a difference may overflow
        assert self.first.size == 0 or self.last_key >= self.first[-1]


class ScatteredIndex:
    """An index for an R in arrival order, or sorted by frequency as X-HYBRIDJOIN assumes.

    Its leaves are themselves a small clustered relation on disk, of rows ``key64 → u32 page``. Only the first key of
    each leaf is held in memory. A look-up reads a leaf, which is counted like any other read.

    Parameters
    ----------
    fences
        Clustered index of the leaves.
    device
        Device of the leaf file.
    frames
        Number of leaves held in memory.
    """

    STRIDE = 4

    def __init__(self, fences: ClusteredIndex, device: Device, frames: int = 64) -> None:
        self.fences = fences
        self.device = device
        self._frames = device.allocate(max(1, min(frames, device.page_count)))
        self._lock = threading.Lock()  # the frames can serve one look-up at a time

    @property
    def nbytes(self) -> int:
        """Bytes held in memory: the fences and the frames for leaves."""
        return self.fences.nbytes + self._frames.nbytes

    def locate(self, keys: Ints) -> Located:
        """Read the leaves of the keys, and return the pages of each key."""
        with self._lock:
            return self._locate(keys)

    def _locate(self, keys: Ints) -> Located:
        leaves = self.fences.locate(keys)
        if leaves.pages.size == 0:
            return Located(np.zeros(keys.size + 1, np.int64), np.empty(0, np.int64))
        asked_by = np.repeat(np.arange(keys.size), leaves.counts)
        unique, place = np.unique(leaves.pages, return_inverse=True)
        order = np.argsort(place, kind="stable")
        place, asked_by = place[order], asked_by[order]
        owners: list[Ints] = []
        pages: list[Ints] = []
        for begin in range(0, unique.size, len(self._frames)):
            chunk = unique[begin : begin + len(self._frames)]
            frames = self._frames[: chunk.size]
            self.device.read(chunk, frames)
            low, high = np.searchsorted(place, [begin, begin + chunk.size])
            wanted = keys[asked_by[low:high]]
            at, starts, _, _ = find_rows(
                frames, self.STRIDE, True, wanted, place[low:high] - begin, 0, np.iinfo(np.int32).max
            )
            owners.append(asked_by[low:high][at])
            words = frames.reshape(-1).view(np.uint32)
            pages.append(words[starts // 4].astype(np.int64))
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        bounds = np.zeros(keys.size + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=keys.size), out=bounds[1:])
        return Located(bounds, np.concatenate(pages)[order])


def last_not_after(times: Ints, begin: Ints, end: Ints, moments: Ints) -> Ints:
    """Return the last position in ``[begin[i], end[i])`` whose time is not after ``moments[i]``, or ``begin[i] - 1``.

    Times ascend within each interval. All intervals are halved together.

    >>> last_not_after(np.array([10, 20, 30]), np.array([0, 0]), np.array([3, 3]), np.array([20, 5])).tolist()
    [1, -1]
    """
    low, high = begin.astype(np.int64), end.astype(np.int64)
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) >> 1
        early = times[middle] <= moments[open_]
        low[open_[early]] = middle[early] + 1
        high[open_[~early]] = middle[~early]
    return low - 1


def page_order(indexes: Sequence[ClusteredIndex], bases: Ints) -> Ints:
    """Return the page ids of all shards in key order; an empty array if that is the order of the ids."""
    if all(index.ids is None for index in indexes):
        return np.empty(0, np.int64)
    return np.concatenate(
        [
            np.arange(index.first.size) + base if index.ids is None else index.ids
            for index, base in zip(indexes, bases, strict=False)
        ]
    )


def locate_in_shards(indexes: Sequence[Index], bases: Ints, home: NDArray[np.int32], keys: Ints) -> Located:
    """Return the pages of each key. Key i is in shard ``home[i]``, or in no open shard (-1).

    Page numbers of shard i begin at ``bases[i]``. It sorts the keys by shard once, then calls each index once.
    """
    order = np.argsort(home, kind="stable")
    ends = np.searchsorted(home[order], np.arange(len(indexes) + 1))
    counts = np.zeros(keys.size, np.int64)
    parts: list[Ints] = []
    for number, index in enumerate(indexes):
        here = order[ends[number] : ends[number + 1]]
        located = index.locate(keys[here])
        counts[here] = located.counts
        numbered = isinstance(index, ClusteredIndex) and index.ids is not None
        parts.append(located.pages + (0 if numbered else bases[number]))
    bounds = np.concatenate([[0], np.cumsum(counts)])
    by_shard = np.concatenate(parts)
    pages = np.empty(by_shard.size, np.int64)
    lengths = counts[order]
    begins = np.repeat(bounds[:-1][order], lengths)
    within = np.arange(by_shard.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    pages[begins + within] = by_shard
    return Located(bounds, pages)
