"""From a real Kafka broker, through joins, to a warehouse: the installed command, and pipelines on a shared session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from kafka_broker import Broker
from pipeline_runs import run_reported
from semistream import Relation
from semistream.spark.monitoring.listening import BatchTotals
from semistream.spark.pipeline import load

pytestmark = pytest.mark.spark

PIPELINE = """\
checkpoint = "out/check"
trigger = "available now"
memory = "2MB"

[spark]
master = "local[2]"
heap = "1g"
settings = {{ "spark.jars" = "{jars}", "spark.sql.shuffle.partitions" = 2 }}

[source]
format = "kafka"
servers = "{servers}"
topic = "sales"
start = "earliest"
rows_per_batch = 700
schema = "id long, product long, pieces int"

[[join]]
relation = "products"
on = "product"

[derive]
total = "pieces * price"

[sink]
format = "parquet"
path = "out/facts"
"""


def command(path: Path) -> str:
    """Run a pipeline by the installed command, in a process of its own; return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", "from semistream.cli import main; main()", "run", str(path)],
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run(path: Path) -> BatchTotals:
    """Run a pipeline on the session of the tests, which has the connector."""
    run_reported(load(path), [totals := BatchTotals()])
    return totals


def facts(folder: Path) -> list[tuple[int | None, int | None]]:
    """Read what Spark's log of the sink says is there."""
    table = pa.dataset.dataset(folder / "out/facts", format="parquet").to_table()
    rows = zip(table["id"].to_pylist(), table["total"].to_pylist(), strict=True)
    return sorted(rows, key=lambda row: (row[0] is None, row))


def message(number: int) -> str:
    product = None if number % 50 == 0 else number * 7 % 130
    return json.dumps({"id": number, "product": product, "pieces": number % 5})


def expected(number: int) -> tuple[int, int | None]:
    product = number * 7 % 130
    matched = number % 50 and product < 100
    return number, (number % 5) * product * 3 if matched else None


def test_rows_from_kafka_are_joined_once(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    prices = pa.table({"id": range(100), "price": pa.array([product * 3 for product in range(100)], pa.int64())})
    Relation.build(prices, tmp_path / "products", key="id", shards=2).close()
    path = tmp_path / "p.toml"
    path.write_text(PIPELINE.format(jars=kafka.connector, servers=kafka.servers))
    kafka.send("sales", [message(number) for number in range(1000)] + ["this is no JSON", '{"id": "nor a number"}'])
    assert "1,002 rows in 2 micro-batches" in command(path)
    first = [*map(expected, range(1000)), (None, None), (None, None)]
    assert facts(tmp_path) == first
    # More rows, and the pipeline goes on where it was.
    kafka.send("sales", [message(number) for number in range(1000, 1300)])
    totals = run(path)
    assert (totals.rows, totals.batches) == (300, 1)
    assert facts(tmp_path) == sorted([*first, *map(expected, range(1000, 1300))], key=lambda row: (row[0] is None, row))


def test_rows_go_to_kafka_and_to_a_sink_of_sparks(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """One pipeline writes messages, another reads them and hands rows to Spark's own sink of JSON files."""
    prices = pa.table({"id": range(100), "price": pa.array([product * 3 for product in range(100)], pa.int64())})
    Relation.build(prices, tmp_path / "products", key="id", shards=2).close()
    given = PIPELINE.format(jars=kafka.connector, servers=kafka.servers).replace('topic = "sales"', 'topic = "orders"')
    head, sink = given.split("[sink]")
    kafka.send("orders", [message(number) for number in range(200)])
    first = tmp_path / "first.toml"
    first.write_text(f'{head}[sink]\nformat = "kafka"\nservers = "{kafka.servers}"\ntopic = "facts"\nkey = "id"\n')
    assert run(first).rows == 200
    second = tmp_path / "second.toml"
    schema = "id long, product long, pieces int, price long, total long"
    text = head.replace("out/check", "out/check2").replace('topic = "orders"', 'topic = "facts"')
    text = text.replace("id long, product long, pieces int", schema).replace("pieces * price", "total + 0")
    text = text.replace("[[join]]", '[[join]]\nsuffix = "_again"')
    sink = '[sink]\nformat = "spark"\nsource = "json"\npath = "out/json"\ncolumns = ["id", "total"]\n'
    second.write_text(text + sink)
    assert run(second).rows == 200
    lines = [line for file in (tmp_path / "out/json").glob("*.json") for line in file.read_text().splitlines()]
    found = sorted((row["id"], row.get("total")) for row in map(json.loads, lines))
    assert found == [*map(expected, range(200))]
