"""The page cache against a model: which pages stay, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.joins.ssij.frame_pool import FramePool
from semistream.joins.ssij.page_cache import WANTED, Cache, PageCache, Replacement, Tally, Verdict, list_wanted, touch

FRAME = 64


def make(frames: int = 8, pages: int = 40, replacement: Replacement = "utility", limit: int | None = None) -> PageCache:
    return PageCache(FramePool(np.zeros((frames, FRAME), np.uint8)), pages, replacement, limit)


def contents(cache: PageCache) -> dict[int, int]:
    """Return the pages held, and the first byte of each, which tells what was copied."""
    places = cache.arrays.place
    return {int(page): int(cache.pool.frames[places[page], 0]) for page in np.flatnonzero(places >= 0)}


def want(cache: PageCache, pages: list[int]) -> None:
    """Mark pages as wanted, as the inverted index does; entries are not looked at here."""
    cache.arrays.place[pages] = WANTED - np.arange(len(pages))


def tally(*utilities: float) -> Tally:
    """Count wanted pages by their utility, as the inverted index does."""
    bits = np.array(utilities, np.float32).view(np.uint32).astype(np.int64)

    def add(cache: Cache, prefix: int, shift: int, counts: Ints) -> None:
        counts += np.bincount(bits[bits >> (shift + 8) == prefix] >> shift & 255, minlength=256)

    return add


def read(cache: PageCache, wanted: dict[int, float], between: tuple[int, ...] = ()) -> Verdict:
    """Run a join phase: decide, read wanted pages and those in between, in order, settle."""
    want(cache, list(wanted))
    verdict = cache.decide(len(wanted), tally(*wanted.values()))
    pages = np.array(sorted([*wanted, *between]), np.int64)
    frames = np.zeros((pages.size, FRAME), np.uint8)
    frames[:, 0] = pages
    utility = np.array([wanted.get(int(page), 0) for page in pages], np.float32)
    cache.settle(pages, frames, utility, verdict)
    cache.check()
    return verdict


def hit(cache: PageCache, page: int, times: int = 1) -> None:
    for _ in range(times):
        touch(cache.arrays.score, cache.arrays.state, int(cache.arrays.place[page]))


def test_pages_that_fit_are_all_kept_and_those_in_between_are_dropped() -> None:
    cache = make()
    read(cache, {3: 1, 9: 4}, between=(4, 5))
    assert contents(cache) == {3: 3, 9: 9}
    assert (cache.kept, cache.between, cache.pool.free) == (2, 2, 6)
    assert cache.arrays.place[[4, 5]].tolist() == [-1, -1]


def test_pages_of_largest_utility_stay() -> None:
    cache = make(frames=4)
    read(cache, {0: 5, 1: 1, 2: 3, 3: 2})
    cache.age(0.0)
    cache.tick()
    for page, times in ((0, 2), (1, 7), (2, 1), (3, 4)):
        hit(cache, page, times)
    verdict = read(cache, {10: 3, 11: 1, 12: 9, 13: 2})
    # utilities: 1→7, 12→9, 3→4, 10→3 are the four largest; 0 and 13 have 2
    assert contents(cache) == {1: 1, 3: 3, 10: 10, 12: 12}
    assert verdict.threshold == 3


@given(
    st.integers(1, 12),
    st.lists(st.integers(0, 6), max_size=12),
    st.lists(st.integers(1, 6), max_size=25),
    st.integers(0, 12),
)
def test_the_decision_is_the_largest_utilities_of_all(
    frames: int, cached: list[int], wanted: list[int], for_tuples: int
) -> None:
    cache = make(frames, pages=60)
    cached = cached[:frames]
    read(cache, dict.fromkeys(range(len(cached)), 1.0))
    cache.age(0.0)
    cache.tick()
    for page, times in enumerate(cached):
        hit(cache, page, times)
    free = cache.pool.free
    taken = min(for_tuples, free)
    cache.pool.arrays.state[0] -= taken  # as if tuples had these frames
    room = len(cached) + free - taken
    utilities = {30 + i: float(count) for i, count in enumerate(wanted)}
    read(cache, utilities)
    everyone = {**dict(enumerate(map(float, cached))), **utilities}
    held = [everyone[page] for page in contents(cache)]
    assert sorted(held, reverse=True) == sorted(everyone.values(), reverse=True)[:room]
    assert all(page == byte for page, byte in contents(cache).items())


def test_cached_pages_win_ties_so_that_nothing_is_copied_for_nothing() -> None:
    cache = make(frames=3)
    read(cache, {0: 1, 1: 1, 2: 1})
    read(cache, {10: 1, 11: 1})
    assert contents(cache) == {0: 0, 1: 1, 2: 2}


def test_eviction_takes_the_least_useful() -> None:
    cache = make(frames=6)
    read(cache, {page: float(page) for page in range(1, 7)})
    assert cache.evict(2) == 2
    assert sorted(contents(cache)) == [3, 4, 5, 6]
    assert (cache.evictions, cache.pool.free) == (2, 2)
    assert cache.evict(100) == 4
    assert contents(cache) == {}
    cache.check()


def test_frames_lost_to_tuples_meanwhile_are_not_written_to() -> None:
    cache = make(frames=3)
    read(cache, {0: 1, 1: 2, 2: 3})
    want(cache, [10, 11])
    verdict = cache.decide(2, tally(9, 9))  # 0 and 1 are to be replaced
    cache.forget(np.array([0]))
    cache.pool.arrays.state[0] -= 1  # a tuple takes that frame
    frames = np.zeros((2, FRAME), np.uint8)
    cache.settle(np.array([10, 11]), frames, np.array([9, 9], np.float32), verdict)
    assert sorted(contents(cache)) == [2, 10]
    cache.check()


def test_lru_lets_pages_just_read_push_out_useful_ones() -> None:
    cache = make(frames=4, replacement="lru")
    read(cache, {0: 1, 1: 1, 2: 1, 3: 1})
    cache.tick()
    hit(cache, 2, 100)
    cache.tick()
    hit(cache, 0)
    cache.tick()
    read(cache, {10: 1, 11: 1})
    assert sorted(contents(cache)) == [0, 2, 10, 11], "the longest unused went, whatever the others serve"
    cache.tick()
    read(cache, dict.fromkeys(range(20, 30), 1.0))
    assert sorted(contents(cache)) == [26, 27, 28, 29], "of more pages than fit, those read last are the most recent"


def test_without_replacement_nothing_is_cached() -> None:
    cache = make(replacement="none")
    read(cache, {0: 1, 1: 50})
    assert contents(cache) == {}
    assert cache.pool.free == 8


def test_a_limit_is_kept() -> None:
    cache = make(frames=8, limit=3)
    read(cache, {page: float(page) for page in range(1, 8)})
    assert sorted(contents(cache)) == [5, 6, 7]


def test_changed_pages_are_forgotten_and_the_map_grows_with_the_relation() -> None:
    cache = make(pages=10)
    read(cache, {1: 1, 2: 1, 3: 1})
    cache.forget(np.array([0, 2, 3, 99]))
    assert contents(cache) == {1: 1}
    cache.resize(12)
    read(cache, {11: 2})
    assert contents(cache) == {1: 1, 11: 11}


def test_utility_fades() -> None:
    cache = make()
    read(cache, {0: 8})
    for share, before, after in ((0.5, 8, 4), (0.0, 4, 0)):
        cache.age(share)
        assert cache.arrays.score[cache.frames()].tolist() == [before], "until pages are used again"
        cache.tick()
        cache.tick()
        assert cache.arrays.score[cache.frames()].tolist() == [after]


def test_wanted_pages_are_listed_in_order() -> None:
    cache = make()
    want(cache, [9, 3, 31])
    room: NDArray[np.int32] = np.empty(5, np.int32)
    assert list_wanted(cache.arrays.place, 0, room) == 3
    assert room[:3].tolist() == [3, 9, 31]
    assert list_wanted(cache.arrays.place, 4, room[:1]) == 1, "no more than there is room for"
    assert room[0] == 9
    assert list_wanted(cache.arrays.place, 32, room) == 0


def test_memory_is_what_was_said() -> None:
    cache = make(frames=5, pages=77)
    assert cache.nbytes == 5 * PageCache.bytes_per_frame + 77 * PageCache.bytes_per_page


def test_unknown_replacement() -> None:
    with pytest.raises(ValueError, match="fifo"):
        make(replacement="fifo")  # type: ignore[arg-type]
