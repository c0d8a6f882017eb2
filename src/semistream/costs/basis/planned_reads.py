"""What it takes to read pages that lie here and there in R: such a set is made, and planned as the joins do it."""

from __future__ import annotations

import functools

import numpy as np

from semistream.core.arrays import Floats
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
        drawn = max(1, min(round(count), _STRETCH) // items.run) * items.run
        found = _planned(drawn, float(f"{share:.3g}"), items.run, round(ratio, 3), scan, read)
        runs += found[0] * count / drawn
        pages += found[1] * count / drawn
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
def _planned(pages: int, density: float, run: int, ratio: float, scan: int, read: int) -> tuple[float, float]:
    """Return runs and pages of a plan for a stretch of R of which a share is wanted, ``run`` pages here and there."""
    drawn = np.random.default_rng(7).random(pages // run) < density
    chosen = np.flatnonzero(np.repeat(drawn, run)).astype(np.int32)
    if chosen.size == 0:
        return density * pages, density * pages
    plan = ReadPlanner(chosen.size, seek=ratio, transfer=1.0, max_scan=scan).plan(chosen)
    listed = np.empty(max(read, scan), np.int64)
    runs = total = at = 0
    while at < chosen.size:
        together, at = plan.list_pages(at, listed)
        runs += 1 + int(np.count_nonzero(np.diff(together) != 1))
        total += together.size
    # the stretch may have been drawn with a few pages more or less than expected
    scale = density * pages / chosen.size
    return runs * scale, total * scale
