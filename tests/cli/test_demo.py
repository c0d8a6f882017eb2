"""The demo: its steps one by one, and the command, on small sizes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner, Result

import semistream.spark.demo.star_join as joining
import semistream.spark.demo.star_schema as steps
from semistream.cli import app
from semistream.spark import stream_statistics
from semistream.spark.demo.star_join import OURS, THEIRS
from semistream.spark.demo.star_schema import DemoPlan
from semistream.spark.demo.warehouse_questions import ask
from semistream.spark.joining.star.enrichment import Dimension

SMALL = ("--rows", "20000", "--sales", "6000", "--batches", "2", "--memory", "25%", "--algorithm", "hybridjoin")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["demo", *(str(argument) for argument in arguments)], env={"COLUMNS": "140"})


def test_sales_are_cut_by_time_and_come_in_bursts(tmp_path: Path) -> None:
    plan = DemoPlan(rows=500, sales=200_000, batches=9)
    seen: list[int] = []
    rows = steps.write_sales(plan, tmp_path, seen.append)
    files = sorted((tmp_path / "sales").iterdir())
    tables = [pq.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == rows
    assert len(rows) == plan.batches
    assert sum(seen) == plan.sales
    assert pa.concat_tables(tables)["sale_id"].to_pylist() == list(range(plan.sales))
    times = [table["event_time"].to_pylist() for table in tables]
    for before, after in itertools.pairwise(times):
        assert before[-1] < after[0]
    stretches = [(part[-1] - part[0]).total_seconds() for part in times]
    assert max(stretches) < 1.6 * min(stretches), "files are stretches of time of one length"
    assert max(rows) > 1.5 * min(rows), "and differ in how much arrived"
    days = {date for table in tables for date in table["date_id"].to_pylist()}
    assert len(days) == 28
    later = steps.sold(plan, next(iter(plan.stream.batches())).slice(0, 9), 7 * plan.sales)
    assert set(later["date_id"].to_pylist()) == {20260601}, "sales that go on begin with the first day again"


def test_master_files_are_the_master_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_MASTER_FILE_ROWS", 700)
    plan = DemoPlan(rows=2000)
    steps.write_masters(plan, tmp_path)
    files = sorted((tmp_path / "products").iterdir())
    assert len(files) == 3
    written = pa.concat_tables(pq.read_table(file) for file in files)
    assert written.equals(plan.master.table())
    customers, dates = (pq.read_table(tmp_path / name) for name in ("customers", "dates"))
    assert sorted(customers["customer_id"].to_pylist()) == list(range(400))
    assert dates.num_rows == len(set(dates["date_id"].to_pylist())) == 28


@pytest.mark.parametrize("name", ["rows", "sales", "batches", "shards"])
def test_a_plan_without_anything_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        DemoPlan(**{name: 0})


@pytest.mark.long
@pytest.mark.spark
def test_the_whole_command(spark: SparkSession, tmp_path: Path) -> None:
    outcome = run(*SMALL, "--dir", tmp_path, "--keep", "--algorithm", "meshjoin")
    assert outcome.exit_code == 0, outcome.output
    (place,) = tmp_path.iterdir()
    for words in (
        "20,000 products, 4,000 customers", "6,000 sales in 2 micro-batches", "meshjoin, left", "6,000 rows",
        "sales/s from files to the warehouse, through three joins, Spark included",
        "stream-static left joins of the same files, in this run",
        "25.0% of the products",
        "over micro-batches 2 to 2",
        "✓ the warehouse equals", f"semistream inspect {place}", "ratio", "Revenue by category", "Monday",
        "semistream demo --live",
    ):  # fmt: skip
        assert words in " ".join(outcome.stdout.split()), words
    assert {"products", "sales", "relations", OURS, THEIRS} <= {path.name for path in place.iterdir()}
    assert spark.range(3).count() == 3, "a session that was there before is not stopped"


@pytest.mark.long
@pytest.mark.spark
def test_a_wrong_warehouse_is_found_and_nothing_is_left(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inner join in place of the left one loses the sales without a product."""
    right = joining.dimension

    def wrong(relation: Path, **options: Any) -> Dimension:
        return right(relation, **(options | {"how": "inner"}))

    monkeypatch.setattr(joining, "dimension", wrong)
    outcome = run(*SMALL, "--dir", tmp_path)
    assert outcome.exit_code == 1
    assert "rows differ from Spark's own join" in outcome.stdout
    assert "missing" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_memory_and_counts_are_those_of_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    plan = DemoPlan(rows=20_000, sales=6_000, batches=2, shards=2, memory="1MB", algorithm="hybridjoin")
    steps.write_masters(plan, tmp_path)
    steps.write_sales(plan, tmp_path)
    with joining.build_relations(plan, tmp_path):
        rows = joining.enriched(joining.stream_of_sales(spark, tmp_path), plan, tmp_path)
        query = joining.start_into(rows, tmp_path, OURS)
        query.awaitTermination()
    found = stream_statistics(query, "products")
    assert (found.batches, found.totals.rows_in, found.totals.rows_out) == (2, 6_000, 6_000)
    keys = pq.read_table(tmp_path / "sales")["product_id"]
    assert found.totals.null_keys == keys.null_count > 0
    assert found.totals.pages_read > 0
    assert 0 < found.bytes_held <= found.memory <= 1_000_000
    assert joining.seconds_of(query)[0] == 6_000
    assert 0 < joining.seconds_of(query, after=1)[0] < 6_000
    loaded = pq.read_table(tmp_path / OURS)
    assert loaded["segment"].null_count == loaded["region"].null_count == 0
    revenue = {answer.question: answer.rows for answer in ask(tmp_path)}
    assert len(revenue) == 5
    total = sum(value for _, value, _ in revenue["Revenue by region"])
    assert total == pytest.approx(float(pc.sum(loaded["amount"]).as_py()))
    days = revenue["Revenue by weekday"]
    assert [label for label, _, _ in days][::6] == ["Monday", "Sunday"]


@pytest.fixture(scope="module")
def pairs(spark: SparkSession) -> dict[str, DataFrame]:
    schema = "id long, name string"
    rows = [(1, "a"), (1, "a"), (2, None), (None, None)]
    return {
        "same": spark.createDataFrame(rows, schema),
        "other order": spark.createDataFrame(rows[::-1], schema),
        "once less": spark.createDataFrame(rows[1:], schema),
        "once more": spark.createDataFrame([*rows, (2, None)], schema),
        "other value": spark.createDataFrame([*rows[:2], (2, "b"), rows[3]], schema),
        "nothing": spark.createDataFrame([], schema),
    }


@pytest.mark.sampled(3)
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "differing"),
    [("same", 0), ("other order", 0), ("once less", 1), ("once more", 1), ("other value", 2), ("nothing", 4)],
)
def test_comparison_counts_rows_and_repeats(pairs: dict[str, DataFrame], name: str, differing: int) -> None:
    rows, found, examples = joining._compare(pairs[name], pairs["same"], 5)
    assert rows == {"once less": 3, "once more": 5, "nothing": 0}.get(name, 4)
    assert found == differing
    assert sum(abs(row["surplus"]) for row in examples) == differing


@pytest.mark.spark
def test_errors_come_before_anything_is_made(tmp_path: Path) -> None:
    for arguments in (["--algorithm", "hybrid_join"], ["--memory", "5 percent"], ["--sales", "0"], ["--compare"]):
        outcome = run(*arguments, "--dir", tmp_path / "new")
        assert isinstance(outcome.exception, ValueError)
        assert not (tmp_path / "new").exists()
