"""``semistream bench spark``: what it runs, counts, keeps and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from semistream.cli import app
from semistream_lab.benchmarks import spark_join
from semistream_lab.benchmarks.join_rates import BenchError
from semistream_lab.benchmarks.spark_join import BenchPlan, bench_spark, build_relation, write_files
from semistream_lab.cli.bench.spark import comparison

PLAN = BenchPlan(
    rows=20_000, batch_rows=2_000, memory="600KB", batches=2, warm_up=1, fill_rows=1,
    static_batches=2, static_warm_up=1, small_batches=1, small_warm_up=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def found(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """One run."""
    write_files(PLAN, directory)
    seconds = build_relation(spark, PLAN, directory)
    done: list[int] = []
    result = bench_spark(spark, PLAN, directory, lambda _, count: done.append(count))
    assert sum(done) == PLAN.micro_batches
    return result | {"build_seconds": seconds}


@pytest.mark.long
@pytest.mark.spark
def test_rates_are_rows_over_the_median_time(found: dict[str, Any]) -> None:
    ours, static = found["joins"]["ours"], found["joins"]["stream_static"]
    assert (len(ours["seconds"]), len(ours["warm_up_seconds"])) == (2, 2)
    assert found["ours"] == pytest.approx(2_000 / (sum(ours["seconds"]) / 2))
    assert (len(static["seconds"]), len(static["warm_up_seconds"])) == (2, 2), "one before each turn"
    assert found["stream_static"] == pytest.approx(2_000 / (sum(static["seconds"]) / 2))
    assert found["ratio"] == pytest.approx(found["ours"] / found["stream_static"])
    assert 0 < ours["bytes_held"] <= ours["memory"] <= 600_000
    assert 0 < ours["hit_ratio"] < 1
    assert ours["pages_read"] > 0


@pytest.mark.spark
def test_sparks_join_broadcasts_the_micro_batch(found: dict[str, Any]) -> None:
    assert "BroadcastHashJoin" in found["joins"]["stream_static"]["explained"]


@pytest.mark.spark
def test_fixed_costs_are_compared_with_identity(found: dict[str, Any]) -> None:
    assert list(found["fixed"]) == ["empty", "10_rows"]
    for costs in found["fixed"].values():
        assert set(costs["seconds"]) == {"no_python", "identity", "shuffled_identity", "ours"}
        assert costs["over_identity"] == pytest.approx(costs["ours"] / costs["identity"])


@pytest.mark.spark
def test_the_table_says_it_all(found: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(comparison(found))
    for words in ("20 k rows", "stream-static", "the rows per second", "10 rows", "over identity"):
        assert words in captured.get()


@pytest.mark.spark
def test_files_are_kept_for_the_next_run(spark: SparkSession, directory: Path, found: dict[str, Any]) -> None:
    place = PLAN.place(directory)
    before = {file: file.stat().st_mtime_ns for file in place.rglob("*.parquet")}
    write_files(PLAN, directory)
    assert build_relation(spark, PLAN, directory) == found["build_seconds"]
    assert {file: file.stat().st_mtime_ns for file in place.rglob("*.parquet")} == before
    assert not [file for file in place.iterdir() if file.name.startswith("tmp")], "what queries leave is removed"


@pytest.mark.spark
def test_command(
    spark: SparkSession, directory: Path, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(plan: BenchPlan) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(spark_join, "bench_session", running)
    monkeypatch.setattr(spark_join, "bench_spark", lambda *_: found)
    options = [
        "--rows",
        "20000",
        "--batch",
        "2000",
        "--batches",
        "2",
        "--warm-up",
        "1",
        "--static-batches",
        "1",
        "--fill",
        "1",
    ]
    outcome = CliRunner().invoke(
        app, ["bench", "spark", *options, "--json", "--dir", str(directory), "--output", str(tmp_path)]
    )
    assert outcome.exit_code == 0, outcome.output
    assert {"ours", "stream_static", "ratio"} <= set(json.loads(outcome.stdout))
    assert json.loads(next(tmp_path.glob("spark-*.json")).read_text())["ratio"] == found["ratio"]


@pytest.mark.spark
def test_rows_that_are_missing_end_it(
    spark: SparkSession, directory: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = spark_join.join
    monkeypatch.setattr(
        spark_join, "join", lambda *args, **options: original(*args, **options).where("sale_id % 7 > 0")
    )
    with pytest.raises(BenchError, match="our join gave"):
        bench_spark(spark, PLAN, directory)


def test_bad_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="batches must be at least 1"):
        BenchPlan(batches=0)
    with pytest.raises(ValueError, match="warm_up must be at least 0"):
        BenchPlan(warm_up=-1)


def test_the_cache_is_filled_in_micro_batches_of_bounded_size() -> None:
    assert BenchPlan().shape == "random"
    assert BenchPlan(batch_rows=100_000).file_rows[:21] == [1_000_000] * 20 + [100_000]
    assert BenchPlan(batch_rows=1_000_000).file_rows[:21] == [1_000_000] * 21
    assert BenchPlan(batch_rows=5_000_000).file_rows[:5] == [5_000_000] * 5
    assert BenchPlan(batch_rows=10_000, fill_rows=150_000).file_rows[:3] == [100_000, 100_000, 10_000]
