"""What the live demo says about our query and Spark's own."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("starlette")

from semistream.dashboard.demo_controls import comparison


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (1, 1), (30, 4), (4, 30)])
def test_few_batches_are_not_compared(ours: int, theirs: int) -> None:
    told = comparison([0.5] * ours, [2.0] * theirs, 2_000_000)
    assert told["ours"] is told["theirs"] is None
    assert f"semistream {min(ours, 5)}, Spark {min(theirs, 5)}." in told["note"]


def test_medians_of_equally_many_batches_are_compared() -> None:
    told = comparison([9.0] * 20 + [0.5] * 8, [2.0, 2.0, 3.0, 2.0, 2.0, 8.0], 2_000_000)
    assert (told["ours"], told["theirs"], told["seconds"]) == (0.5, 2.0, True)
    assert "Last 6 batches" in told["note"]
    assert "--rows" not in told["note"]


def test_small_tables_that_spark_broadcasts_are_named() -> None:
    assert "--rows" in comparison([2.0] * 5, [1.0] * 5, 20_000)["note"]
    assert "--rows" not in comparison([1.0] * 5, [2.0] * 5, 20_000)["note"]
