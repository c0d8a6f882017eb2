"""``semistream bench star``: a star in one pass, as a chain of joins, and by Spark's own best plan, in one run.

All plans run in one session, read the same files of sales, one per micro-batch, and use the sink ``noop``. Every key
has a match, so all joins give the same rows, and their number is checked. Contestants:

* *ours*: `semistream.enrich` with products, customers, stores and days under two keys;
* *chain*: a separate pass for each join, with a shuffle and a Python stage;
* *spark*: inner joins with the Parquet files. Small tables are broadcast. For products that are not small, the
  micro-batch is broadcast and products are scanned, which is Spark's fastest plan for them;
* *cached*: if all tables are small, the same with tables that are cached in Spark's memory and never see an update;
* *one shard*: the same as *ours*, with relations of one shard, which is divided among the same number of tasks.

All queries keep running and take turns, so that changes of the machine's speed affect all of them equally. A rate is
the number of rows of a micro-batch divided by the median of Spark's ``triggerExecution``.

The fixed cost of a star is measured with micro-batches without rows, in turns with a single join with products.
"""

from __future__ import annotations

import datetime
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.machine import describe_machine
from semistream.core.units import parse_bytes, whole_relation
from semistream.relation.relation import Relation
from semistream.spark.joining.star.enrichment import dimension, enrich
from semistream.spark.joining.star.stage import remembered
from semistream.spark.joining.star.star_budget import need_of
from semistream.spark.joining.stream_join import join
from semistream.spark.sessions import session
from semistream_lab.benchmarks.fed_query import FedQuery, Note, Transform, times
from semistream_lab.benchmarks.join_rates import BenchError, code_version
from semistream_lab.benchmarks.star_data import KEYS, StarPlan

__all__ = ["SMALL_PRODUCTS", "bench_star", "star_session"]

TURNS = 3
SMALL_PRODUCTS = 200_000
"""Maximum number of products that Spark also broadcasts."""
_RESULTS = 10_000_000
"""Bytes for results of a relation that is held, so that 16,384 rows are looked up together."""
_FILL_OF_SPARK = 8
"""Maximum number of micro-batches before the measurement of Spark's own joins: they keep only compiled code."""


@contextmanager
def star_session(plan: StarPlan) -> Iterator[SparkSession]:
    """Start the session for all measurements, and stop it at the end."""
    spark = session(
        "bench star", master=f"local[{plan.cores}]", memory=plan.heap,
        settings={
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.streaming.fileSource.log.deletion": "false",
            "spark.sql.autoBroadcastJoinThreshold": "1g",
            "spark.sql.shuffle.partitions": str(plan.cores),
        },
    )  # fmt: skip
    try:
        yield spark
    finally:
        spark.stop()


def bench_star(spark: SparkSession, plan: StarPlan, directory: Path, note: Note = lambda *_: None) -> dict[str, Any]:
    """Measure one point; all files must exist.

    Returns
    -------
    dict
        Ready for JSON: rates in rows per second (``ours``, ``chain``, ``spark``…), their ratios, the seconds of a
        micro-batch without rows (``empty``), and the parameters.
    """
    star = _Star(spark, plan, directory)
    contestants: dict[str, Transform] = {"ours": star.in_one_pass, "chain": star.in_a_chain, "spark": star.by_spark}
    if plan.products <= SMALL_PRODUCTS:
        contestants["cached"] = star.by_spark_cached
    if plan.shards > 1:
        contestants["one_shard"] = _Star(spark, replace(plan, shards=1), directory).in_one_pass
    files = sorted(plan.sales(directory).glob("part-*.parquet"))[: plan.files]
    schema = spark.read.parquet(str(files[0])).schema
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    measured = files[plan.fill :]
    with tempfile.TemporaryDirectory(dir=plan.place(directory)) as temporary, ExitStack() as stack:
        queries = {
            name: stack.enter_context(FedQuery(spark, schema, name, transform, Path(temporary), note))
            for name, transform in contestants.items()
        }
        before = {}
        for name, query in queries.items():
            some = files[: min(plan.fill, _FILL_OF_SPARK)] if name in ("spark", "cached") else files[: plan.fill]
            before[name] = query.feed(some, [plan.batch_rows] * len(some))
        for turn in range(TURNS):
            part = measured[turn * len(measured) // TURNS : (turn + 1) * len(measured) // TURNS]
            for name, query in queries.items():
                found[name] += query.feed(part, [plan.batch_rows] * len(part))
        with FedQuery(spark, schema, "one join", star.one_join, Path(temporary), note) as one:
            one.feed(files[:1], [plan.batch_rows])
            empty = _without_rows(plan, files[0], Path(temporary), {"star": queries["ours"], "one": one})
    joins = {name: times(progress, before[name], plan.batch_rows) for name, progress in found.items()}
    rates = {name: one["rows_per_second"] for name, one in joins.items()}
    ratios = {f"over_{name}": rates["ours"] / rate for name, rate in rates.items() if name != "ours"}
    return {
        "products": plan.products, "dimensions": len(KEYS), "batch": plan.batch_rows, **rates, **ratios,
        "empty": empty, "joins": joins, "plan": asdict(plan), "machine": describe_machine(directory),
        "spark_version": spark.version, "commit": code_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _without_rows(plan: StarPlan, file: Path, work: Path, queries: dict[str, FedQuery]) -> dict[str, Any]:
    """Return the seconds of micro-batches without rows, measured in turns."""
    empty = work / "empty.parquet"
    pq.write_table(pq.read_schema(file).empty_table(), empty)
    seconds: dict[str, list[float]] = {name: [] for name in queries}
    for turn in range(TURNS + 1):
        for name, query in queries.items():
            count = max(1, plan.batches // TURNS)
            found = times(query.feed([empty] * count, [0] * count), [], 0)["seconds"]
            seconds[name] += found if turn else []  # the first turn compiles code
    medians = {name: statistics.median(some) for name, some in seconds.items()}
    return medians | {"over_one": medians["star"] / medians["one"], "seconds": seconds}


class _Star:
    """The same joins in four ways."""

    def __init__(self, spark: SparkSession, plan: StarPlan, directory: Path) -> None:
        self._spark, self._plan, self._directory = spark, plan, directory
        self._cached: dict[str, DataFrame] = {}

    def _settings(self, key: str) -> tuple[Path, dict[str, Any]]:
        name, prefix = KEYS[key]
        path = self._plan.relation(self._directory, name)
        with Relation.open(path) as relation:
            # enough to hold R whole: in one image, and in a join by page
            memory = max(need_of(path).whole, whole_relation(relation.nbytes, relation.row_count)) + _RESULTS
            if name == "products" and self._plan.products > SMALL_PRODUCTS:
                memory = parse_bytes(self._plan.memory, of=relation.nbytes)
        return path, {"on": key, "how": "inner", "prefix": prefix, "memory": memory}

    def in_one_pass(self, sales: DataFrame) -> DataFrame:
        dimensions = []
        for key in KEYS:
            path, settings = self._settings(key)
            dimensions.append(dimension(path, **settings))
        joined = enrich(sales, dimensions)
        stage = remembered(joined)
        if stage is None or len(stage.plans) < len(dimensions):
            raise BenchError("enrich does not join all dimensions in one pass; please report this as a bug")
        return joined

    def one_join(self, sales: DataFrame) -> DataFrame:
        path, settings = self._settings("product_id")
        return join(sales, path, **settings)

    def in_a_chain(self, sales: DataFrame) -> DataFrame:
        for key in KEYS:
            path, settings = self._settings(key)
            sales = join(sales.select("*"), path, hold=False, **settings)
        return sales

    def _read(self, name: str) -> DataFrame:
        return self._spark.read.parquet(str(self._plan.place(self._directory) / name))

    def by_spark(self, sales: DataFrame) -> DataFrame:
        return self._by_spark(sales, self._read)

    def by_spark_cached(self, sales: DataFrame) -> DataFrame:
        def cached(name: str) -> DataFrame:
            if name not in self._cached:
                self._cached[name] = self._read(name).cache()
                self._cached[name].count()
            return self._cached[name]

        return self._by_spark(sales, cached)

    def _by_spark(self, sales: DataFrame, table_of: Callable[[str], DataFrame]) -> DataFrame:
        products = self._plan.products <= SMALL_PRODUCTS
        for key in sorted(KEYS, key=lambda key: KEYS[key][0] == "products"):  # products last
            name, prefix = KEYS[key]
            table = table_of(name)
            own = table.columns[0]
            table = table.select(F.col(own).alias(f"{prefix}{own}__"),
                                 *(F.col(column).alias(prefix + column) for column in table.columns[1:]))  # fmt: skip
            condition = F.col(key) == F.col(f"{prefix}{own}__")
            if name == "products" and not products:
                sales = F.broadcast(sales).join(table, condition)
            else:
                sales = sales.join(F.broadcast(table), condition)
            sales = sales.drop(f"{prefix}{own}__")
        return sales
