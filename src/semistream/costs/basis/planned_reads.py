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
    the keys requested in a ``cycle`` follow from them; else they follow from the pages.
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
    """Return stretches of R with about the same density each, the first of ``columns``, and the means of all of these.

    Neighbouring classes are taken together.
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
    """Return runs and pages of a plan for a stretch of R in which a share of the keys is wanted.

    A key has ``each`` pages, and where it begins or ends in the middle of one, its neighbour has the rest of that. Of
    these pages a share is ``cached``.
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
    # the stretch may have been drawn with a few keys more or less than expected
    scale = chance * keys / drawn.size
    return runs * scale, total * scale


def _covered(pages: Ints, begin: Ints, end: Ints) -> Bools:
    """Say of each page whether the last key that begins there or before ends after it."""
    return np.asarray(end[np.searchsorted(begin, pages, side="right") - 1] > pages)
