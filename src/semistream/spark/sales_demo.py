"""The demo: a warehouse is loaded with sales, each enriched with its product, in little memory.

::

    master table ──Spark job──▶ relation R (pages on disk)
                                    │
    files of sales ──▶ streaming join, 5 % of R in memory ──▶ Parquet warehouse ──▶ compared with the plain join

Sales come in bursts, and their products follow Zipf's law; a file holds what arrived in one stretch of time, and is
one micro-batch. Some sales name a product that R does not have, or none, and are loaded with NULLs.

The steps are functions of a `DemoPlan` and a directory, without a word printed: ``semistream demo`` shows them, tests
run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.arguments import check_at_least
from semistream.joins import create
from semistream.relation.relation import Relation
from semistream.spark.joining.stream_join import join
from semistream.spark.relations.build_job import build
from semistream.workloads import BurstyArrivals, MasterTable, SalesStream, ZipfKeys

__all__ = [
    "METRICS",
    "DemoPlan",
    "build_relation",
    "count_differences",
    "rehearse",
    "start_join",
    "write_master",
    "write_sales",
]

METRICS = "join"
"""Name of the join's statistics in the query's progress."""

_MASTER_FILE_ROWS = 250_000
_SALES_PER_SECOND = 20_000.0


@dataclass(frozen=True)
class DemoPlan:
    """What to join with what, and how.

    Parameters
    ----------
    rows, sales
        Products in the master table, and sales in the stream.
    batches
        Stretches of time the stream is cut into. Fewer make larger micro-batches, in which more sales share a read.
    shards
        Parts of R, each joined by a task of its own: one for each core, and eight at most.
    memory, algorithm
        As in `semistream.join`.
    exponent
        Skew of the products sold.
    """

    rows: int = 1_000_000
    sales: int = 600_000
    batches: int = 8
    shards: int = field(default_factory=lambda: min(8, max(2, os.cpu_count() or 2)))
    memory: str = "5%"
    algorithm: str = "hybridjoin"
    exponent: float = 1.0
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("rows", "sales", "batches", "shards"):
            check_at_least(1, **{name: getattr(self, name)})

    @property
    def master(self) -> MasterTable:
        """R before it is one: products in no order."""
        return MasterTable(self.rows, order="shuffled", seed=self.seed)

    @property
    def stream(self) -> SalesStream:
        """The sales: popular products anywhere in R, one sale in fifty of a product R does not have."""
        return SalesStream(
            ZipfKeys(self.rows, self.exponent, "random", self.seed),
            self.sales,
            BurstyArrivals(_SALES_PER_SECOND, seed=self.seed),
            absent_share=0.02,
            null_share=0.005,
            seed=self.seed,
        )


def rehearse(plan: DemoPlan, directory: Path) -> None:
    """Build and join a few rows here, without Spark.

    On its first use every kernel is compiled, and kept on disk: once here, before all Python workers of Spark would do
    it at the same time.
    """
    small = replace(plan, rows=1000, sales=1000)
    with Relation.build(small.master.table(), directory / "rehearsal", key="product_id", shards=2) as relation:
        rehearsal = create(plan.algorithm, relation, on="product_id", how="left", memory="16MB")
        for _ in rehearsal.process(small.stream.batches()):
            pass


def write_master(plan: DemoPlan, directory: Path, wrote: Callable[[int], None] = lambda _: None) -> None:
    """Write the master table as Parquet files under ``directory/master``."""
    (directory / "master").mkdir()
    for number, start in enumerate(range(0, plan.rows, _MASTER_FILE_ROWS)):
        batch = plan.master.batch(start, min(_MASTER_FILE_ROWS, plan.rows - start))
        pq.write_table(pa.Table.from_batches([batch]), directory / "master" / f"part-{number:05d}.parquet")
        wrote(batch.num_rows)


def write_sales(plan: DemoPlan, directory: Path, wrote: Callable[[int], None] = lambda _: None) -> list[int]:
    """Write the sales under ``directory/sales``, a file for each stretch of time; return the rows of each."""
    (directory / "sales").mkdir()
    stream = plan.stream
    last = float(stream.arrivals.cursor().take(plan.sales)[-1])
    begin = round(stream.epoch.timestamp() * 1e6)
    edges = begin + np.linspace(0, last * 1e6, plan.batches + 1)[1:-1].astype(np.int64)
    waiting: list[pa.RecordBatch] = []
    rows: list[int] = []

    def close_file() -> None:
        if waiting:
            table = pa.Table.from_batches(waiting)
            pq.write_table(table, directory / "sales" / f"part-{len(rows):05d}.parquet")
            rows.append(table.num_rows)
            waiting.clear()

    stretch = 0
    for batch in stream.batches():
        times = pc.cast(batch["event_time"], pa.int64()).to_numpy()
        cuts = np.searchsorted(times, edges[stretch:])
        at = 0
        for cut in cuts[cuts < times.size]:
            waiting.append(batch.slice(at, int(cut) - at))
            close_file()
            stretch, at = stretch + 1, int(cut)
        waiting.append(batch.slice(at))
        wrote(batch.num_rows)
    close_file()
    return rows


def build_relation(spark: SparkSession, plan: DemoPlan, directory: Path) -> Relation:
    """Make the master table a relation, ``directory/relation``, with a Spark job."""
    master = spark.read.parquet(str(directory / "master"))
    return build(master, directory / "relation", key="product_id", shards=plan.shards)


def start_join(spark: SparkSession, plan: DemoPlan, directory: Path) -> StreamingQuery:
    """Start the streaming query from ``directory/sales`` into ``directory/warehouse``; it ends by itself."""
    # Statistics of all micro-batches are read off the progress at the end, so Spark must keep that many.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(max(100, 2 * plan.batches)))
    sales_schema = spark.read.parquet(str(directory / "sales")).schema
    sales = spark.readStream.schema(sales_schema).option("maxFilesPerTrigger", 1).parquet(str(directory / "sales"))
    enriched = join(
        sales, directory / "relation", on="product_id", how="left", memory=plan.memory, algorithm=plan.algorithm,
        metrics=METRICS,
    )  # fmt: skip
    return (
        enriched.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "warehouse"))
        .trigger(availableNow=True)
        .start()
    )


def count_differences(spark: SparkSession, directory: Path, examples: int = 5) -> tuple[int, int, list[dict[str, Any]]]:
    """Compare the warehouse with Spark's own join of the same files, row for row, repeats included.

    Returns the rows of the warehouse, how many rows differ, and some of those; ``surplus`` says how many times more
    often than in the plain join a row is in the warehouse.
    """
    sales = spark.read.parquet(str(directory / "sales"))
    master = spark.read.parquet(str(directory / "master"))
    warehouse = spark.read.parquet(str(directory / "warehouse"))
    plain = sales.join(master, "product_id", "left").select(*warehouse.columns)
    return _compare(warehouse, plain, examples)


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
