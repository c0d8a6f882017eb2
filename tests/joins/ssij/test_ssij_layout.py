"""How SSIJ divides its memory where a page takes little time, and plans in it what to read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.clock import VirtualClock
from semistream.joins.ssij.page_cache import WANTED
from semistream.joins.ssij.ssij_layout import MemoryOptions, SsijLayout, least_parts
from semistream.relation.relation import Relation
from ssij_cases import simulated, ssij

FRAME = 8192
KEYS = pa.schema({"id": pa.int64()})


@pytest.mark.parametrize("free", [200_000, 1_000_000, 6_000_000, 60_000_000])
def test_a_call_brings_more_pages_where_they_take_little_time(free: int) -> None:
    slow, fast = (SsijLayout.of(free, FRAME, 100_000, MemoryOptions(), transfer) for transfer in (1e-3, 2.75e-6))
    assert sum(fast.parts().values()) <= free
    assert slow.read <= fast.read <= 1 + free // 4 // FRAME
    if free == 6_000_000:
        assert slow.read < 48
        assert fast.read // fast.buffers >= 64
    if free == 60_000_000:
        assert fast.read == slow.read, "as many as ever pay"


def test_virtual_reads_leave_the_layout_as_the_model_has_it() -> None:
    options = MemoryOptions(read_ahead=False)
    assert SsijLayout.of(6_000_000, FRAME, 100_000, options) == SsijLayout.of(6_000_000, FRAME, 100_000, options, 1e-3)


def test_a_read_plan_takes_no_more_where_more_pages_are_wanted() -> None:
    """With 1 % of R, pages that nobody plans to read yet cost nothing but their entry in the index."""
    small, large = (
        SsijLayout.of(5_000_000, FRAME, pages, MemoryOptions(read_ahead=False)).parts()["read plan"]
        for pages in (10_000, 10_000_000)
    )
    assert small == large < 5_000_000 / 48


@pytest.mark.parametrize("free", [70_000, 1_000_000, 60_000_000])
@pytest.mark.parametrize("max_scan", [None, 10, 100_000])
def test_a_plan_has_many_of_the_longest_runs(free: int, max_scan: int | None) -> None:
    found = SsijLayout.of(least_parts(FRAME, MemoryOptions()) + free, FRAME, 100_000, MemoryOptions(max_scan=max_scan))
    assert found.planned >= 16 * found.scan


@pytest.mark.parametrize("transfer", [1e-3, 1e-5])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_plans_of_parts_of_r_cost_hardly_more_than_one_of_all(skewed: Relation, transfer: float, share: float) -> None:
    relation = simulated(skewed, VirtualClock(), 0.0085, transfer)
    join = ssij(relation, on="id", memory="40%", schema=KEYS, max_scan=20)
    memory = join._memory
    place, planner = memory.cache.arrays.place, memory.planner
    wanted = np.flatnonzero(np.random.default_rng(0).random(place.size) < share)
    place[wanted] = WANTED - np.arange(wanted.size)
    whole = next(memory.plans(greedily=False))
    assert whole.pages.tolist() == wanted.tolist()
    cost = whole.cost
    planner.resize(16 * 20)
    runs = [run for plan in memory.plans(greedily=False) for run in zip(*plan.runs(), strict=True)]
    read = np.concatenate([np.arange(first, first + length) for first, length in runs])
    assert np.unique(read).size == read.size, "no page is read twice"
    assert np.isin(wanted, read).all()
    assert len(runs) * planner.seek + read.size * transfer <= 1.04 * cost
