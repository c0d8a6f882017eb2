"""Cost models against the joins themselves: the rate that a join reaches on the simulated disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.costs import modelled
from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import Point, Workload

pytestmark = pytest.mark.slow
LONG = pytest.mark.long

ROWS = 200_000
SEEK = 0.0085 * ROWS / 20e6
"""A disk that seeks faster by as much as R is smaller than the papers' keeps all proportions."""


def measured(
    algorithm: str, share: float, exponent: float, shape: str = "random", workload: Workload | None = None, **how
) -> tuple[float, float]:
    """Return the rate of a simulated run and the one its model gives."""
    workload = workload or Workload(rows=ROWS, exponent=exponent, shape=shape)
    point = Point(
        workload=workload, algorithm=algorithm, memory=int(workload.nbytes * share), seek_seconds=SEEK,
        **{"windows": 2, "warm_passes": 1.5, "probes": 1_500_000, **how},
    )  # fmt: skip
    sides = open_sides(workload, "simulated", Path(), SEEK)
    with sides.relation:
        run = Run(point, sides)
        run.warm_up()
        windows = list(run.windows())
        rate = sum(window.done.rows_done for window in windows) / sum(window.seconds for window in windows)
        model = run.predicted()
    assert model is not None
    return rate, model


@pytest.mark.sampled(3)
@pytest.mark.parametrize("share", [pytest.param(0.01, marks=LONG), 0.03, pytest.param(0.1, marks=LONG)])
@pytest.mark.parametrize("algorithm", modelled())
def test_model_is_within_a_tenth_of_a_simulated_run(algorithm, share):
    rate, model = measured(algorithm, share, exponent=1.0)
    assert model == pytest.approx(rate, rel=0.1)


@LONG
@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin", "cachejoin", "ssij"])
@pytest.mark.parametrize(("exponent", "shape"), [(0.0, "random"), (0.5, "noperm")])
def test_model_knows_other_skews(algorithm, exponent, shape):
    rate, model = measured(algorithm, 0.05, exponent, shape)
    assert model == pytest.approx(rate, rel=0.05 if algorithm == "ssij" else 0.1)


@LONG
@pytest.mark.parametrize("algorithm", ["x_hybridjoin", "cmeshjoin", "p_cachejoin", "op_cachejoin"])
def test_model_is_as_near_where_it_chooses_the_split(algorithm):
    rate, model = measured(algorithm, 0.05, 1.0, tuned=True)
    assert model == pytest.approx(rate, rel=0.1)


@LONG
@pytest.mark.parametrize("algorithm", ["hybridjoin", "x_hybridjoin"])
def test_model_knows_the_waves_of_frequent_keys_that_lie_together(algorithm):
    rate, model = measured(algorithm, 0.03, 1.0, "noperm", tuned=True, windows=4)
    assert model == pytest.approx(rate, rel=0.1)


@LONG
def test_model_knows_that_the_last_partition_is_short():
    # nine partitions and a tenth of one: that one is read as often as the others, and soon
    options = {"partition_pages": 333, "in_flight": 1}
    rate, model = measured("hybridjoin", 0.25, 1.0, "noperm", options=options, windows=3)
    assert model == pytest.approx(rate, rel=0.03)


@LONG
def test_model_knows_the_portions_of_ssij_and_the_pages_of_long_keys():
    # the buffer's threshold is passed by most of a portion, and wanted keys that are neighbours share a page
    workload = Workload(rows=ROWS, row_bytes=128, rows_per_key=320, shape="noperm", fill=0.8)
    options = {"input_tuples": 625, "buffer_tuples": 96, "max_scan": 10, "utility_kept": 0.0}
    rate, model = measured("ssij", 0.02, 1.0, workload=workload, options=options, windows=8)
    assert model == pytest.approx(rate, rel=0.05)


@LONG
def test_model_knows_the_published_x_hybridjoin():
    # tuples that pinned pages answer take the room of others until they are found there
    options = {"partition_pages": 100, "pinned_pages": 100, "in_flight": 1, "by_frequency": True, "scan_pinned": True}
    rate, model = measured("x_hybridjoin", 0.1, 1.0, "noperm", options=options, windows=3)
    assert model == pytest.approx(rate, rel=0.05)
