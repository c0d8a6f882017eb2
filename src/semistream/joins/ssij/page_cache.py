"""Cached pages of R, in frames of a pool that stream tuples also use (SSIJ §IV-C).

Every page of R has one number: the frame that holds it, a mark that it is neither cached nor wanted, or the position of
its list of waiting tuples (`InvertedIndex`). Every cached page has a score, and the page with the lowest score is
evicted first:

utility
    Score: number of stream tuples that the page was joined with since the last join phase. The utility of a page that
    is about to be read is also known, because tuples wait for it. So it is decided once, before reading, which pages
    stay: the cached and wanted pages with the highest utility that fit into memory.
lru
    Score: time of the last use. Pages just read are the most recent, and evict pages that serve more tuples.
none
    Nothing is cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from semistream.core.arrays import Bytes, Ints, Scores, Slots
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.joins.ssij.frame_pool import BYTES, FREE, FramePool, Pool

__all__ = ["ABSENT", "Cache", "PageCache", "Replacement", "Tally", "Verdict", "touch"]

Replacement = Literal["utility", "lru", "none"]

ABSENT = -1
"""Place of a page that is neither cached nor wanted. The place of a wanted page is ``WANTED`` minus the address of its
entry."""
WANTED = -2

# Places in the state: pages cached, maximum pages, a counter of uses, whether scores are times of use; the next frame
# of the ring to replace, and frames in the ring.
HELD, MOST, TICK, BY_TIME, NEXT, IN_RING = 0, 1, 2, 3, 4, 5


class Cache(NamedTuple):
    """The arrays of a page cache, as kernels see them."""

    place: Slots  # of each page of R
    page: Slots  # of each frame: the page in it, or -1
    score: Scores  # of each frame
    ring: Slots  # frames to replace, in this order
    state: Ints


Tally: TypeAlias = Callable[[Cache, int, int, Ints], None]
"""Adds wanted pages to 256 counters, one for each value of the eight bits above a shift, for given higher bits."""


class Verdict(NamedTuple):
    """Which wanted pages stay: all with a utility above ``threshold``, and ``ties`` pages with exactly this utility."""

    threshold: float
    ties: Ints


@inner_kernel
def touch(score: Scores, state: Ints, frame: Int) -> None:
    """Record that a stream tuple was joined with a cached page."""
    if state[BY_TIME]:
        score[frame] = state[TICK]
    else:
        score[frame] += np.float32(1.0)


@kernel
def _evict(pool: Pool, cache: Cache, frames: Slots) -> None:
    for i in range(frames.size):
        frame = frames[i]
        cache.place[cache.page[frame]] = ABSENT
        cache.page[frame] = -1
        pool.free[pool.state[FREE]] = frame
        pool.state[FREE] += 1
    cache.state[HELD] -= frames.size


@kernel
def _take_frame(pool: Pool, cache: Cache) -> Int:
    """Return a frame for one more page, or -1."""
    frame: Int
    state = cache.state
    if state[HELD] < state[MOST] and pool.state[FREE] > 0:
        pool.state[FREE] -= 1
        state[HELD] += 1
        frame = pool.free[pool.state[FREE]]
        if state[BY_TIME] and state[IN_RING] < cache.ring.size:
            cache.ring[state[IN_RING]] = frame
            state[IN_RING] += 1
        return frame
    if state[BY_TIME] and state[NEXT] == state[IN_RING]:
        state[NEXT] = 0  # least recently used are now the pages that this phase read first
    while state[NEXT] < state[IN_RING]:
        frame = cache.ring[state[NEXT]]
        state[NEXT] += 1
        if cache.page[frame] >= 0:  # otherwise its page was evicted for stream tuples meanwhile
            cache.place[cache.page[frame]] = ABSENT
            return frame
    return -1


@kernel
def _settle(
    pool: Pool, cache: Cache, pages: Ints, read: Bytes, utility: Scores, threshold: float, ties: Ints
) -> tuple[int, int]:
    """Keep or drop pages that were read and joined; return how many were kept and how many were not wanted."""
    kept, between = 0, 0
    place, size, flat = cache.place, pool.state[BYTES], read.reshape(-1)
    for i in range(pages.size):
        page = pages[i]
        if place[page] > WANTED:
            between += 1
            continue
        place[page] = ABSENT
        if utility[i] < threshold:
            continue
        if utility[i] == threshold:
            if ties[0] == 0:
                continue
            ties[0] -= 1
        frame = _take_frame(pool, cache)
        if frame >= 0:
            copy_bytes(pool.flat, np.int64(frame) * size, flat, i * size, size)
            place[page] = frame
            cache.page[frame] = page
            cache.score[frame] = np.float32(cache.state[TICK]) if cache.state[BY_TIME] else utility[i]
            kept += 1
    return kept, between


@kernel
def list_wanted(place: Slots, begin: int, wanted: Slots) -> int:
    """Write the pages that tuples wait for into ``wanted``, ascending from ``begin``; return how many were written."""
    count = 0
    for page in range(begin, place.size):
        if count == wanted.size:
            break
        if place[page] <= WANTED:
            wanted[count] = page
            count += 1
    return count


@kernel
def _tally(cache: Cache, prefix: int, shift: int, counts: Ints) -> None:
    """Count cached pages by eight bits of their score above ``shift``; all higher bits are ``prefix``."""
    bits = cache.score.view(np.uint32)
    for frame in range(bits.size):
        pattern = np.int64(bits[frame])
        if cache.page[frame] >= 0 and pattern >> (shift + 8) == prefix:
            counts[(pattern >> shift) & 255] += 1


def _largest(cache: Cache, tally: Tally, room: int) -> tuple[np.float32, int]:
    """Return the lowest of the ``room`` highest utilities, cached and wanted, and how many of them have this value.

    Non-negative floats have the same order as their bits, so the value is found eight bits at a time.
    """
    prefix = 0
    for shift in (24, 16, 8, 0):
        counts = np.zeros(256, np.int64)
        tally(cache, prefix, shift, counts)
        _tally(cache, prefix, shift, counts)
        from_top = np.cumsum(counts[::-1], out=counts[::-1])
        at = int(np.searchsorted(from_top, room))
        room -= int(from_top[at - 1]) if at else 0
        prefix = prefix << 8 | (255 - at)
    return np.array([prefix], np.uint32).view(np.float32)[0], room


class PageCache:
    """Pages in memory, evicted by score.

    Parameters
    ----------
    pool
        Where the frames come from.
    pages
        Pages of R.
    replacement
        ``"utility"``, ``"lru"`` or ``"none"``; see the module's description.
    limit
        Maximum pages; by default the number of frames.

    Notes
    -----
    Holds `bytes_per_frame` for each frame and `bytes_per_page` for each page of R; the pages are in frames of the pool.
    Looking up a page reads one array element. This class does not read from R.
    """

    bytes_per_frame = 12
    bytes_per_page = 4

    def __init__(
        self, pool: FramePool, pages: int, replacement: Replacement = "utility", limit: int | None = None
    ) -> None:
        if replacement not in get_args(Replacement):
            raise ValueError(f"replacement must be one of {', '.join(get_args(Replacement))}, not {replacement!r}")
        self.pool = pool
        self.replacement = replacement
        most = 0 if replacement == "none" else pool.count if limit is None else limit
        self.arrays = Cache(
            place=np.full(pages, ABSENT, np.int32),
            page=np.full(pool.count, -1, np.int32),
            score=np.zeros(pool.count, np.float32),
            ring=np.empty(pool.count, np.int32),
            state=np.array([0, most, 1, replacement == "lru", 0, 0], np.int64),
        )
        self._share = 1.0
        self.evictions = 0
        """Pages that were evicted for stream tuples."""
        self.kept = 0
        """Pages that were kept after they were read."""
        self.between = 0
        """Pages that were read only because they are between wanted ones."""

    def __len__(self) -> int:
        """Return the number of pages cached."""
        return int(self.arrays.state[HELD])

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the frames, which belong to the pool."""
        return sum(array.nbytes for array in self.arrays[:-1])

    def frames(self) -> Slots:
        """Return the frames that hold pages, in time linear in all frames."""
        return np.flatnonzero(self.arrays.page >= 0).astype(np.int32)

    def tick(self) -> None:
        """Advance the time for `"lru"`; after a join phase, restart counting uses."""
        self.count_anew()
        self.arrays.state[TICK] += 1

    def evict(self, count: int) -> int:
        """Evict up to ``count`` pages, lowest score first; return how many. Takes time linear in all frames."""
        frames = self.frames()
        if count < frames.size:
            frames = frames[np.argpartition(self.arrays.score[frames], count)[:count]]
        _evict(self.pool.arrays, self.arrays, frames)
        self.evictions += frames.size
        return int(frames.size)

    def forget(self, pages: Ints) -> None:
        """Evict pages that have changed, for example after an update of R; pages that are not cached are skipped."""
        place = self.arrays.place[np.unique(pages[pages < self.arrays.place.size])]
        _evict(self.pool.arrays, self.arrays, place[place >= 0])

    def limit(self, pages: int) -> None:
        """Set the maximum number of pages, and evict the excess. Takes time linear in all frames."""
        if self.replacement != "none":
            self.arrays.state[MOST] = pages
            self.evict(max(0, len(self) - pages))

    def resize(self, pages: int) -> None:
        """Make room for more pages of R."""
        more = np.full(max(0, pages - self.arrays.place.size), ABSENT, np.int32)
        self.arrays = self.arrays._replace(place=np.concatenate([self.arrays.place, more]))

    def decide(self, wanted: int, tally: Tally) -> Verdict:
        """Decide, before anything is read, which cached pages to replace and which wanted pages to keep.

        The utility of a wanted page, which is about to be read, is the number of tuples that wait for it (ToKeep and
        ToRemove, Algorithm 2, line 1). Cached pages of equal utility stay, because they need not be copied. Takes time
        linear in the frames and in the ``wanted`` pages, which are counted four times and not listed. With ``"lru"``,
        cached pages are sorted.
        """
        self.count_anew()
        state, frames = self.arrays.state, self.frames()
        scores = self.arrays.score[frames]
        room = int(min(state[MOST], frames.size + self.pool.free))
        state[NEXT], state[IN_RING] = 0, 0
        if state[BY_TIME]:
            self._replace(frames[np.argsort(scores, kind="stable")])
            return Verdict(-1.0, np.zeros(1, np.int64))
        if room == 0:
            return Verdict(np.inf, np.zeros(1, np.int64))
        if frames.size + wanted <= room:
            return Verdict(-1.0, np.zeros(1, np.int64))
        threshold, ties = _largest(self.arrays, tally, room)
        same = frames[scores == threshold]
        stay = min(same.size, ties)
        self._replace(np.concatenate([frames[scores < threshold], same[stay:]]))
        return Verdict(float(threshold), np.array([ties - stay], np.int64))

    def _replace(self, frames: Slots) -> None:
        self.arrays.ring[: frames.size] = frames
        self.arrays.state[IN_RING] = frames.size

    def settle(self, pages: Ints, read: Bytes, utility: Scores, verdict: Verdict) -> None:
        """Keep or drop pages ``read``, all of whose tuples were joined, as decided.

        Pages that were not wanted are dropped. Each page that is kept is copied; the others take constant time.
        """
        kept, between = _settle(self.pool.arrays, self.arrays, pages, read, utility, verdict.threshold, verdict.ties)
        self.kept += kept
        self.between += between

    def age(self, share: float) -> None:
        """Keep a share of each page's utility after a join phase; 0 clears it, as the paper does.

        This takes effect when pages are used again. Until then, tuples that arrived during the join phase evict the
        pages with the lowest utility of that phase, as in the paper, which evicts them during the phase (§IV-C).
        """
        self._share = share

    def count_anew(self) -> None:
        """Apply `age`, in time linear in all frames, if it was called since the last time."""
        if self._share < 1.0 and not self.arrays.state[BY_TIME]:
            np.multiply(self.arrays.score, np.float32(self._share), out=self.arrays.score)
        self._share = 1.0

    def check(self) -> None:
        """Assert that places and frames lead to each other."""
        frames = self.frames()
        cached = np.flatnonzero(self.arrays.place >= 0)
        assert frames.size == cached.size == len(self), (frames.size, cached.size, len(self))
        assert np.array_equal(np.sort(self.arrays.page[frames]), cached), "a page is not where it should be"
        assert np.array_equal(self.arrays.place[self.arrays.page[frames]], frames), "a frame holds another page"
        assert len(self) <= self.arrays.state[MOST]
