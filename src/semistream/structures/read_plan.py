"""Which pages to read together (SSIJ §IV-D): each single page costs a seek; a run also reads the pages in its gaps.

A run of ``n`` pages costs ``S + n·T``. The wanted pages are cut into runs. Each run begins and ends with a wanted page
and is at most ``max_scan`` pages long. Pages in between that are not wanted are read and discarded. The cheapest cut is
found from the last page backwards:

    OPT[j] = min over k ≥ j, p[k] - p[j] < max_scan, of  S + T·(p[k] - p[j] + 1) + OPT[k + 1]

where ``p[j]`` is the j-th wanted page. The paper tries every ``k`` for every ``j``, which takes ``O(n·max_scan)``. Only
``T·p[k] + OPT[k + 1]`` depends on ``k``, and the window of possible ``k`` moves with ``j``. A queue that keeps only the
values that can still become the minimum gives each minimum in constant time on average: ``O(n)`` in total, for any
``max_scan``.

Two wanted pages ``1 + S/T`` or more apart are never cheaper in one run; the recurrence covers this case.

Examples
--------
>>> plan = optimal_plan(np.array([3, 4, 9, 90], np.int32), seek=10.0, transfer=1.0, max_scan=200)
>>> [(int(first), int(length)) for first, length in zip(*plan.runs(), strict=True)]
[(3, 7), (90, 1)]
>>> plan.cost
28.0
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Floats, Ints
from semistream.core.compiled import Int, kernel

__all__ = ["Pages", "ReadPlan", "ReadPlanner", "greedy_plan", "optimal_plan"]

Pages = NDArray[np.int32]


@kernel
def _cut(pages: Pages, seek: float, max_scan: int, cost: Floats, ends: Pages, window: Pages) -> tuple[int, float]:
    """Fill ``ends[j]`` with the last wanted page of the best run from ``j``; the unit of costs is one page transfer.

    ``window`` is a ring of ``max_scan + 1`` places for the queue, and ``cost`` is a ring of ``max_scan + 2``: no run
    from here reaches further. Returns the number of queue operations and the total cost.
    """
    n = pages.size
    size, ring = window.size, cost.size
    cost[n % ring] = 0.0
    front, back = 0, 0  # the queue is window[front:back], around the ring; the least value is at the front
    operations = 0
    for j in range(n - 1, -1, -1):
        value = pages[j] + cost[(j + 1) % ring]
        # Drop ends that cost more than this one. On a tie, keep the later end: the longer run has fewer seeks.
        while back > front:
            last = window[(back - 1) % size]
            if pages[last] + cost[(last + 1) % ring] <= value:
                break
            back -= 1
            operations += 1
        window[back % size] = j
        back += 1
        while pages[window[front % size]] - pages[j] >= max_scan:
            front += 1
            operations += 1
        best = window[front % size]
        ends[j] = best
        cost[j % ring] = seek + 1.0 - pages[j] + (pages[best] + cost[(best + 1) % ring])
        operations += 1
    return operations, cost[0]


@kernel
def _cut_greedily(pages: Pages, most_between: float, max_scan: int, ends: Pages) -> None:
    n = pages.size
    j = 0
    while j < n:
        k = j
        while k + 1 < n and pages[k + 1] - pages[k] - 1 <= most_between and pages[k + 1] - pages[j] < max_scan:
            k += 1
        ends[j] = k
        j = k + 1


@kernel
def _runs(pages: Pages, ends: Pages) -> tuple[Ints, Ints]:
    first, length = np.empty(pages.size, np.int64), np.empty(pages.size, np.int64)
    count = 0
    j: Int = 0
    while j < pages.size:
        first[count] = pages[j]
        length[count] = pages[ends[j]] - pages[j] + 1
        count += 1
        j = np.int64(ends[j]) + 1
    return first[:count], length[:count]


@kernel
def _last_run(ends: Pages) -> Int:
    """Return where the last run begins."""
    last: Int = 0
    j: Int = 0
    while j < ends.size:
        last = j
        j = np.int64(ends[j]) + 1
    return last


@kernel
def _list_pages(pages: Pages, ends: Pages, begin: int, listed: Ints) -> tuple[Int, Int]:
    """List the pages of runs, starting with the run at ``begin``, while they fit; return the count and the next run."""
    count: Int = 0
    j: Int = begin
    while j < pages.size:
        length = np.int64(pages[ends[j]]) - pages[j] + 1
        if count + length > listed.size:
            break
        for i in range(length):
            listed[count + i] = pages[j] + i
        count += length
        j = np.int64(ends[j]) + 1
    return count, j


class ReadPlan(NamedTuple):
    """Wanted pages, ascending, cut into runs: the run from ``pages[j]`` ends at ``pages[ends[j]]``."""

    pages: Pages
    ends: Pages
    cost: float
    """Seconds, or whatever unit the costs were given in."""
    operations: int
    """Queue operations needed to find the plan."""

    def runs(self) -> tuple[Ints, Ints]:
        """Return first page and length of each run."""
        return _runs(self.pages, self.ends)

    def but_last(self) -> ReadPlan:
        """Return the plan without its last run, unless it is the only one: later pages may make another run cheaper."""
        last = int(_last_run(self.ends))
        return self._replace(pages=self.pages[:last], ends=self.ends[:last]) if last else self

    def list_pages(self, begin: int, listed: Ints) -> tuple[Ints, int]:
        """List the pages of some runs, including the pages between wanted ones.

        ``begin`` is 0 for the first call, then the value that the last call returned. The plan is done when it equals
        ``len(pages)``. A run is never cut: ``listed`` must have room for the longest run.
        """
        count, after = _list_pages(self.pages, self.ends, begin, listed)
        return listed[:count], int(after)


class ReadPlanner:
    """Makes read plans in arrays that it reuses; they need ``bytes_per_page`` for each wanted page of a plan.

    Planning takes time proportional to the number of wanted pages, for any ``max_scan``.

    Parameters
    ----------
    capacity
        Maximum number of wanted pages.
    seek, transfer
        Cost of a seek and of the transfer of a page (``S``, ``T``).
    max_scan
        Maximum pages of a run. Longer runs save seeks, and need a buffer of that size.
    """

    bytes_per_page = 8

    def __init__(self, capacity: int, *, seek: float, transfer: float, max_scan: int) -> None:
        _check_costs(seek, transfer, max_scan)
        self.seek, self.transfer, self.max_scan = seek, transfer, max_scan
        self._window = np.empty(max_scan + 1, np.int32)
        self._cost = np.empty(max_scan + 2, np.float64)
        self.resize(capacity)

    @classmethod
    def bytes_for(cls, capacity: int, max_scan: int) -> int:
        """Return the bytes of a planner's arrays."""
        return cls.bytes_per_page * capacity + 4 * (max_scan + 1) + 8 * (max_scan + 2)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.pages.nbytes + self._ends.nbytes + self._cost.nbytes + self._window.nbytes

    @property
    def capacity(self) -> int:
        """Maximum number of wanted pages."""
        return self.pages.size

    def resize(self, capacity: int) -> None:
        """Change the maximum number of wanted pages; earlier plans become invalid."""
        self.pages = np.empty(capacity, np.int32)
        """Buffer for the wanted pages that are passed to `plan`."""
        self._ends = np.empty(capacity, np.int32)

    def plan(self, pages: Pages) -> ReadPlan:
        """Return the cheapest plan for wanted pages, ascending and distinct; it is valid until the next plan."""
        ratio = self.seek / self.transfer
        operations, cost = _cut(pages, ratio, self.max_scan, self._cost, self._ends, self._window)
        return ReadPlan(pages, self._ends[: pages.size], cost * self.transfer, operations)

    def plan_for(self, wanted: Ints) -> ReadPlan:
        """Return the cheapest plan for wanted pages, ascending, which may contain duplicates."""
        first = np.flatnonzero(np.diff(wanted, prepend=wanted[0] - 1)) if wanted.size else np.empty(0, np.int64)
        distinct = self.pages[: first.size]
        distinct[:] = wanted[first]
        return self.plan(distinct)

    def plan_greedily(self, pages: Pages) -> ReadPlan:
        """Return a plan that extends each run while the next gap costs less than a seek; see `greedy_plan`."""
        ratio = self.seek / self.transfer
        _cut_greedily(pages, ratio, self.max_scan, self._ends)
        plan = ReadPlan(pages, self._ends[: pages.size], 0.0, pages.size)
        _, lengths = plan.runs()
        return plan._replace(cost=lengths.size * self.seek + int(lengths.sum()) * self.transfer)


def optimal_plan(pages: Pages, *, seek: float, transfer: float, max_scan: int) -> ReadPlan:
    """Return the cheapest plan to read ``pages``, which are ascending and distinct."""
    return ReadPlanner(pages.size, seek=seek, transfer=transfer, max_scan=max_scan).plan(pages)


def greedy_plan(pages: Pages, *, seek: float, transfer: float, max_scan: int) -> ReadPlan:
    """Return the plan of Seeger et al.: each run extends as far as allowed, across gaps that cost less than a seek.

    The paper compares against this plan. It is optimal unless ``max_scan`` cuts a run: then it cuts where the limit
    falls.
    """
    return ReadPlanner(pages.size, seek=seek, transfer=transfer, max_scan=max_scan).plan_greedily(pages)


def _check_costs(seek: float, transfer: float, max_scan: int) -> None:
    if not seek >= 0 or not transfer > 0:
        raise ValueError(f"a seek cannot cost {seek} or a transfer {transfer}; give seek >= 0 and transfer > 0")
    if max_scan < 1:
        raise ValueError(f"max_scan must be at least 1 page, not {max_scan}")
