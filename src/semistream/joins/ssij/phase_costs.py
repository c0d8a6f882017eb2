"""Estimates the cost of a join phase, so that it begins early enough for the deadlines of its tuples (SSIJ §IV-F).

At first each wanted page is assumed to cost a random read. After some phases with about the same number of pages, the
estimate is the highest cost of one of them, plus a margin: the next phase may cost more than any before, and tuples
that arrive just before it begins add pages.
"""

from __future__ import annotations

import math

__all__ = ["PhaseCosts"]

_STEPS_AN_OCTAVE = 4  # classes of phases per doubling of pages
_MARGIN = 1.15  # estimates are higher than the worst observation by this factor
_SURE = 4
"""Phases of a similar size after which the worst of them is trusted: one or two may have been cheap by chance."""


class PhaseCosts:
    """Seconds of a join phase by the number of pages it reads.

    Parameters
    ----------
    seek, transfer
        Seconds of a seek, and of the transfer of one page.
    page_count, max_scan
        Pages of R, and of the longest run: no read plan costs more than reading all of R in such runs.

    Examples
    --------
    >>> costs = PhaseCosts(seek=0.009, transfer=0.001, page_count=1000, max_scan=100)
    >>> round(costs.estimate(8), 3), round(costs.estimate(1000), 3)
    (0.092, 1.254)
    >>> for seconds in (0.03, 0.05, 0.04, 0.03):
    ...     costs.observe(8, seconds)
    >>> round(costs.estimate(8), 3), round(costs.estimate(9), 3)
    (0.057, 0.065)

    Notes
    -----
    Phases with similar numbers of pages (within a quarter of an octave, less than a fifth) form a class. For each class
    the highest cost and the highest cost per page are kept; the estimate is the larger result of the two, plus 15 %.
    Both methods take constant time. Three numbers are kept for each observed class, with four classes per octave.
    """

    def __init__(self, *, seek: float, transfer: float, page_count: int, max_scan: int) -> None:
        self._random = seek + transfer
        self._scan = math.ceil(page_count / max_scan) * seek + page_count * transfer
        self._worst: dict[int, tuple[int, float, float]] = {}

    def estimate(self, pages: int) -> float:
        """Return the seconds to allow for a join phase over ``pages``."""
        if pages <= 0:
            return 0.0
        phases, cost, cost_a_page = self._worst.get(self._class(pages), (0, 0.0, 0.0))
        worst = max(cost, pages * cost_a_page)
        if phases < _SURE:
            worst = max(worst, min(pages * self._random, self._scan))
        return _MARGIN * worst

    def observe(self, pages: int, seconds: float) -> None:
        """Record the cost of a join phase."""
        if pages > 0:
            phases, cost, cost_a_page = self._worst.get(self._class(pages), (0, 0.0, 0.0))
            self._worst[self._class(pages)] = phases + 1, max(cost, seconds), max(cost_a_page, seconds / pages)

    @staticmethod
    def _class(pages: int) -> int:
        return int(_STEPS_AN_OCTAVE * math.log2(pages))
