"""``semistream bench star``: what it runs, counts and keeps."""

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

from semistream.relation.storage import manifest as manifests
from semistream_lab.benchmarks import spark_star
from semistream_lab.benchmarks.spark_star import bench_star
from semistream_lab.benchmarks.star_data import StarPlan, write_star
from semistream_lab.cli.bench import app

PLAN = StarPlan(products=3_000, customers=300, batch_rows=500, fill=1, batches=3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench-star")


@pytest.fixture(scope="module")
def found(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """One run of all contestants, which checks that each of them returns every row."""
    write_star(PLAN, directory)
    return bench_star(spark, PLAN, directory)


@pytest.mark.long
@pytest.mark.spark
def test_rates_and_ratios(found: dict[str, Any]) -> None:
    assert (found["products"], found["dimensions"], found["batch"]) == (3_000, 5, 500)
    assert list(found["joins"]) == ["ours", "chain", "spark", "cached", "one_shard"]
    for name, join in found["joins"].items():
        assert len(join["seconds"]) == 3
        assert found[name] == pytest.approx(500 / sorted(join["seconds"])[1])
    for name in ("chain", "spark", "cached", "one_shard"):
        assert found[f"over_{name}"] == pytest.approx(found["ours"] / found[name])


@pytest.mark.spark
def test_micro_batches_without_rows(found: dict[str, Any], directory: Path) -> None:
    empty = found["empty"]
    for name in ("star", "one"):
        assert empty[name] == sorted(empty["seconds"][name])[1]
    assert empty["over_one"] == pytest.approx(empty["star"] / empty["one"])
    shards = {path.parent.name: len(manifests.load(path).shards) for path in directory.glob("star-*/relations-*/days")}
    assert shards == {"relations-1": 1, "relations-2": 2}


@pytest.mark.spark
def test_command(
    spark: SparkSession, directory: Path, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(plan: StarPlan) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(spark_star, "star_session", running)
    monkeypatch.setattr(spark_star, "bench_star", lambda *_: found)
    options = ["--products", "3000", "--customers", "300", "--batch", "500", "--fill", "1", "--batches", "3"]
    given = ["star", *options, "--dir", str(directory), "--output", str(tmp_path)]
    outcome = CliRunner().invoke(app, [*given, "--json"])
    assert outcome.exit_code == 0, outcome.output
    (point,) = json.loads(outcome.stdout)["points"]
    wanted = {"products", "dimensions", "batch", "ours", "chain", "spark", "over_chain", "over_spark"}
    assert wanted <= point.keys()
    assert list(tmp_path.glob("star-*.json"))
    outcome = CliRunner().invoke(app, given)
    assert "one pass" in outcome.output
