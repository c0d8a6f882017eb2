"""The tuner's splits against the best of some that were simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import Point, Workload

pytestmark = [pytest.mark.slow, pytest.mark.long]

SIMULATED: dict[str, dict[str, list[Any]]] = {
    "meshjoin": {"partition_pages": [4, 8, 16, 24, 36, 54]},
    "hybridjoin": {"partition_pages": [1, 4, 8, 16, 32]},
    "cmeshjoin": {"cache_share": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7]},
    "x_hybridjoin": {"pinned_pages": [0, 8, 16, 32, 48]},
    "ssij": {"buffer_tuples": [2_000, 4_000, 8_000, 14_000]},
}


@pytest.mark.parametrize("algorithm", SIMULATED)
def test_split_is_within_a_twentieth_of_the_best_simulated(algorithm):
    workload = Workload(rows=100_000, exponent=1.0, shape="random")
    seek = 0.0085 / 200

    def rate(**options: Any) -> float:
        point = Point(
            workload=workload, algorithm=algorithm, memory=900_000, tuned=True, options=options, seek_seconds=seek,
            windows=3, warm_passes=2.0, probes=1_000_000,
        )  # fmt: skip
        sides = open_sides(workload, "simulated", Path(), seek)
        with sides.relation:
            run = Run(point, sides)
            run.warm_up()
            windows = list(run.windows())
        return sum(window.done.rows_done for window in windows) / sum(window.seconds for window in windows)

    ((name, values),) = SIMULATED[algorithm].items()
    others = {value: rate(**{name: value}) for value in values}
    assert rate() >= 0.95 * max(others.values()), others
