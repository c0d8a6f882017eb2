"""What SSIJ can gain over MESHJOIN by its paper's own numbers, however well it is implemented."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.papers.ssij.ssij_setups import FILL, KEY_ROWS, table_two
from semistream_lab.experiments.spec import PAGE_BYTES, Workload

__all__ = ["limit_by_keys", "limit_by_memory", "limit_of_gain", "table_two_limit"]

_ROWS, _ROW_BYTES, _STREAM = 80_000_000, 128, 20_000_000
"""The paper's R: its tuples, and the bytes of a tuple; the tuples of its stream."""
_WAITING = 164
"""Bytes of a waiting tuple in MESHJOIN, by its authors' formula."""
_IMPLIED = 126
"""Bytes of a tuple that 375 MB, 5500 tuples/s and 9 min imply (Figure 16)."""
_SHOWN = (0.01, 0.05, 0.1)


@functools.cache
def table_two_limit(fraction: float, rows_per_key: int = KEY_ROWS) -> float:
    """Return the highest gain over MESHJOIN with Table II and skew 1, on an endless stream.

    A join phase serves ``SB_thresh / (1 - p)`` tuples if cached pages answer the share ``p``, and at most ``IB_thresh``
    more, because it begins after a look-up (§V). All memory holds the most frequent pages. A phase reads only the pages
    that its tuples need, in runs of ``maxScan`` pages without a gap, or all of R. A pass of MESHJOIN serves the tuples
    that fill the memory, and reads all of R in the same runs (§V), so a page takes the same time in both.

    >>> round(table_two_limit(0.01), 1), table_two_limit(0.1) < 1.1 < table_two_limit(0.01, 1)
    (3.5, True)
    """
    base = Workload(rows=_ROWS, row_bytes=_ROW_BYTES)
    memory = fraction * base.nbytes
    table = table_two(1.0, memory, base)
    keys, pages = _ROWS / rows_per_key, base.nbytes / (PAGE_BYTES * FILL)
    groups = int(min(keys, pages))  # pages of several keys, or keys of several pages
    if keys <= pages:
        shares = 1.0 / np.arange(1, groups + 1)
    else:
        shares = np.diff(np.log(np.arange(groups + 1) * (keys / groups) + 0.5))
    shares /= shares.sum()
    cached = int(memory / PAGE_BYTES / (pages / groups))
    served = table["buffer_tuples"] / (1.0 - float(shares[:cached].sum())) + table["input_tuples"]
    wanted = pages / groups * float(-np.expm1(-served * shares[cached:]).sum())
    return float(served / min(wanted, pages) / (memory / _WAITING / pages))


_IDEAL = (
    "The paper's own numbers do not allow it. By Table II a join phase serves SB_thresh/(1 - p) tuples if cached pages "
    "answer the share p of the stream, and at most one batch of IB_thresh more. Suppose that all memory holds the most "
    "frequent pages, that a phase reads only pages that its tuples need, in runs of maxScan without a gap, and that "
    "nothing else costs time. MESHJOIN reads R in the same runs (§V), for the tuples that fill the memory, "
    f"{_WAITING} bytes each; with fewer bytes it would be faster. Then, on an endless stream, SSIJ gains at most"
)


def limit_by_memory(_: Outcome) -> str:
    """Prove what SSIJ can gain at most, by memory."""
    gains = ", ".join(f"{table_two_limit(part):.2f}× with {part:.0%} memory" for part in _SHOWN)
    left = 1.0 - _SHOWN[-1] * _ROWS * _ROW_BYTES / _IMPLIED / _STREAM
    return (
        f"{_IDEAL} {gains}: with more than 1 % the threshold is the same at all memories, while MESHJOIN's tuples grow "
        f"with memory. The paper's stream ends after {_STREAM / 1e6:g} M tuples, and those that memory still holds "
        f"need not be served: with {_SHOWN[-1]:.0%} memory and the {_IMPLIED} bytes per tuple that Figure 16 implies, "
        f"this makes it {1.0 / left:.2f} times as much, {table_two_limit(_SHOWN[-1]) / left:.2f}×."
    )


def limit_by_keys(_: Outcome) -> str:
    """Prove what SSIJ can gain at most, by the tuples per key."""
    gains = ", ".join(f"{table_two_limit(0.05, count):.2f}× at K = {count}" for count in (1, 10, 100, 400))
    return (
        f"{_IDEAL} {gains}, with 5 % memory: as K grows there are fewer keys, so cached pages answer less, and a tuple "
        "needs more pages."
    )


def limit_of_gain(rows_per_key: int) -> Callable[[Outcome], str]:
    """Return the proof of what SSIJ can gain at most at one number of tuples per key."""

    def because(_: Outcome) -> str:
        gains = ", ".join(f"{table_two_limit(part, rows_per_key):.2f}× with {part:.0%} memory" for part in _SHOWN)
        return f"{_IDEAL} {gains}, at K = {rows_per_key}."

    return because
