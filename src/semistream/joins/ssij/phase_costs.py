"""What a join phase will cost, so that it begins early enough for the deadlines of its tuples (SSIJ §IV-F).

At first each wanted page is taken to cost a random read. After some phases over about as many pages, what counts is the
worst that one of them has cost, and some more: the next one may cost more than any before it, and tuples that come just
before it begins bring pages of their own.
"""

from __future__ import annotations

import math

__all__ = ["PhaseCosts"]

_STEPS_AN_OCTAVE = 4
_MARGIN = 1.15
_SURE = 4
"""Phases of a similar size after which the worst of them is a guide: one or two may have been cheap by chance."""


class PhaseCosts:
    """Seconds of a join phase by the number of pages it reads.

    Parameters
    ----------
    seek, transfer
        Seconds of a seek, and of the transfer of one page.
    page_count, max_scan
        Pages of R, and of the longest run: no read plan costs more than all of R in such runs.

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
    Numbers of pages are similar if they differ by less than a fifth (a quarter of an octave). Within that, the worst
    cost and the worst cost a page are both kept, and the estimate is the larger of what they say, and 15 % more. Both
    calls take constant time; held are three numbers for each class of phases seen, four classes an octave.
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
        """Remember what a join phase has cost."""
        if pages > 0:
            phases, cost, cost_a_page = self._worst.get(self._class(pages), (0, 0.0, 0.0))
            self._worst[self._class(pages)] = phases + 1, max(cost, seconds), max(cost_a_page, seconds / pages)

    @staticmethod
    def _class(pages: int) -> int:
        return int(_STEPS_AN_OCTAVE * math.log2(pages))
