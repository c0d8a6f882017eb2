"""Random histories and sales, DuckDB's answers to them, and streams of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feeding import patiently
from semistream.relation.relation import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 3_000
MOMENT = pa.timestamp("us", "UTC")
SALES = pa.schema({"n": pa.int64(), "id": pa.int64(), "at": MOMENT})
Rows = Counter[tuple[Any, ...]]


def history(first: int = 0, note: int = 0) -> pa.Table:
    """Draw a history: gaps, open ends, and keys with one to six versions, without those before ``first``."""
    random = np.random.default_rng(3)
    counts = random.integers(1, 7, KEYS)
    key = np.repeat(np.arange(KEYS) * 2, counts)
    number = np.concatenate([np.arange(count) for count in counts])
    begins = 1_000_000 * (number * 100 + random.integers(0, 90, key.size)) + 123
    last = np.append(key[1:] != key[:-1], True)
    following = np.where(last, np.iinfo(np.int64).max, np.append(begins[1:], 0))
    ends = np.where(last | (random.random(key.size) < 0.2), begins + 5_000_000, following)
    is_open = random.random(key.size) < np.where(last, 0.7, 0.1)
    table = pa.table({
        "id": key, "since": pa.array(begins, pa.int64()).cast(MOMENT),
        "until": pa.array(np.minimum(ends, following), pa.int64(), mask=is_open).cast(MOMENT),
        "price": key * 1000 + number + note, "name": pa.array([f"v{at % 7}" * (at % 3) for at in number]),
    })  # fmt: skip
    kept = random.permutation(np.flatnonzero(number >= first))
    return table.take(pa.array(kept))


def build(path: Path, table: pa.Table, shards: int = 3) -> pa.Table:
    """Build a relation of a history."""
    Relation.build(
        table, path, "id", valid_from="since", valid_to="until", shards=shards, page_size=1024, overwrite=True
    ).close()
    return table


def sales_of(number: int, rows: int = 1500) -> pa.Table:
    """Draw sales: known and unknown products, before the first version and after the last, NULL keys and NULL times."""
    random = np.random.default_rng(100 + number)
    at = pa.array(1_000_000 * random.integers(-50, 700, rows) + 123, pa.int64(), mask=random.random(rows) < 0.03)
    ids = pa.array(random.integers(-5, 2 * KEYS + 5, rows), mask=random.random(rows) < 0.03)
    return pa.table([np.arange(rows) + number * rows, ids, at.cast(MOMENT)], schema=SALES)


def expected(sales: pa.Table, history: pa.Table, how: str = "left") -> Rows:
    """Return what DuckDB's as-of join says, without rows that have ended."""
    shown = ", ".join(
        f"CASE WHEN h.until IS NULL OR s.at < h.until THEN {column} END"
        for column in ("epoch_us(h.since)", "epoch_us(h.until)", "h.price", "h.name")
    )
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("sales", sales)
        connection.register("history", history)
        found = connection.execute(
            f"SELECT s.n, s.id, epoch_us(s.at), {shown} "
            "FROM sales s ASOF LEFT JOIN history h ON s.id = h.id AND s.at >= h.since"
        ).fetchall()
    return Counter(row for row in found if how == "left" or row[5] is not None)


def rows_of(frame: DataFrame) -> Rows:
    """Return the rows of a frame in the form of `expected`."""
    times = [f"unix_micros({name})" for name in ("at", "since", "until")]
    return Counter(tuple(row) for row in frame.selectExpr("n", "id", *times, "price", "name").collect())


def matched(rows: Rows) -> Rows:
    """Return the rows that have a match."""
    return Counter({row: count for row, count in rows.items() if row[5] is not None})


def without_key(rows: Rows) -> Rows:
    """Return the rows that never have a match: their key or time is NULL."""
    return Counter({row: count for row, count in rows.items() if None in row[1:3]})


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the files of ``folder/in`` as a stream, one a micro-batch."""
    schema = "n long, id long, at timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def give(folder: Path, numbers: Sequence[int]) -> list[pa.Table]:
    """Write files of sales."""
    (folder / "in").mkdir(exist_ok=True)
    tables = [sales_of(number, 500) for number in numbers]
    for number, table in zip(numbers, tables, strict=True):
        file = folder / f"{number}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first
        file.rename(folder / "in" / file.name)
    return tables


def run(frame: DataFrame, folder: Path, sink: Any) -> None:
    """Run a query to its end."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())


class Batches:
    """A sink that notes what every attempt of a batch had."""

    def __init__(self) -> None:
        self.tries: dict[int, list[Rows]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.tries.setdefault(batch, []).append(rows_of(frame))

    def rows(self) -> Rows:
        """Return the rows of all batches, as the last attempt had them."""
        return sum((tries[-1] for tries in self.tries.values()), Counter())
