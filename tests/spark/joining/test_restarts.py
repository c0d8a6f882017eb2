"""A query is changed, or R is, and it is started again from its checkpoint: right rows, or a refusal that says why."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

import semistream
from feeding import patiently
from semistream.relation.relation import Relation
from semistream.relation.versions import pins

pytestmark = pytest.mark.spark

KEYS = 60


def master(known: int, version: int, shards: int, path: Path, columns: tuple[str, ...] = ("id", "v", "w")) -> None:
    """Build R anew: keys below ``known``, with their version and its negative."""
    keys = np.arange(known)
    table = pa.table({"id": keys, "v": keys * 10 + version, "w": -(keys * 10 + version)})
    Relation.build(table.select(columns), path, "id", shards=shards, page_size=512, overwrite=True).close()


def more(folder: Path, number: int) -> list[tuple[int, int, int]]:
    """Write one more file of the stream; ``a`` and ``b`` are of one type, and never the same."""
    (folder / "in").mkdir(exist_ok=True)
    keys = np.random.default_rng(number).permutation(KEYS)
    table = pa.table({"id": keys, "a": 1000 * number + np.arange(KEYS), "b": -1000 * (number + 1) - np.arange(KEYS)})
    pq.write_table(table, folder / "in" / f"{number}.parquet")
    return list(zip(*table.to_pydict().values(), strict=True))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("id long, a long, b long").parquet(str(folder / "in"))


def run(frame: DataFrame, folder: Path, sink: Any) -> StreamingQuery:
    """Run a query to its end."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))

    def to_its_end() -> StreamingQuery:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return patiently(to_its_end)


def uncommit(folder: Path, batch: int) -> None:
    """As if the driver had died after a batch was processed, and before that was noted."""
    for name in (f"{batch}", f".{batch}.crc"):
        (folder / "checkpoint/commits" / name).unlink(missing_ok=True)


def partitions_of_state(query: StreamingQuery) -> list[int]:
    assert query.lastProgress is not None
    return [operator["numShufflePartitions"] for operator in query.lastProgress["stateOperators"]]


@pytest.mark.long
def test_parked_rows_outlive_changes_of_columns_and_shards(spark: SparkSession, tmp_path: Path) -> None:
    seen: Counter[tuple[int, ...]] = Counter()

    def sink(frame: DataFrame, batch: int) -> None:
        seen.update(tuple(row) for row in frame.select("id", "a", "b", "v").collect())

    def joined(*columns: str) -> DataFrame:
        return semistream.join(
            stream(spark, tmp_path).select(*columns), relation, on="id", on_missing="park", park_for="1 hour",
            park_idle=False, memory="1MB",
        )  # fmt: skip

    relation = tmp_path / "r"
    master(20, 1, 3, relation)
    first = more(tmp_path, 0)
    setting = "spark.sql.shuffle.partitions"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "7")
    try:
        query = run(joined("id", "a", "b"), tmp_path, sink)
        assert partitions_of_state(query) == [3], "as many as shards, not as shuffles"
        assert spark.conf.get(setting) == "7"
    finally:
        spark.conf.set(setting, before)
    assert seen == Counter((*row, row[0] * 10 + 1) for row in first if row[0] < 20)
    # Other columns first, and other shards: parked rows are in groups of three, and keys are in two shards now.
    seen.clear()
    master(40, 2, 2, relation)
    second = more(tmp_path, 1)
    run(joined("b", "id", "a"), tmp_path, sink)
    expected = [row for row in first if 20 <= row[0] < 40] + [row for row in second if row[0] < 40]
    assert seen == Counter((*row, row[0] * 10 + 2) for row in expected)
    # A column is gone: what waits has it. The query is refused, and nothing is lost.
    seen.clear()
    master(50, 3, 1, relation)
    third = more(tmp_path, 2)
    with pytest.raises(StreamingQueryException, match=r"different columns from .*: b: int64 before, none now"):
        run(joined("id", "a"), tmp_path, lambda frame, batch: frame.collect())
    assert not seen
    # Fewer shards than groups of parked rows: all groups are tended to.
    query = run(joined("a", "b", "id"), tmp_path, sink)
    assert partitions_of_state(query) == [3], "the checkpoint has as many"
    expected = [row for row in first + second if 40 <= row[0] < 50] + [row for row in third if row[0] < 50]
    assert seen == Counter((*row, row[0] * 10 + 3) for row in expected)


@pytest.mark.long
def test_a_replay_reads_its_version_whatever_became_of_the_relation(spark: SparkSession, tmp_path: Path) -> None:
    seen: dict[int, list[set[int]]] = {}
    relation = tmp_path / "r"

    def rows(frame: DataFrame) -> set[int]:
        found = frame.select("id", "v", "w").collect()
        assert len(found) == KEYS
        assert all(row.v == -row.w for row in found)
        return {row.v - row.id * 10 for row in found}

    def sink(frame: DataFrame, batch: int) -> None:
        # In a thread, and then here, R having changed in between: both are of one batch.
        versions: list[set[int]] = []
        thread = threading.Thread(target=lambda: versions.append(rows(frame)))
        thread.start()
        thread.join()
        keys = np.arange(KEYS)
        semistream.upsert(relation, pa.table({"id": keys, "v": keys * 10 + 7, "w": -(keys * 10 + 7)}))
        versions.append(rows(frame))
        seen.setdefault(batch, []).append(set().union(*versions))

    def joined(given: Any = relation) -> DataFrame:
        return semistream.join(stream(spark, tmp_path), given, on="id", memory="1MB", algorithm="hybridjoin")

    master(KEYS, 1, 2, relation)
    more(tmp_path, 0)
    run(joined(), tmp_path, sink)
    assert seen == {0: [{1}]}
    # Other shards, the columns in another order; the batch is replayed, and the next one reads what is new.
    uncommit(tmp_path, 0)
    master(KEYS, 3, 3, relation, ("w", "id", "v"))
    more(tmp_path, 1)
    run(joined(), tmp_path, sink)
    assert seen == {0: [{1}, {1}], 1: [{7}]}, "the replay had changed R once more"
    # Columns that the version of the replay lacks: refused, with a way out.
    uncommit(tmp_path, 1)
    pinned = max(pins.pinned_versions(relation))
    Relation.build(pa.table({"id": np.arange(KEYS), "v": np.arange(KEYS) * 10 + 4}), relation, "id", overwrite=True)
    with pytest.raises(StreamingQueryException, match=rf"other columns .*: w. .*version={pinned}\) to join"):
        run(joined(), tmp_path, lambda frame, batch: frame.collect())
    again: list[set[int]] = []
    run(joined(Relation.open(relation, version=pinned)), tmp_path, lambda frame, batch: again.append(rows(frame)))
    assert again == [{7}]
    # A version that is gone: told, with a way out.
    uncommit(tmp_path, 1)
    (relation / f"manifest-{pinned:08d}.json").unlink()
    with pytest.raises(StreamingQueryException, match=f"began with version {pinned} of .* Restore that version"):
        run(joined(), tmp_path, lambda frame, batch: frame.collect())
