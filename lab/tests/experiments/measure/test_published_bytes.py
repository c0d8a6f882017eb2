"""Budgets in which our joins hold as many tuples as the papers' formulas say."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.joins.families.front_stage import FrontStage
from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.papers.cachejoins import paper
from semistream_lab.experiments.papers.hybrid import MB
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Point, Workload

MEMORY = 5_000_000
WAITING, CACHED = 172.0, 128.0
PAGES = {"partition_pages": 20, "in_flight": 1}


def run_of(algorithm: str, tuned: bool = False, **options: object) -> Run:
    workload = Workload(rows=200_000)
    point = Point(
        workload=workload, algorithm=algorithm, memory=MEMORY, options=options, tuned=tuned,
        settings={"bytes": {"waiting": WAITING, "cached": CACHED}},
    )  # fmt: skip
    return Run(point, open_sides(workload, "simulated", Path(), 0.00085))


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("meshjoin", {"seek_pages": 10.0}),
        ("r_meshjoin", {"seek_pages": 10.0}),
        ("hybridjoin", PAGES),
        ("x_hybridjoin", {**PAGES, "pinned_pages": 20, "by_frequency": True}),
        ("cmeshjoin", {"seek_pages": 10.0, "cache_share": 0.2}),
        ("cachejoin", {**PAGES, "cache_share": 0.3}),
        ("p_cachejoin", {**PAGES, "cache_share": 0.3, "buffer_share": 0.04}),
        ("op_cachejoin", {**PAGES, "cache_share": 0.3, "buffer_share": 0.04}),
    ],
)
def test_a_join_holds_what_the_papers_holds(algorithm, options):
    run = run_of(algorithm, **options)
    inner = run.join.inner if isinstance(run.join, FrontStage) else run.join
    parts = inner.budget.parts()
    share, between = options.get("cache_share", 0.0), options.get("buffer_share", 0.0)
    disk = parts["disk buffer"] + parts.get("pinned pages", 0)
    assert inner.table.capacity * WAITING + disk == pytest.approx(MEMORY * (1 - share - between), rel=0.01)
    if share:
        cached = run.join.budget.parts()["front stage"] / run.setting.cached_bytes
        assert cached * CACHED == pytest.approx(share * MEMORY, rel=0.03)
    if between:
        assert run.join.budget.parts()["intermediate buffer"] == pytest.approx(between * MEMORY, rel=0.01)
    assert run.memory < MEMORY


def test_each_disk_buffer_of_op_cachejoin_is_as_large_as_that_of_p_cachejoin():
    """As published there are two of d_B tuples, and the memory of both is taken from waiting tuples."""
    workload, pages, room = Workload(rows=200_000), [], []
    for algorithm in ("p_cachejoin", "op_cachejoin"):
        point = paper(Size("simulated", "full"), workload, MEMORY, algorithm, 0.2 * MB)
        run = Run(point, open_sides(workload, "simulated", Path(), 0.00085))
        assert isinstance(run.join, FrontStage)
        pages.append(run.join.inner.view().buffer_pages)
        room.append(run.join.inner.table.capacity)
    assert pages == [13, 13]
    assert room[0] - room[1] == pytest.approx(13 * 8192 / 164, rel=0.2)


def test_what_is_tuned_is_tuned_for_the_tuples_that_there_are():
    as_published, ours = run_of("hybridjoin", tuned=True, in_flight=1), run_of("hybridjoin", in_flight=1)
    assert as_published.options["partition_pages"] >= 1
    assert as_published.join.table.capacity == pytest.approx(ours.join.table.capacity, rel=0.1)


def test_pages_are_weighed_against_tuples_of_the_papers_bytes():
    """A page takes as many tuples' room as in the paper, so the split found is the best of those that hold as much."""
    way = {"in_flight": 1, "by_frequency": True, "scan_pinned": True}
    found = run_of("x_hybridjoin", tuned=True, **way)
    rates = {}
    for pages in (20, 41, 82):
        for pinned in (41, 82, 164):
            rates[pages, pinned] = run_of("x_hybridjoin", partition_pages=pages, pinned_pages=pinned, **way).predicted()
    assert found.predicted() >= 0.99 * max(rates.values()), (found.options, rates)
