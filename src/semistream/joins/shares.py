"""How budgets are split, shared by joins and cost models: the parts of every join, and the parts of front stages.

Every join has room for arriving tuples, pairs and results.
"""

from __future__ import annotations

import math
from enum import Enum

from semistream.relation.relation import Relation
from semistream.structures.array_source import coarse
from semistream.structures.hot.hot_tuples import HotTuples

__all__ = [
    "LEAST_BETWEEN",
    "LEAST_SHARE",
    "PAIR_BYTES",
    "Lending",
    "cache_share_for_zipf",
    "cached_tuples",
    "common_parts",
    "growth_of_index",
    "least_budget",
    "least_cache",
    "memory_of_long_turns",
    "parts_between",
]

PAIR_BYTES = 24  # bytes of a pair
_LEAST_PAIRS = 64  # minimum pairs collected together
_MOST_PAIRS = 1 << 16  # maximum pairs collected together
_LEAST_INBOX = 4096  # minimum bytes of the stream buffer
_MOST_INBOX = 1 << 23  # maximum bytes of the stream buffer
_LEAST_RESULTS = 4096  # minimum bytes of a batch of results
_FEW_RESULTS = 1 << 17  # bytes up to which a batch of results gets 1/16 instead of 1/32 of the budget
_MOST_RESULTS = 1 << 22  # maximum bytes of a batch of results
_LEAST_CACHED = 16  # minimum tuples of a front stage's cache
_LEAST_BUFFER = 4096  # minimum bytes of the buffer between parallel phases
_LEAST_AHEAD = 8192  # minimum bytes of results made ahead
_MOST_AHEAD = 1 << 16
"""Maximum bytes of results made ahead. More does not improve the overlap: one batch is taken while the next is made."""
LEAST_SHARE = 0.1
"""Minimum share of the memory for a cache by default, also in small budgets."""
_TURN_TUPLES = 64
"""Tuples that an iteration of HYBRIDJOIN should serve: it costs up to a millisecond of CPU time in addition to them."""
_PAGES_BY_TUPLES = 0.48
"""Product of the shares of memory for pages and for waiting tuples, 0.4 and 0.6, times 2 for the effect of skew."""
_UPDATED_PAGE_BYTES = 26
"""Bytes of the index for each page of an updated R."""
LEAST_BETWEEN = _LEAST_BUFFER + _LEAST_AHEAD
"""Minimum bytes of the buffers between two parallel phases."""


class Lending(Enum):
    """Which of these parts a join shares with the stage before it, so that it needs none of its own."""

    NOTHING = "there is no stage before it"
    ARRIVALS = (
        "room for arriving tuples, and a page for single look-ups: both may hold pairs and results at the same time"
    )
    ALL = "everything: only one of the two works at a time"


def common_parts(total: int, lending: Lending = Lending.NOTHING) -> tuple[int, int, int]:
    """Return how a budget of ``total`` bytes is split: bytes of the stream buffer, number of pairs, bytes of a result.

    A batch of results gets 1/32 of the budget, but 1/16 of a small one: many small batches would cost too much. Parts
    that are lent are 0.
    """
    inbox, pairs, results = _shares(total, lending)
    return int(inbox), int(pairs // PAIR_BYTES), int(results)


def least_budget(others: int, lending: Lending = Lending.NOTHING) -> int:
    """Return the smallest budget that, like any larger one, leaves ``others`` bytes in addition to these parts."""
    # The parts grow more slowly than the budget: starting from below, the first budget that fits is the smallest.
    least = others
    while (needed := math.ceil(others + sum(_shares(least, lending)))) > least:
        least = needed
    return least


def _shares(total: int, lending: Lending) -> tuple[float, float, float]:
    if lending is Lending.ALL:
        return 0, 0, 0
    return (
        0 if lending is Lending.ARRIVALS else min(max(total / 16, _LEAST_INBOX), _MOST_INBOX),
        min(max(total / 16, _LEAST_PAIRS * PAIR_BYTES), _MOST_PAIRS * PAIR_BYTES),
        min(max(total / 32, min(total / 16, _FEW_RESULTS), _LEAST_RESULTS), _MOST_RESULTS),
    )


def least_cache(tuple_bytes: float) -> int:
    """Return the bytes of the smallest cache of a front stage."""
    return int(HotTuples.fixed_bytes() + _LEAST_CACHED * tuple_bytes)


def cached_tuples(room: int, share: float, behind: int, tuple_bytes: float, rows: int) -> int:
    """Return how many tuples a front stage caches: a share of its room, less if the join behind needs ``behind``."""
    wished = int((room * share - HotTuples.fixed_bytes()) // tuple_bytes)
    spare = int((room - behind - HotTuples.fixed_bytes()) // tuple_bytes)
    return max(_LEAST_CACHED, min(wished, spare, rows))


def memory_of_long_turns(pages: int, index_bytes: int, frame_bytes: int, tuple_bytes: float) -> int:
    """Return the memory with which an iteration of HYBRIDJOIN on an R of ``pages`` pages serves many tuples.

    An iteration that reads ``f`` pages serves about ``2·f·h / pages`` of the ``h`` tuples that wait. Both ``f`` and
    ``h`` grow with the memory, so with a quarter of this memory an iteration serves a sixteenth of the tuples. The
    index counts as after an update of R, and the result is rounded, so that a small update does not change the size of
    a cache that others have filled.

    >>> least = [memory_of_long_turns(pages, 9 * pages, 8192, 100.0) for pages in (1_335, 152_000)]
    >>> least[0] < 450_000 < 3_000_000 < least[1]
    True
    """
    together = math.sqrt(_TURN_TUPLES * frame_bytes * tuple_bytes * pages / _PAGES_BY_TUPLES)
    return coarse(index_bytes + _growth(pages, index_bytes) + math.ceil(together), up=True)


def growth_of_index(relation: Relation) -> int:
    """Return how many more bytes the index of R will need after an update of R.

    A cache in files must keep its size after an update, so it leaves room for this growth.
    """
    return _growth(relation.page_count, relation.index_bytes - relation.packing_bytes)


def _growth(pages: int, index_bytes: int) -> int:
    return max(0, _UPDATED_PAGE_BYTES * pages - index_bytes)


def cache_share_for_zipf(room: int, tuple_bytes: float, rows: int) -> float:
    """Return the best share of a cache before MESHJOIN for a stream of Zipf exponent 1 (CMESHJOIN §3.2)."""
    # The root satisfies M/(u·h) = 1 + ln(R_t/h). The right side falls slowly, so the iteration converges.
    most = room / tuple_bytes
    held = most / 2
    for _ in range(32):
        held = most / (1.0 + math.log(max(rows / held, 1.0)))
    return min(held / most, 0.9)


def parts_between(total: int, free: int, least: int, buffer_share: float) -> tuple[int, int]:
    """Return the bytes of results made ahead and of the buffer between two phases that run in parallel.

    ``free`` bytes are left of the budget; both phases together need ``least`` of them.
    """
    ahead = min(max(_LEAST_AHEAD, min(total // 64, _MOST_AHEAD)), max(_LEAST_AHEAD, free - least - LEAST_BETWEEN))
    buffer = min(max(_LEAST_BUFFER, int(total * buffer_share)), max(_LEAST_BUFFER, free - ahead - least))
    return ahead, buffer
