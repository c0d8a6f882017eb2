"""What it takes to read pages that lie here and there in R: such a set is made, and planned as the joins do it."""

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
    setting: Setting, items: PageClasses, density: Floats, scan: int, read: int
) -> tuple[float, float, float]:
    """Return runs, pages read and pages wanted, if of each class of pages a share of ``density`` is wanted.

    A run has ``scan`` pages at most, and ``read`` pages are read together.
    """
    ratio = setting.queued_seek / setting.transfer
    if setting.shape == "random":
        mean = float(np.dot(items.count, density) / items.count.sum())
        stretches = [(float(items.count.sum()), mean)]
    else:
        stretches = _merged(items.count, density)
    runs = pages = wanted = 0.0
    for count, share in stretches:
        keys = max(1, round(min(count, _STRETCH) / items.each))
        # a page is wanted with any key that has rows on it
        chance = 1.0 - (1.0 - share) ** (items.each / items.pages_a_key) if items.each > 1.0 else share
        found = _planned(keys, float(f"{chance:.3g}"), round(items.each, 3), round(ratio, 3), scan, read)
        runs += found[0] * count / (keys * items.each)
        pages += found[1] * count / (keys * items.each)
        wanted += count * share
    return max(runs, 1e-9), pages, wanted


def _merged(count: Floats, density: Floats) -> list[tuple[float, float]]:
    """Return stretches of R with about the same density each, neighbouring classes taken together."""
    stretches: list[tuple[float, float]] = []
    held, wanted, first = 0.0, 0.0, float(density[0])
    for pages, share in zip(count.tolist(), density.tolist(), strict=True):
        if held >= 256 and abs(share - first) > 0.05 * max(first, 0.02):
            stretches.append((held, wanted / held))
            held, wanted, first = 0.0, 0.0, share
        held += pages
        wanted += pages * share
    stretches.append((held, wanted / held))
    return stretches


@functools.lru_cache(maxsize=4096)
def _planned(keys: int, chance: float, each: float, ratio: float, scan: int, read: int) -> tuple[float, float]:
    """Return runs and pages of a plan for a stretch of R in which a share of the keys is wanted.

    A key has ``each`` pages, and where it begins or ends in the middle of one, its neighbour has the rest of that.
    """
    drawn = np.flatnonzero(np.random.default_rng(7).random(keys) < chance)
    if drawn.size == 0:
        return chance * keys, chance * keys * each
    begin, end = np.floor(drawn * each).astype(np.int64), np.ceil((drawn + 1) * each - 1e-9).astype(np.int64)
    chosen = np.unique(np.concatenate([begin + i for i in range(int(np.max(end - begin)))]))
    chosen = chosen[_covered(chosen, begin, end)].astype(np.int32)
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
