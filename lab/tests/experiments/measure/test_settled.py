"""Into the steady state quickly: what is put into a join at the start, against joins that were run for long enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.settled_cache import missed_by
from semistream_lab.experiments.measure.settled_queue import fill_queue, queue_of
from semistream_lab.experiments.measure.tasks import measure
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import Point, Workload

pytestmark = pytest.mark.slow

ROWS = 200_000
SEEK = 0.00085
LONG = 3_000_000
"""Tuples after which caches of this size have forgotten many times over how they began."""


def run_of(algorithm: str, shape: str = "noperm", windows: int = 3, **options: object) -> Run:
    workload = Workload(rows=ROWS, exponent=1.0, shape=shape)
    point = Point(
        workload=workload, algorithm=algorithm, memory=int(workload.nbytes * 0.2), windows=windows, seek_seconds=SEEK,
        options={"in_flight": 1, "partition_pages": 40, **options}, probes=1 << 40,
    )  # fmt: skip
    return Run(point, open_sides(workload, "simulated", Path(), SEEK))


def rate(run: Run) -> float:
    windows = list(run.windows())
    return sum(window.done.rows_done for window in windows) / sum(window.seconds for window in windows)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("hybridjoin", {}),
        ("x_hybridjoin", {"by_frequency": True, "pinned_pages": 60}),
        ("cachejoin", {"cache_share": 0.3}),
        ("p_cachejoin", {"cache_share": 0.3}),
        ("op_cachejoin", {"cache_share": 0.3}),
    ],
)
def test_what_is_put_in_at_the_start_is_what_a_long_run_leads_to(algorithm, options):
    soon, late = run_of(algorithm, **options), run_of(algorithm, **options)
    taken = soon.warm_up()
    while late.feed.offered < LONG:
        late._discard()
    assert taken < LONG / 4
    assert rate(soon) == pytest.approx(rate(late), rel=0.05)


def test_a_window_is_a_lap_of_the_queue():
    run = run_of("hybridjoin", windows=4)
    run.warm_up()
    rates = [window.rate for window in run.windows()]
    # the first partition of R is wanted by most of the stream: within a lap the rate swings by far more
    assert max(rates) < 1.05 * min(rates)


def test_queue_is_full_of_what_the_cache_does_not_hold():
    run = run_of("cachejoin", cache_share=0.3)
    run.warm_up()
    queue = queue_of(run.join)
    assert queue is not None
    assert len(queue.table) > 0.9 * queue.table.capacity
    keys = queue.table.keys_of(np.arange(queue.table.capacity, dtype=np.int32))
    assert np.count_nonzero(run.join.cache.holds(keys)) < 0.2 * keys.size


def test_joins_without_such_a_queue_are_left_alone():
    run = run_of("partitioned_join")
    assert queue_of(run.join) is None
    assert fill_queue(run.join, missed_by(run.join, run.sides, None)) == 0


def test_a_scanning_join_is_measured_on_other_tuples_than_those_that_wait(tmp_path: Path) -> None:
    # of a uniform stream a cache answers its share of the keys, if it does not meet those of its own queue again
    workload = Workload(rows=400_000, exponent=0.0, shape="random")
    point = Point(
        workload=workload, algorithm="cmeshjoin", memory=workload.nbytes // 10, options={"cache_share": 0.2}, windows=2,
        passes=0.2,
    )  # fmt: skip
    record = measure(point, "simulated", tmp_path)
    assert record["hit_ratio"] < 0.02
    assert record["rate"] == pytest.approx(record["model"], rel=0.03)
