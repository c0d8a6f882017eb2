"""The read plan against brute force and against the greedy one, and how long it takes to find."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semistream.structures.read_plan import ReadPlan, ReadPlanner, greedy_plan, optimal_plan

page_sets = st.lists(st.integers(0, 60), min_size=1, max_size=11, unique=True).map(sorted)
costs = st.tuples(st.floats(0, 20), st.floats(0.01, 5))


def as_pages(pages: list[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    return np.asarray(pages, np.int32)


def brute_force(pages: list[int], seek: float, transfer: float, max_scan: int) -> float:
    """Try every way to cut the pages into runs."""
    best = float("inf")
    for cuts in itertools.product([False, True], repeat=len(pages) - 1):
        runs, first = [], 0
        for i, cut in enumerate((*cuts, True)):
            if cut:
                runs.append(pages[i] - pages[first] + 1)
                first = i + 1
        if max(runs) <= max_scan:
            best = min(best, sum(seek + transfer * length for length in runs))
    return best


def check_plan(plan: ReadPlan, pages: list[int], seek: float, transfer: float, max_scan: int) -> None:
    """Assert that the plan reads every wanted page, in runs from wanted to wanted, for the cost it says."""
    first, length = plan.runs()
    assert (length >= 1).all()
    assert (length <= max_scan).all()
    assert (first[1:] >= (first + length)[:-1]).all(), "runs overlap"
    covered = {page for begin, count in zip(first, length, strict=True) for page in range(begin, begin + count)}
    assert set(pages) <= covered
    assert set(first) | set(first + length - 1) <= set(pages), "a run begins or ends at a page nobody wants"
    assert plan.cost == pytest.approx(length.size * seek + length.sum() * transfer)


@given(page_sets, costs, st.integers(1, 70))
def test_optimal_plan_equals_brute_force(pages: list[int], cost: tuple[float, float], max_scan: int) -> None:
    seek, transfer = cost
    plan = optimal_plan(as_pages(pages), seek=seek, transfer=transfer, max_scan=max_scan)
    check_plan(plan, pages, seek, transfer, max_scan)
    assert plan.cost == pytest.approx(brute_force(pages, seek, transfer, max_scan))


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=400, unique=True).map(sorted), costs, st.integers(1, 300))
def test_greedy_plan_never_beats_it(pages: list[int], cost: tuple[float, float], max_scan: int) -> None:
    seek, transfer = cost
    best = optimal_plan(as_pages(pages), seek=seek, transfer=transfer, max_scan=max_scan)
    greedy = greedy_plan(as_pages(pages), seek=seek, transfer=transfer, max_scan=max_scan)
    check_plan(best, pages, seek, transfer, max_scan)
    check_plan(greedy, pages, seek, transfer, max_scan)
    assert best.cost <= greedy.cost * (1 + 1e-12)


def test_greedy_plan_is_worse_where_the_limit_falls_badly() -> None:
    # the greedy run goes on to page 9, and pays for the gap it is cut in; cutting before the gap is cheaper
    pages = as_pages([0, 1, 2, 9, 10, 11])
    best = optimal_plan(pages, seek=8, transfer=1, max_scan=10)
    greedy = greedy_plan(pages, seek=8, transfer=1, max_scan=10)
    assert (best.cost, greedy.cost) == (22.0, 28.0)


def test_pages_further_apart_than_a_seek_is_worth_are_read_alone() -> None:
    pages = as_pages(np.arange(0, 10_000, 12))
    assert optimal_plan(pages, seek=10, transfer=1, max_scan=200).runs()[1].tolist() == [1] * pages.size
    near = as_pages(np.arange(0, 10_000, 10))
    assert optimal_plan(near, seek=10, transfer=1, max_scan=200).runs()[0].size < near.size / 15


@pytest.mark.parametrize("max_scan", [1, 7, 200, 100_000])
@pytest.mark.parametrize("gap", [1, 3, 40])
def test_time_is_linear_in_the_pages_wanted(max_scan: int, gap: int) -> None:
    generator = np.random.default_rng(0)
    for count in (1, 10, 1000, 100_000):
        pages = as_pages(np.cumsum(generator.integers(1, gap + 1, count)))
        plan = optimal_plan(pages, seek=20, transfer=1, max_scan=max_scan)
        assert plan.operations <= 3 * count, "each page is put into the queue once and taken out at most once"


def test_planner_keeps_to_the_bytes_it_says() -> None:
    planner = ReadPlanner(1000, seek=1, transfer=1, max_scan=50)
    assert planner.nbytes == ReadPlanner.bytes_for(1000, 50)
    planner.resize(10)
    assert planner.nbytes == ReadPlanner.bytes_for(10, 50)


def test_pages_are_listed_run_by_run() -> None:
    plan = optimal_plan(as_pages([3, 4, 9, 90, 91]), seek=10, transfer=1, max_scan=8)
    room = np.empty(8, np.int64)
    listed, at = plan.list_pages(0, room)
    assert listed.tolist() == [3, 4, 5, 6, 7, 8, 9]
    listed, at = plan.list_pages(at, room)
    assert (listed.tolist(), at) == ([90, 91], 5)


@pytest.mark.parametrize(("seek", "transfer", "max_scan"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0), (float("nan"), 1, 1)])
def test_costs_that_cannot_be(seek: float, transfer: float, max_scan: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|cannot cost"):
        ReadPlanner(1, seek=seek, transfer=transfer, max_scan=max_scan)


def test_a_plan_without_its_last_run_ends_where_another_may_begin() -> None:
    plan = optimal_plan(as_pages([3, 4, 9, 90, 91]), seek=10.0, transfer=1.0, max_scan=200)
    rest = plan.but_last()
    assert rest.pages.tolist() == [3, 4, 9]
    assert [part.tolist() for part in rest.runs()] == [[3], [7]]
    assert rest.but_last().pages.tolist() == [3, 4, 9], "the only run stays"
