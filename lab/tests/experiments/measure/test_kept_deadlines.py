"""Deadlines at a given rate are counted when they are missed, and waiting without end is seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.driven import DrivenRun
from semistream_lab.experiments.measure.tasks import measure
from semistream_lab.experiments.spec import Point, Workload

WORKLOAD = Workload(rows=100_000, row_bytes=128, fill=0.8, rows_per_key=16)
SEEK = 0.0085 / 40


def point_of(deadline: float | None, tuples: int) -> Point:
    return Point(
        task="kept deadlines", workload=WORKLOAD, algorithm="ssij", memory=1_000_000, seek_seconds=SEEK,
        options={"deadline": deadline, "input_tuples": 500, "buffer_tuples": 2000, "input_limit": 5000},
        settings={"rate": 3000.0, "tuples": tuples, "warm": 0.2},
    )  # fmt: skip


def late_at(deadline: float, tuples: int) -> dict[str, float]:
    return measure(point_of(deadline, tuples), "simulated", Path())


@pytest.mark.slow
def test_tuples_are_late_if_the_deadline_is_shorter_than_a_read_and_not_if_it_is_long():
    assert late_at(1e-5, 100)["late"] > 0
    assert late_at(0.5, 6000)["late"] == 0


def test_a_deadline_counts_from_the_arrival_and_not_from_the_moment_at_which_the_join_looks():
    """All tuples of a burst have come by the time that the join phase before them is over: they have waited for it."""
    point = point_of(deadline=10.0, tuples=1000)
    run = DrivenRun(point, open_sides(WORKLOAD, "simulated", Path(), SEEK))
    run.clock.advance(100.0)
    seen = []
    run.feed.arrive(began=90.0, rate=100.0)
    run.join.offer = lambda batch: seen.append(batch) or batch.num_rows
    assert run.feed.offer(run.join, 1000)
    due = seen[0].column("due").to_numpy()
    assert due[0] == pytest.approx(90.01 + 10.0)
    assert due[-1] == pytest.approx(100.0 + 10.0)
    assert run.join.schema is None or "due" in run.join.schema.names


def test_what_did_not_fit_is_offered_again_and_nothing_that_has_not_come():
    """Ten times as many as memory holds come at once: those outside are offered once more, not all of them."""
    run = DrivenRun(point_of(deadline=None, tuples=1000), open_sides(WORKLOAD, "simulated", Path(), SEEK))
    come, offered = 3000, []
    offer = run.feed.offer

    def few(join, most):
        offered.append(most)
        offer(join, min(most, 1000))
        return most <= 1000

    run.feed.offer = few
    assert run._take_in(come)
    assert run.feed.offered == come
    assert offered == [3000, 2000, 1000]


def test_who_waits_for_ever_has_waited_until_now():
    point = Point(
        task="delays", workload=WORKLOAD, algorithm="partitioned_join", memory=1_000_000, seek_seconds=SEEK,
        options={"in_flight": 1, "few_arrivals": 0}, windows=2,
        settings={"rate": 1000.0, "tuples": 1500, "window": [0.0, 1.0], "results": True},
    )  # fmt: skip
    record = measure(point, "simulated", Path())
    assert record["served"] < 1.0
    assert record["total"] < record["longest"] <= record["virtual_seconds"]


@pytest.mark.parametrize(("threshold", "waits", "sustained"), [(1 << 30, False, True), (1 << 30, True, False),
                                                              (2000, True, True)])  # fmt: skip
def test_who_waits_for_more_tuples_than_memory_holds_has_no_room(threshold, waits, sustained):
    """Ours begins a join phase before, the paper's does not; a threshold that memory holds makes no difference."""
    point = point_of(deadline=None, tuples=1000)
    point = dataclasses.replace(
        point, memory=300_000, options={"input_tuples": 500, "buffer_tuples": threshold, "input_limit": 2000},
        settings={"waits_for_threshold": waits},
    )  # fmt: skip
    run = DrivenRun(point, open_sides(WORKLOAD, "simulated", Path(), SEEK))
    assert run.drive(300.0, 30_000) == sustained
    assert bool(run.join.early_phases) == (threshold > 2000)
