"""The cost of reading scattered pages of R: generates such a set, and plans its reads as the joins do."""

from __future__ import annotations

import functools

import numpy as np

from semistream.core.arrays import Bools, Floats, Ints
from semistream.costs.basis.page_utility import PageClasses
from semistream.costs.basis.setting import Setting
from semistream.structures.read_plan import ReadPlanner

__all__ = ["planned_reads"]


_STRETCH = 8192


def planned_reads(
    setting: Setting, items: PageClasses, density: Floats, scan: int, read: int, shares: Floats | None = None,
    cycle: float = 0.0,
) -> tuple[float, float, float]:  # fmt: skip
    """Return runs, pages read and pages requested, if a share ``density`` of each class of pages is requested.

    A run has at most ``scan`` pages, and ``read`` pages are read together. If the ``shares`` of cached pages are given,
    the keys requested in a ``cycle`` are computed from them; otherwise from ``density``.
    """
    ratio = setting.queued_seek / setting.transfer
    there = np.zeros(density.size)
    if shares is not None and items.each > 1.0:
        chances = items.chances(shares, cycle)
        there = shares[-1] if len(shares) > 1 else there
    else:  # a page is requested with any key that has rows on it
        chances = 1.0 - (1.0 - density) ** (items.each / items.pages_a_key) if items.each > 1.0 else density
    columns = np.stack([density, chances, there * density])
    if setting.shape == "random":
        whole = float(items.count.sum())
        stretches = [(whole, columns @ items.count / whole)]
    else:
        stretches = _merged(items.count, columns)
    runs = pages = wanted = 0.0
    for count, (share, chance, cached) in stretches:
        keys = max(1, round(min(count, _STRETCH) / items.each))
        found = _planned(
            keys, float(f"{chance:.3g}"), round(items.each, 3), round(ratio, 3), scan, read,
            float(round(cached / max(share, 1e-9), 2)),
        )  # fmt: skip
        runs += found[0] * count / (keys * items.each)
        pages += found[1] * count / (keys * items.each)
        wanted += count * share
    return max(runs, 1e-9), pages, wanted


def _merged(count: Floats, columns: Floats) -> list[tuple[float, Floats]]:
    """Merge neighbouring classes of similar density, which is the first of ``columns``.

    Returns the number of pages of each merged class, and its means of all ``columns``.
    """
    stretches: list[tuple[float, Floats]] = []
    held, sums, first = 0.0, np.zeros(len(columns)), float(columns[0, 0])
    for pages, values in zip(count.tolist(), columns.T, strict=True):
        if held >= 256 and abs(values[0] - first) > 0.05 * max(first, 0.02):
            stretches.append((held, sums / held))
            held, sums, first = 0.0, np.zeros(len(columns)), float(values[0])
        held += pages
        sums = sums + pages * values
    stretches.append((held, sums / held))
    return stretches


@functools.lru_cache(maxsize=4096)
def _planned(
    keys: int, chance: float, each: float, ratio: float, scan: int, read: int, cached: float = 0.0
) -> tuple[float, float]:
    """Return runs and pages of a plan for a part of R with ``keys`` keys, of which a share ``chance`` is wanted.

    A key has ``each`` pages. If it begins or ends in the middle of a page, the neighbouring key has the rest of this
    page. ``cached`` is the share of such shared pages that is cached.
    """
    random = np.random.default_rng(7)
    drawn = np.flatnonzero(random.random(keys) < chance)
    if drawn.size == 0:
        return chance * keys, chance * keys * each
    begin, end = np.floor(drawn * each).astype(np.int64), np.ceil((drawn + 1) * each - 1e-9).astype(np.int64)
    chosen = np.unique(np.concatenate([begin + i for i in range(int(np.max(end - begin)))]))
    chosen = chosen[_covered(chosen, begin, end)].astype(np.int32)
    if cached > 0.0:
        borders = np.floor(np.arange(1, keys) * each).astype(np.int32)
        left = np.setdiff1d(chosen, borders[random.random(borders.size) < cached])
        chosen = left if left.size else chosen[:1]
    plan = ReadPlanner(chosen.size, seek=ratio, transfer=1.0, max_scan=scan).plan(chosen)
    listed = np.empty(max(read, scan), np.int64)
    runs = total = at = 0
    while at < chosen.size:
        together, at = plan.list_pages(at, listed)
        runs += 1 + int(np.count_nonzero(np.diff(together) != 1))
        total += together.size
    # the random draw may have a few keys more or less than expected
    scale = chance * keys / drawn.size
    return runs * scale, total * scale


def _covered(pages: Ints, begin: Ints, end: Ints) -> Bools:
    """Return for each page whether the last key that begins on it or earlier also covers it."""
    return np.asarray(end[np.searchsorted(begin, pages, side="right") - 1] > pages)
