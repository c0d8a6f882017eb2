"""Deadlines at a given rate are counted when they are missed, and waiting without end is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.experiments.measure.tasks import measure
from semistream.experiments.spec import Point, Workload

WORKLOAD = Workload(rows=100_000, row_bytes=128, fill=0.8, rows_per_key=16)
SEEK = 0.0085 / 40


def late_at(deadline: float, tuples: int) -> dict[str, float]:
    point = Point(
        task="kept deadlines", workload=WORKLOAD, algorithm="ssij", memory=1_000_000, seek_seconds=SEEK,
        options={"deadline": deadline, "input_tuples": 500, "buffer_tuples": 2000, "input_limit": 5000},
        settings={"rate": 3000.0, "tuples": tuples, "warm": 0.2},
    )  # fmt: skip
    return measure(point, "simulated", Path())


@pytest.mark.slow
def test_tuples_are_late_if_the_deadline_is_shorter_than_a_read_and_not_if_it_is_long():
    assert late_at(1e-5, 100)["late"] > 0
    assert late_at(0.5, 6000)["late"] == 0


def test_who_waits_for_ever_has_waited_until_now():
    point = Point(
        task="delays", workload=WORKLOAD, algorithm="partitioned_join", memory=1_000_000, seek_seconds=SEEK,
        options={"in_flight": 1, "few_arrivals": 0}, windows=2,
        settings={"rate": 1000.0, "tuples": 1500, "window": [0.0, 1.0], "results": True},
    )  # fmt: skip
    record = measure(point, "simulated", Path())
    assert record["served"] < 1.0
    assert record["total"] < record["longest"] <= record["virtual_seconds"]
