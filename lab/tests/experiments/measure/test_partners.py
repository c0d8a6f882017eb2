"""What a short part of a pass over R says of results: those of the tuples, not those of the pages that pass by."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream_lab.experiments.measure.tasks import measure
from semistream_lab.experiments.spec import Point, Workload


def test_a_scanning_join_has_as_many_results_for_a_tuple_as_one_with_an_index():
    """Frequent longitudes have most rows, and lie together: a twentieth of R has many more results, or far fewer."""
    reports = Workload(
        kind="weather", rows=200_000, row_bytes=128, stream_bytes=128, rows_per_key=5, exponent=0.0, shape="random"
    )
    results = {}
    for algorithm, passes in (("meshjoin", 0.05), ("ssij", 1.0)):
        point = Point(
            workload=reports, algorithm=algorithm, memory=int(0.1 * reports.nbytes), windows=2, passes=passes,
            probes=20_000, seek_seconds=0.0001,
        )  # fmt: skip
        counts = measure(point, "simulated", Path())["counts"]
        results[algorithm] = counts["rows_out"] / counts["rows_done"]
    assert results["meshjoin"] == pytest.approx(results["ssij"], rel=0.05)
