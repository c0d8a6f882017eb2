"""Stars whose relations all get new versions: rows that were parked, and micro-batches that are done again."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from feeding import patiently
from semistream.relation.relation import Relation
from semistream.spark.joining.star.stage import remembered

pytestmark = [pytest.mark.spark, pytest.mark.long]

SALES = pa.schema({"n": pa.int64(), "product": pa.int64(), "store": pa.string(), "day": pa.int64()})
KNOWN = {1: 100, 2: 120, 3: 150}
"""Products that are known, by version; all sales are of the first 150, or of none."""
DAYS = 10
WAYS: dict[str, dict[str, Any]] = {
    "paged": {"hold": False},
    "held": {"hold": True},
    "parked": {"on_missing": "park", "park_for": "1 hour", "park_idle": False},
}
Sale = tuple[int, int | None, str, int]
Rows = Counter[tuple[Any, ...]]


def publish(folder: Path, version: int) -> None:
    """Give all relations a version, in which every value is another; products get other shards, too."""
    keys, days = np.arange(KNOWN[version]), np.arange(DAYS)
    table = pa.table({"id": keys, "price": keys * 10 + version})
    Relation.build(table, folder / "products", "id", shards=1 + version % 2, page_size=512, overwrite=True).close()
    stores = pa.table({"store": ["a", "b"], "region": [version, 10 + version]})
    weeks = pa.table({"day": days, "week": days * 10 + version})
    if version == 1:
        Relation.build(stores, folder / "stores", "store").close()
        Relation.build(weeks, folder / "days", "day").close()
    else:
        semistream.upsert(folder / "stores", stores)
        semistream.upsert(folder / "days", weeks)


def more_sales(folder: Path, number: int) -> list[Sale]:
    """Write a file of the stream; store c is unknown, and days from the tenth on."""
    random = np.random.default_rng(number)
    products: list[int | None] = [None, *map(int, random.integers(0, KNOWN[3], 200))]
    rows = [(1000 * number + at, key, "abc"[at % 3], at % (DAYS + 2)) for at, key in enumerate(products)]
    (folder / "sales").mkdir(exist_ok=True)
    file = folder / "sales" / f"{number}.parquet"
    pq.write_table(pa.table(dict(zip(SALES.names, zip(*rows, strict=True), strict=True)), schema=SALES), file)
    os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first
    return rows


def starred(spark: SparkSession, folder: Path, products: dict[str, Any]) -> DataFrame:
    stream = spark.readStream.schema("n long, product long, store string, day long").option("maxFilesPerTrigger", 1)
    found = semistream.enrich(stream.parquet(f"{folder}/sales"), [
        semistream.dimension(folder / "stores", on="store", how="inner"),
        semistream.dimension(folder / "products", on="product", memory="1MB", **products),
        semistream.dimension(folder / "days", on="day", on_missing="dead_letter"),
    ])  # fmt: skip
    stage = remembered(found)
    assert stage is not None
    assert len(stage.plans) == (1 if "on_missing" in products else 3)
    return found.select(*SALES.names, "region", "price", "week", "missing_in")


class Expected:
    """What each micro-batch should give, by the versions that it reads."""

    def __init__(self, *, park: bool) -> None:
        self._park = park
        self.waiting: list[tuple[Sale, int]] = []

    def batch(self, rows: list[Sale], version: int) -> Rows:
        """Join new rows, and waiting ones, which keep the region that they were joined with when they came."""
        regions = {"a": version, "b": 10 + version}
        given = self.waiting + [(row, regions[row[2]]) for row in rows if row[2] in regions]
        self.waiting = []
        found: Rows = Counter()
        for row, region in given:
            _, product, _, day = row
            known = product is not None and product < KNOWN[version]
            if self._park and product is not None and not known:
                self.waiting.append((row, region))
                continue
            price = product * 10 + version if product is not None and known else None
            week = (day * 10 + version, None) if day < DAYS else (None, "days")
            found[(*row, region, price, *week)] += 1
        return found


@pytest.mark.parametrize("way", WAYS)
def test_a_replay_reads_the_versions_of_all_relations_that_it_pinned(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """And parked rows come out once, with the versions of the micro-batch in which their product is known."""
    tries: dict[int, list[Rows]] = {}

    def run() -> None:
        def sink(batch: DataFrame, number: int) -> None:
            tries.setdefault(number, []).append(Counter(map(tuple, batch.collect())))

        writer = starred(spark, tmp_path, WAYS[way]).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        patiently(lambda: writer.start().awaitTermination())

    expected = Expected(park=way == "parked")
    publish(tmp_path, 1)
    first = expected.batch(more_sales(tmp_path, 0), 1)
    run()
    assert tries == {0: [first]}
    before = len(expected.waiting)
    assert bool(before) == (way == "parked")
    publish(tmp_path, 2)
    second = expected.batch(more_sales(tmp_path, 1), 2)
    run()
    assert tries == {0: [first], 1: [second]}
    # The batch is done again, and all relations have other rows by now.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint/commits" / name).unlink(missing_ok=True)
    publish(tmp_path, 3)
    third = expected.batch(more_sales(tmp_path, 2), 3)
    run()
    assert tries == {0: [first], 1: [second, second], 2: [third]}
    assert not expected.waiting, "all products are known in the end"
