"""A streaming query over files that come one by one, for tests of what lasts from one micro-batch to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import semistream
from packed_builds import builds_as_released
from semistream.workloads import ZipfKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Found = TypeVar("Found")

ROWS, SHARDS, BATCH = 60_000, 6, 5_000
MEMORY = 4_000_000


def patiently(run: Callable[[], Found]) -> Found:
    """Run a query to its end; again, if on a busy machine Python took longer to start than Spark's ten seconds.

    Spark waits no longer for a process of the driver, which keeps parked rows or reads a source written in Python.
    """
    from pyspark.errors import StreamingQueryException

    for _ in range(3):
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return run()


def build_products(path: Path, *, packed: bool = False) -> Path:
    """Build R: six shards, and no more than two tasks run at once. It is large enough for its rows to be packed."""
    ids = np.arange(ROWS)
    table = pa.table({"id": ids, "price": ids % 1000, "name": [f"product {i}" for i in range(ROWS)]})
    with builds_as_released():
        built = semistream.Relation.build(
            table, path, key="id", shards=SHARDS, page_size=4096, encoding="auto" if packed else "plain"
        )
    with built:
        assert (built.packing is not None) == packed
    return path


def write_sales(folder: Path, number: int, rows: int = BATCH) -> pa.Table:
    """Put one more file of sales into a directory, whole at once."""
    keys = ZipfKeys(ROWS + 5000, 1.0, "random", seed=9).keys(number * BATCH, rows)  # some are not in R
    table = pa.table({"id": keys, "sale": np.arange(number * BATCH, number * BATCH + rows)})
    unfinished = folder.parent / "file.parquet"
    pq.write_table(table, unfinished)
    unfinished.rename(folder / f"{number:05d}.parquet")
    return table


def joined_sales(spark: SparkSession, relation: Path, folder: Path, **options: Any) -> DataFrame:
    """Join the files of ``folder/in``, one a micro-batch."""
    stream = spark.readStream.schema("id long, sale long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    options = {"memory": MEMORY, "hold": False} | options
    return semistream.join(stream, relation, on="id", how="left", metrics="join", **options)


HELD: dict[str, Any] = {"memory": "16MB", "hold": True}
"""Options with which R is held whole."""

STORES, DAYS = 40, 50


def build_small_dimensions(folder: Path) -> None:
    """Build the other relations of `starred_sales`."""
    stores, days = np.arange(STORES), np.arange(DAYS)
    semistream.Relation.build(pa.table({"store": stores, "region": stores % 7}), folder / "stores", "store").close()
    semistream.Relation.build(pa.table({"day": days, "week": days // 7}), folder / "days", "day").close()


def starred_sales(spark: SparkSession, relation: Path, folder: Path) -> DataFrame:
    """Join the files of ``folder/in`` with a star: R by page and held whole, and two small relations.

    Of 43 stores three are unknown, and their sales are dropped; of 53 days three, and their sales are dead letters.
    """
    stream = spark.readStream.schema("id long, sale long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    sales = stream.selectExpr("*", f"sale % {STORES + 3} AS store", f"sale % {DAYS + 3} AS day", "id AS again")
    return semistream.enrich(sales, [
        semistream.dimension(folder / "stores", on="store", how="inner"),
        semistream.dimension(relation, on="id", memory=MEMORY, hold=False, metrics="join"),
        semistream.dimension(folder / "days", on="day", on_missing="dead_letter"),
        semistream.dimension(relation, on="again", prefix="again_", **HELD),
    ])  # fmt: skip


def check_facts(
    spark: SparkSession, folder: Path, files: Iterable[pa.Table], price: Callable[[int], int | None]
) -> None:
    """Compare all that came out with what should have."""
    expected = Counter(
        (sale, key, price(key)) for table in files for key, sale in zip(*table.to_pydict().values(), strict=True)
    )
    facts = spark.read.parquet(str(folder / "facts")).select("sale", "id", "price").toArrow()
    assert Counter(zip(*facts.to_pydict().values(), strict=True)) == expected


class Feed:
    """A query over files that come one by one, each a micro-batch."""

    def __init__(self, spark: SparkSession, relation: Path, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.files: list[pa.Table] = []
        (folder / "in").mkdir(parents=True, exist_ok=True)
        joined = joined_sales(spark, relation, folder, **options)
        self.query: StreamingQuery = (
            joined.writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("path", str(folder / "facts"))
            .start()
        )

    def add(self, number: int, rows: int = BATCH) -> dict[str, Any]:
        """Run one micro-batch; return what its tasks counted."""
        self.give(number, rows)
        self.query.processAllAvailable()
        return self.counters()[-1]

    def give(self, number: int, rows: int = BATCH) -> None:
        self.files.append(write_sales(self.folder / "in", number, rows))

    def counters(self) -> list[dict[str, Any]]:
        from semistream.spark.monitoring.metrics import counters_of

        found = [counters_of(progress["observedMetrics"].get("join")) for progress in self.query.recentProgress]
        return [row for row in found if row is not None and row["rows_in"]]

    @property
    def caches(self) -> list[Path]:
        from semistream.spark.joining.warm import places

        return [root / self.query.id for root in places() if (root / self.query.id).exists()]

    @property
    def cache_bytes(self) -> int:
        """Memory that the caches hold, tasks running or not."""
        return sum(file.stat().st_blocks * 512 for root in self.caches for file in root.rglob("*.array"))

    def check(self, spark: SparkSession, price: Callable[[int], int | None]) -> None:
        """Compare all that came out with what should have."""
        check_facts(spark, self.folder, self.files, price)


def price_of(key: int) -> int | None:
    return key % 1000 if key < ROWS else None


@contextmanager
def feed(spark: SparkSession, relation: Path, folder: Path, **options: Any) -> Iterator[Feed]:
    fed = Feed(spark, relation, folder, **options)
    try:
        yield fed
    finally:
        fed.query.stop()


def workers() -> list[psutil.Process]:
    """Return the Python workers of this session: children of Spark's daemon."""
    parents: dict[psutil.Process, int] = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # gone meanwhile
            if "daemon" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                parents[process] = process.ppid()
    daemons = {process.pid for process in parents}
    return [process for process, parent in parents.items() if parent in daemons]
