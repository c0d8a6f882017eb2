"""Windows on a real device end where they began: hot pages take a scanning join longer than others."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from semistream_lab.experiments.measure import windows
from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import Point, Workload

pytestmark = pytest.mark.slow

ROWS = Workload(rows=64_000, row_bytes=128, rows_per_key=64, exponent=1.0, shape="noperm")


def run(tmp_path: Path, algorithm: str, memory: float) -> Run:
    point = Point(workload=ROWS, algorithm=algorithm, memory=int(memory * ROWS.nbytes), windows=3)
    return Run(point, open_sides(ROWS, "real", tmp_path))


@pytest.mark.parametrize("algorithm", ["meshjoin", "r_meshjoin", "cmeshjoin"])
def test_a_window_of_a_scanning_join_has_whole_passes(tmp_path, algorithm):
    measured = run(tmp_path, algorithm, 0.3)
    measured.warm_up()
    pages = measured.sides.relation.page_count
    for window in measured.windows():
        turn = window.done.pages_read / window.done.steps
        assert window.done.pages_read >= pages
        assert window.done.pages_read % pages <= 2 * turn


def test_a_window_that_others_had_the_processor_in_is_measured_again(tmp_path, monkeypatch):
    stolen = iter([0.0, 9.0, 9.0, 9.0, 9.0, 18.0, 18.0, 18.0, 18.0, 18.0])  # before and after each of five windows
    measured = run(tmp_path, "inlj", 0.3)
    measured.warm_up()
    monkeypatch.setattr(windows, "stolen_seconds", lambda: next(stolen))
    assert [window.stolen for window in measured.windows()] == [0.0, 0.0, 0.0]
    assert measured.spoilt == 2


def test_a_machine_that_others_always_use_is_measured_all_the_same(tmp_path, monkeypatch):
    stolen = count(0.0, 9.0)
    measured = run(tmp_path, "inlj", 0.3)
    measured.warm_up()
    monkeypatch.setattr(windows, "stolen_seconds", lambda: next(stolen))
    assert len(list(measured.windows())) == 3
    assert measured.spoilt == 9
