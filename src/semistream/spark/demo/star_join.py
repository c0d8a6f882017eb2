"""The demo's joins: ours, and Spark's own stream-static joins of the same sales, with which results are compared."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.units import parse_bytes
from semistream.relation.relation import Relation
from semistream.spark.demo.star_schema import DIMENSIONS, DemoPlan
from semistream.spark.joining.star.enrichment import dimension, enrich

__all__ = [
    "OURS",
    "THEIRS",
    "broadcast_joins",
    "build_relations",
    "count_differences",
    "enriched",
    "plain",
    "seconds_of",
    "start_into",
    "stream_of_sales",
]

OURS, THEIRS = "warehouse", "warehouse-of-spark"
"""Directories for the rows of our joins and for those of Spark's."""
_WANTED = {"products": ["name", "category", "price"], "customers": ["segment", "country"], "stores": ["region"]}
_LOADED = (
    "sale_id", "date_id", "product_id", "customer_id", "store_id", "quantity", "amount", "event_time",
    *itertools.chain.from_iterable(_WANTED.values()),
)  # fmt: skip


def build_relations(plan: DemoPlan, directory: Path) -> Relation:
    """Build a relation from each master table, without Spark, which may start meanwhile; return that of products."""
    for name, key in reversed(DIMENSIONS.items()):
        master = ds.dataset(directory / name).scanner().to_reader()
        relation = Relation.build(master, directory / "relations" / name, key=key, shards=plan.shards)
        if name != "products":
            relation.close()
    return relation


def stream_of_sales(spark: SparkSession, directory: Path, files: int | None = 1) -> DataFrame:
    """Return the sales as a stream, with ``files`` files per micro-batch; None means no limit."""
    # Statistics of all micro-batches are read from the progress at the end, so Spark must keep that of all.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    reader = spark.readStream.schema(spark.read.parquet(str(directory / "sales")).schema)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    return reader.parquet(str(directory / "sales"))


def enriched(sales: DataFrame, plan: DemoPlan, directory: Path) -> DataFrame:
    """Return the sales with columns of products, customers and stores, by our joins, in one pass if possible."""
    relations = directory / "relations"
    with Relation.open(relations / "products") as products:
        memory = parse_bytes(plan.memory, of=products.nbytes)  # exact: the demo shows the effect of little memory
    dimensions = [
        dimension(
            relations / name, on=key, how="left", memory=memory if name == "products" else "100%",
            algorithm=plan.algorithm, columns=_WANTED[name], metrics=name,
        )
        for name, key in DIMENSIONS.items()
    ]  # fmt: skip
    return enrich(sales, dimensions).select(*_LOADED)


def plain(sales: DataFrame, directory: Path) -> DataFrame:
    """Return the same rows, joined by Spark with the tables that the relations were built from."""
    for name, key in DIMENSIONS.items():
        sales = sales.join(sales.sparkSession.read.parquet(str(directory / name)), key, "left")
    return sales.select(*_LOADED)


def start_into(rows: DataFrame, directory: Path, name: str, every: str | None = None) -> StreamingQuery:
    """Start a query that writes to ``directory/name``: once for all available rows, or at an interval, ``every``."""
    writer = rows.writeStream.queryName(name).format("parquet").option("path", str(directory / name))
    writer = writer.option("checkpointLocation", str(directory / f"checkpoint-{name}"))
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    context = rows.sparkSession.sparkContext
    context.setLocalProperty("spark.scheduler.pool", name)  # a pool per query: two queries get half of the cores each
    try:
        return writer.start()
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def broadcast_joins(query: StreamingQuery) -> int:
    """Return for how many joins of a query's last micro-batch Spark has broadcast a table."""
    plan = str(query._jsq.explainInternal(False))  # what query.explain() prints
    return plan.partition("== Initial Plan ==")[0].count("BroadcastHashJoin")


def seconds_of(query: StreamingQuery, *, after: int = 0) -> tuple[int, float]:
    """Return the rows of all micro-batches except the first ``after``, and their seconds, including Spark's work."""
    done = [part for part in query.recentProgress if part["numInputRows"]][after:]
    milliseconds = sum(part["durationMs"]["triggerExecution"] for part in done)
    return sum(part["numInputRows"] for part in done), milliseconds / 1e3


def count_differences(spark: SparkSession, directory: Path, examples: int = 5) -> tuple[int, int, list[dict[str, Any]]]:
    """Compare our warehouse with that of Spark's own joins, as multisets of rows.

    Returns the rows of the warehouse, the number of rows that differ, and examples of them; ``surplus`` is the number
    of times that a row occurs in our warehouse minus the number of times that it occurs in Spark's.
    """
    sides = [pq.read_table(directory / name) for name in (OURS, THEIRS)]
    ours, theirs = (side.select(_LOADED).sort_by([(name, "ascending") for name in _LOADED]) for side in sides)
    if ours.equals(theirs):
        return ours.num_rows, 0, []
    found, expected = (spark.read.parquet(str(directory / name)) for name in (OURS, THEIRS))
    return _compare(found, expected, examples)


def _compare(found: DataFrame, expected: DataFrame, examples: int) -> tuple[int, int, list[dict[str, Any]]]:
    columns = found.columns
    both = found.withColumn("surplus", F.lit(1)).unionByName(expected.withColumn("surplus", F.lit(-1)))
    counted = both.groupBy(*columns).agg(
        F.sum("surplus").alias("surplus"), F.sum((F.col("surplus") > 0).cast("long")).alias("found")
    )
    differing = F.col("surplus") != 0
    total = counted.agg(
        F.coalesce(F.sum("found"), F.lit(0)).alias("rows"),
        F.coalesce(F.sum(F.when(differing, F.abs("surplus"))), F.lit(0)).alias("differing"),
    ).first()
    assert total is not None
    if not total.differing:
        return total.rows, 0, []
    shown = counted.where(differing).drop("found").limit(examples).collect()
    return total.rows, total.differing, [row.asDict() for row in shown]
