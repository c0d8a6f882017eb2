"""What every join has of its budget, whatever the algorithm: room for tuples that come, pairs found, and results."""

from __future__ import annotations

import math

__all__ = ["PAIR_BYTES", "common_parts", "least_budget"]

PAIR_BYTES = 24
_LEAST_PAIRS = 64
_MOST_PAIRS = 1 << 16
_LEAST_INBOX = 4096
_MOST_INBOX = 1 << 23
_LEAST_RESULTS = 4096
_FEW_RESULTS = 1 << 17
_MOST_RESULTS = 1 << 22


def common_parts(total: int) -> tuple[int, int, int]:
    """Return what a join has of so many bytes: bytes of the stream buffer, pairs found at once, bytes of a result.

    A batch of results has a part of 32, but of a small budget a 16th: many small ones would cost too much.
    """
    inbox, pairs, results = _shares(total)
    return int(inbox), int(pairs // PAIR_BYTES), int(results)


def least_budget(others: int) -> int:
    """Return the smallest budget that, like any larger one, leaves ``others`` bytes beside these parts."""
    # they grow with the budget, though more slowly: from below, the first that fits is the least
    least = others
    while (needed := math.ceil(others + sum(_shares(least)))) > least:
        least = needed
    return least


def _shares(total: int) -> tuple[float, float, float]:
    return (
        min(max(total / 16, _LEAST_INBOX), _MOST_INBOX),
        min(max(total / 16, _LEAST_PAIRS * PAIR_BYTES), _MOST_PAIRS * PAIR_BYTES),
        min(max(total / 32, min(total / 16, _FEW_RESULTS), _LEAST_RESULTS), _MOST_RESULTS),
    )
