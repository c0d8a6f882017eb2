"""Tasks that share a shard have all of its keys between them, each once, and pages of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.spark.joining.spreading.routing import Routing, stripe_width
from semistream.spark.relations.key_expressions import positional

pytestmark = pytest.mark.spark
ROWS = 60_000


@pytest.mark.parametrize("text", [False, True])
def test_a_task_has_one_shard_and_pages_of_its_own(spark: SparkSession, tmp_path: Path, text: bool) -> None:
    ids = np.arange(ROWS) * 7 - 1000
    keys = [f"k{i}" for i in ids] if text else ids
    path = tmp_path / "r"
    values = ["x" * 40] * ROWS
    data = pa.table({"id": keys, "v": values})
    semistream.Relation.build(data, path, "id", shards=2, page_size=1024, encoding="plain").close()
    with semistream.Relation.open(path, shards=[0]) as shard:
        width, codec, pages = stripe_width(shard), shard.key, shard.page_count
    assert width > 0
    column = "'k' || (id * 7 - 1000)" if text else "id * 7 - 1000"
    stream = (
        spark.range(ROWS)
        .selectExpr(f"{column} AS id")
        .union(spark.sql(f"SELECT CAST(NULL AS {'string' if text else 'long'}) AS id"))
    )
    routed = positional(stream).select("c0", Routing(2, 8, width).part_of(stream, ("id",), codec).alias("part"))
    found = routed.toArrow()
    parts = found["part"].to_numpy()
    assert found["part"].null_count == 0
    numbers, valid = codec.encode(pa.record_batch({"id": found["c0"].combine_chunks()}), ["id"])
    assert np.array_equal(parts[valid] % 2, codec.shards(numbers[valid], 2))
    counts = np.bincount(parts, minlength=8)
    assert counts.min() > 0.8 * ROWS / 8
    assert counts.max() < 1.2 * ROWS / 8
    with semistream.Relation.open(path, shards=[0]) as shard:
        asked = [np.unique(shard.locate(np.sort(numbers[valid & (parts == part)])).pages).size for part in (0, 2, 4, 6)]
    assert sum(asked) < 1.2 * pages, "by the hash of single keys it would be four times"
    assert stream.count() == ROWS + 1


def test_small_relations_have_no_stripes(tmp_path: Path) -> None:
    with semistream.Relation.build(pa.table({"id": range(100), "v": range(100)}), tmp_path / "r", "id") as small:
        assert stripe_width(small) == 0
