"""Joins on ranges on Spark: batch and streaming frames, compared with DuckDB's ``BETWEEN``, whatever dies."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from feeding import patiently, workers
from semistream.core.errors import (
    BudgetTooSmallError,
    JoinArgumentError,
    KeyColumnError,
    KeyTypeError,
    UnsupportedJoinError,
)
from semistream.relation.relation import Relation
from semistream.spark.joining.spreading.range_routing import RangeRouting
from semistream.spark.relations.key_expressions import positional

pytestmark = pytest.mark.spark

ROWS = 20_000
SCHEMA = pa.schema({"n": pa.int64(), "low": pa.int64(), "high": pa.int64()})


def build(path: Path, shards: int, first: int = 0) -> pa.Table:
    """Build R: every fifth number, three times each; keys below ``first`` are missing."""
    keys = np.repeat(np.arange(first, ROWS), 3) * 5
    table = pa.table({"k": keys, "v": np.arange(keys.size), "s": pa.array([f"row {k}" for k in keys])})
    Relation.build(table, path, "k", unique=False, shards=shards, page_size=1024, overwrite=True).close()
    return table


def stream_of(number: int, rows: int = 400) -> pa.Table:
    """Draw ranges: short, wide, empty between two keys, inverted, outside of all keys, and with NULL at either end."""
    generator = np.random.default_rng(number)
    low = generator.integers(-1000, 5 * ROWS + 1000, rows)
    high = low + generator.choice([0, 3, 20, 200, -7], rows)
    columns = [pa.array(at, mask=generator.random(rows) < 0.05) for at in (low, high)]
    extreme = pa.table([[-1, -2, -3], [-(2**63), 2**63 - 1, -(2**63)], [3, 2**63 - 1, -(2**63)]], schema=SCHEMA)
    return pa.concat_tables([pa.table([np.arange(rows) + rows * number, *columns], schema=SCHEMA), extreme])


def expected(stream: pa.Table, master: pa.Table, how: str = "left") -> Counter[tuple[Any, ...]]:
    found = duckdb.sql(f"SELECT n, low, high, k, v, s FROM stream {how} JOIN master ON k BETWEEN low AND high")
    assert stream.num_rows
    assert master.num_rows
    return Counter(found.fetchall())


def rows_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    path = tmp_path_factory.mktemp("ranges") / "r"
    return path, build(path, shards=3)


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        ("adaptivejoin", "left"), ("adaptivejoin", "inner"), ("ssij", "left"), ("oracle", "inner"), ("auto", "left"),
        *(pytest.param(*both, marks=pytest.mark.long) for both in [("ssij", "inner"), ("oracle", "left")]),
    ],
)  # fmt: skip
def test_it_is_what_duckdb_says(spark: SparkSession, relation: tuple[Path, pa.Table], how: Any, algorithm: str) -> None:
    path, master = relation
    table = stream_of(1)
    found = semistream.join(
        spark.createDataFrame(table).repartition(3), path, on=["low", "high"], condition="between", how=how,
        algorithm=algorithm, memory="8MB",
    )  # fmt: skip
    assert rows_of(found) == expected(table, master, how)


def test_one_shard_and_chosen_columns(spark: SparkSession, tmp_path: Path) -> None:
    master = build(tmp_path / "r", shards=1)
    table = stream_of(2)
    found = semistream.join(
        spark.createDataFrame(table), tmp_path / "r", on=["low", "high"], condition="between", columns=["v", "k"]
    )
    assert found.columns == ["n", "low", "high", "v", "k"]
    assert rows_of(found) == Counter(
        {(n, low, high, v, k): count for (n, low, high, k, v, _), count in expected(table, master).items()}
    )


DATES = "date '2024-02-29' + CAST(id % 900 - 450 AS int)"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("key", "bound"),
    [
        (DATES, "date '2023-05-01' + CAST(id AS int)"),
        (DATES, "timestamp_ntz '2023-05-01 11:30:00' + make_interval(0, 0, 0, 0, id)"),
        ("timestamp '2024-03-30 00:30:00' + make_interval(0, 0, 0, 0, id % 900)",
         "timestamp '2024-03-29 22:11:00' + make_interval(0, 0, 0, 0, 0, id * 7)"),
        ("timestamp_ntz '2024-03-30 00:30:00' + make_interval(0, 0, 0, 0, id % 900)",
         "timestamp_ntz '2024-03-29 22:11:00' + make_interval(0, 0, 0, 0, 0, id * 7)"),
        ("CAST(id % 900 AS decimal(12, 2)) / 4", "CAST(id AS decimal(9, 3)) / 3"),
        ("CAST(id % 900 AS int)", "id / 3.7D"),
        ("CAST(id % 900 AS smallint)", "IF(id % 5 = 0, id * 10000000000, id) - 300"),
    ],
    ids=["dates", "dates-by-time", "timestamps", "local-times", "decimals", "floats", "too-large"],
)  # fmt: skip
def test_types_of_bounds(spark: SparkSession, tmp_path: Path, key: str, bound: str) -> None:
    """Spark's own join is the reference; its casts are exact for these."""
    rows = spark.range(2700).selectExpr(f"CAST({key} AS {_key_type(spark, key)}) AS k", "id AS v")
    semistream.spark.build(rows, tmp_path / "r", key="k", shards=2, page_size=512)
    wide = "make_interval(0, 0, 0, 0, 5)" if "timestamp" in bound else "2"
    stream = spark.range(800).selectExpr("id", f"{bound} AS low").selectExpr("*", f"low + {wide} AS high")
    found = semistream.join(stream, tmp_path / "r", on=["low", "high"], condition="between")
    rows.createOrReplaceTempView("range_rows")
    stream.createOrReplaceTempView("range_stream")
    reference = spark.sql("SELECT s.*, k, v FROM range_stream s LEFT JOIN range_rows ON k BETWEEN low AND high")
    assert reference.where("k IS NOT NULL").count() > 400
    assert rows_of(found) == rows_of(reference)


def _key_type(spark: SparkSession, key: str) -> str:
    kind = spark.range(1).selectExpr(f"{key} AS k").schema.fields[0].dataType.simpleString()
    return "decimal(14,2)" if kind.startswith("decimal") else kind


@pytest.mark.parametrize("kind", ["bigint", "double", "decimal(20,3)", "date", "timestamp", "timestamp_ntz"])
def test_neighbouring_ranges_go_to_one_task(spark: SparkSession, kind: str) -> None:
    """Each row goes to one task, NULL too; and stripes of the key's order stay together."""
    ours = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("ms")}
    key = ours.get(kind, pa.int64())
    day = {"date": 1, "timestamp": 86_400_000_000, "timestamp_ntz": 86_400_000}.get(kind, 1)
    value = f"CAST(date '1999-12-31' + CAST(id AS int) AS {kind})" if kind in ours else f"CAST(id AS {kind})"
    frame = spark.range(4000).selectExpr(f"IF(id = 7, NULL, {value}) AS low", "id AS high")

    class Codec:
        types = (key,)

    routed = RangeRouting(4, 100 * day).part_of(positional(frame), ("c0", "c1"), Codec())  # type: ignore[arg-type]
    parts = np.array([row[0] for row in positional(frame).select(routed).collect()])
    assert set(parts) == {0, 1, 2, 3}
    assert np.count_nonzero(np.diff(np.delete(parts, 7))) in (39, 40)


def sales(spark: SparkSession, folder: Path) -> DataFrame:
    schema = "n long, low long, high long"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def give(folder: Path, numbers: Sequence[int]) -> list[pa.Table]:
    (folder / "in").mkdir(exist_ok=True)
    tables = [stream_of(number) for number in numbers]
    for number, table in zip(numbers, tables, strict=True):
        pq.write_table(table, folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_700_000_000 + number,) * 2)
        (folder / f"{number}.parquet").rename(folder / "in" / f"{number}.parquet")
    return tables


def run(frame: DataFrame, folder: Path, sink: Any) -> None:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())


class Batches:
    """A sink that notes what every attempt of a batch had."""

    def __init__(self) -> None:
        self.tries: dict[int, list[Counter[tuple[Any, ...]]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.tries.setdefault(batch, []).append(rows_of(frame))

    def rows(self) -> Counter[tuple[Any, ...]]:
        return sum((tries[-1] for tries in self.tries.values()), Counter())


def test_a_replay_reads_the_version_of_its_first_attempt(spark: SparkSession, tmp_path: Path) -> None:
    """And the next batch reads the next version, which has another number of shards."""
    old = build(tmp_path / "r", shards=2)
    tables = give(tmp_path, [0, 1])
    joined = semistream.join(
        sales(spark, tmp_path), tmp_path / "r", on=["low", "high"], condition="between", metrics="ranges"
    )
    seen = Batches()
    run(joined, tmp_path, seen)
    assert seen.rows() == sum((expected(table, old) for table in tables), Counter())
    semistream.upsert(tmp_path / "r", pa.table({"k": [0, 5], "v": [-1, -2], "s": ["new", None]}))
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint/commits" / name).unlink(missing_ok=True)
    tables += give(tmp_path, [2])
    run(joined, tmp_path, seen)
    assert len(seen.tries[1]) == 2
    assert seen.tries[1][0] == seen.tries[1][1]
    with Relation.open(tmp_path / "r") as relation:
        new = pa.Table.from_batches(relation.to_batches())
    assert new.num_rows == old.num_rows - 4
    assert seen.tries[2][-1] == expected(tables[2], new)


@pytest.mark.long
def test_workers_killed_cost_no_row(spark: SparkSession, tmp_path: Path) -> None:
    master = build(tmp_path / "r", shards=2)
    tables = give(tmp_path, range(8))
    joined = semistream.join(sales(spark, tmp_path), tmp_path / "r", on=["low", "high"], condition="between")
    stop, killed, seen = threading.Event(), [], Batches()

    def kill() -> None:
        while len(killed) < 3 and not stop.wait(0.5):
            batch = len(seen.tries)
            if batch not in killed and (found := workers()):
                os.kill(found[0].pid, signal.SIGKILL)
                killed.append(batch)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(joined, tmp_path, seen)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert seen.rows() == sum((expected(table, master) for table in tables), Counter())


def test_dead_letters(spark: SparkSession, relation: tuple[Path, pa.Table], tmp_path: Path) -> None:
    path, master = relation
    (table,) = give(tmp_path, [3])
    joined = semistream.join(
        sales(spark, tmp_path), path, on=["low", "high"], condition="between", on_missing="dead_letter"
    )
    seen = Batches()
    run(joined, tmp_path, seen)
    wanted = {
        (*row[:3], None if row[3] is not None else "r", *row[3:]): n for row, n in expected(table, master).items()
    }
    assert seen.rows() == Counter(wanted)


@pytest.mark.long
def test_parked_ranges_find_rows_that_come_later(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a later version, with another number of shards; ranges that stay empty leave when their time is over."""
    half = build(tmp_path / "r", shards=2, first=ROWS // 2)
    tables = give(tmp_path, [0, 1])
    joined = semistream.join(
        sales(spark, tmp_path), tmp_path / "r", on=["low", "high"], condition="between", on_missing="park",
        park_for="1 hour", park_idle=False, memory="16MB",
    )  # fmt: skip
    seen = Batches()
    run(joined, tmp_path, seen)
    all_of_it = build(tmp_path / "r", shards=3)
    tables += give(tmp_path, [2])
    run(joined, tmp_path, seen)
    before, found = seen.rows(), Counter[tuple[Any, ...]]()
    for table in tables[:2]:  # a range over the border of both halves matched the upper one at once
        early = Counter({row: n for row, n in expected(table, half).items() if row[3] is not None})
        matched = {row[0] for row in early}
        late = {row: n for row, n in expected(table, all_of_it).items() if row[0] not in matched}
        found += early + Counter({row: n for row, n in late.items() if row[3] is not None or None in row[1:3]})
    found += Counter(
        {row: n for row, n in expected(tables[2], all_of_it).items() if row[3] is not None or None in row[1:3]}
    )
    assert before == found


def test_what_cannot_work_is_refused(spark: SparkSession, relation: tuple[Path, pa.Table], tmp_path: Path) -> None:
    path, _ = relation
    stream = spark.createDataFrame(stream_of(0)).selectExpr("*", "date '2024-01-01' AS day")

    def joined(**options: Any) -> DataFrame:
        return semistream.join(stream, path, **{"on": ["low", "high"], "condition": "between"} | options)

    with pytest.raises(KeyColumnError, match=r"two columns of the stream.*on=\('low', 'high'\)"):
        joined(on="low")
    with pytest.raises(KeyColumnError, match="key column 'to' is not in the stream"):
        joined(on=["low", "to"])
    with pytest.raises(KeyTypeError, match=r"bound 'day' of the stream is date32.*int64.*cast"):
        joined(on=["low", "day"])
    with pytest.raises(UnsupportedJoinError, match="cachejoin does not support condition 'between'; use"):
        joined(algorithm="cachejoin")
    with pytest.raises(UnsupportedJoinError, match="must be one of 'equal', 'between'"):
        joined(condition="overlaps")
    with pytest.raises(UnsupportedJoinError, match="one row per key"):
        joined(hold=True)
    with pytest.raises(JoinArgumentError, match="surrogate replaces a key of one column"):
        joined(surrogate="v")
    with pytest.raises(BudgetTooSmallError, match="adaptivejoin needs at least"):
        joined(memory=1000)
    Relation.build(pa.table({"name": ["a"], "v": [1]}), tmp_path / "text", "name").close()
    with pytest.raises(UnsupportedJoinError, match="hashed, so it has no order"):
        semistream.join(stream, tmp_path / "text", on=["low", "high"], condition="between")
