"""How budgets are split, said once for joins and cost models: what every join has, and what front stages have.

Whatever the algorithm, there is room for tuples that come, pairs found, and results.
"""

from __future__ import annotations

import math
from enum import Enum

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

PAIR_BYTES = 24
_LEAST_PAIRS = 64
_MOST_PAIRS = 1 << 16
_LEAST_INBOX = 4096
_MOST_INBOX = 1 << 23
_LEAST_RESULTS = 4096
_FEW_RESULTS = 1 << 17
_MOST_RESULTS = 1 << 22
_LEAST_CACHED = 16
_LEAST_BUFFER = 4096
_LEAST_AHEAD = 8192
_MOST_AHEAD = 1 << 16
"""More would not let the phases overlap more: one batch is taken while the next is made."""
LEAST_SHARE = 0.1
"""Share of the memory that a cache has by default, however little there is."""
_TURN_TUPLES = 64
"""Tuples that a turn of HYBRIDJOIN should serve: a turn takes up to a millisecond of the processor beside them."""
_PAGES_BY_TUPLES = 0.48
"""Shares of the memory for pages and for waiting tuples, 0.4 and 0.6, multiplied, and by 2 for what skew adds."""
_UPDATED_PAGE_BYTES = 26
"""Of the index, for each page of an R that has been updated."""
LEAST_BETWEEN = _LEAST_BUFFER + _LEAST_AHEAD
"""What lies between two phases that run in parallel takes at least this."""


class Lending(Enum):
    """What of these parts the stage before a join has, and the join so need not have."""

    NOTHING = "no stage is before it"
    ARRIVALS = (
        "room for tuples that come, and a page for single look-ups: pairs and results of both may be there at once"
    )
    ALL = "everything: while one of the two works, the other rests"


def common_parts(total: int, lending: Lending = Lending.NOTHING) -> tuple[int, int, int]:
    """Return what a join has of so many bytes: bytes of the stream buffer, pairs found at once, bytes of a result.

    A batch of results has a part of 32, but of a small budget a 16th: many small ones would cost too much. What is
    lent is 0.
    """
    inbox, pairs, results = _shares(total, lending)
    return int(inbox), int(pairs // PAIR_BYTES), int(results)


def least_budget(others: int, lending: Lending = Lending.NOTHING) -> int:
    """Return the smallest budget that, like any larger one, leaves ``others`` bytes beside these parts."""
    # they grow with the budget, though more slowly: from below, the first that fits is the least
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
    """Return how many tuples a front stage caches: a share of its room, of which the join behind needs ``behind``."""
    wished = int((room * share - HotTuples.fixed_bytes()) // tuple_bytes)
    spare = int((room - behind - HotTuples.fixed_bytes()) // tuple_bytes)
    return max(_LEAST_CACHED, min(wished, spare, rows))


def memory_of_long_turns(pages: int, frame_bytes: int, tuple_bytes: float) -> int:
    """Return the memory with which a turn of HYBRIDJOIN on an R of so many pages serves many tuples.

    A turn that reads ``f`` pages serves about ``2·f·h / pages`` of the ``h`` tuples that wait. Both ``f`` and ``h``
    grow with the memory, so with a quarter of this memory a turn serves a sixteenth of the tuples.

    >>> memory_of_long_turns(1_335, 8192, 100.0) < 400_000 < 3_000_000 < memory_of_long_turns(152_000, 8192, 100.0)
    True
    """
    return math.ceil(math.sqrt(_TURN_TUPLES * frame_bytes * tuple_bytes * pages / _PAGES_BY_TUPLES))


def growth_of_index(pages: int, index_bytes: int) -> int:
    """Return what the index of an R of so many pages will take more than now when R has been updated.

    Whoever leaves a cache to others, whose size must stay the same, leaves room for that, too.
    """
    return max(0, _UPDATED_PAGE_BYTES * pages - index_bytes)


def cache_share_for_zipf(room: int, tuple_bytes: float, rows: int) -> float:
    """Return the best share of a cache before MESHJOIN for a stream of Zipf exponent 1 (CMESHJOIN §3.2)."""
    # the root satisfies M/(u·h) = 1 + ln(R_t/h), whose right side falls slowly: iteration converges
    most = room / tuple_bytes
    held = most / 2
    for _ in range(32):
        held = most / (1.0 + math.log(max(rows / held, 1.0)))
    return min(held / most, 0.9)


def parts_between(total: int, free: int, least: int, buffer_share: float) -> tuple[int, int]:
    """Return the bytes of results made ahead and of the buffer between two phases that run in parallel.

    ``free`` bytes are left of the budget, of which both phases need ``least``.
    """
    ahead = min(max(_LEAST_AHEAD, min(total // 64, _MOST_AHEAD)), max(_LEAST_AHEAD, free - least - LEAST_BETWEEN))
    buffer = min(max(_LEAST_BUFFER, int(total * buffer_share)), max(_LEAST_BUFFER, free - ahead - least))
    return ahead, buffer
