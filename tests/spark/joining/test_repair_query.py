"""A damaged page stops a query, which goes on after the repair: no row is lost, none is there twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryException

import semistream
from semistream.cli import app
from semistream.relation.relation import Relation

pytestmark = pytest.mark.spark

PAGE, KEYS = 512, 600


@pytest.mark.long
def test_a_query_goes_on_after_the_repair(spark: SparkSession, tmp_path: Path) -> None:
    master = pa.table({"id": np.arange(KEYS), "name": [f"name {key}" for key in range(KEYS)]})
    pq.write_table(master, tmp_path / "master.parquet")
    relation = tmp_path / "r"
    Relation.build(master, relation, "id", shards=2, page_size=PAGE).close()
    (tmp_path / "sales").mkdir()
    keys = [np.random.default_rng(number).permutation(KEYS) for number in range(3)]
    for number, part in enumerate(keys):
        pq.write_table(pa.table({"id": part}), tmp_path / "sales" / f"{number}.parquet")

    def run() -> None:
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "sales"))
        joined = semistream.join(stream, relation, on="id", memory="1MB", algorithm="hybridjoin")
        query = (
            joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "facts")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()

    file = sorted(relation.glob("*.pages"))[1]
    with open(file, "r+b") as opened:
        opened.seek(3 * PAGE + 200)
        opened.write(b"damage")
    with pytest.raises(
        StreamingQueryException, match=rf"page 3 of {re.escape(str(file))} is corrupt.*semistream repair"
    ):
        run()
    # Keys get other rows meanwhile; the batch was pinned to the version from before, and stays with it.
    semistream.upsert(relation, pa.table({"id": [5], "name": ["renamed"]}))
    outcome = CliRunner().invoke(app, ["repair", str(relation), "--from", str(tmp_path / "master.parquet")])
    assert outcome.exit_code == 0, outcome.output
    run()
    facts = Counter(tuple(row) for row in spark.read.parquet(str(tmp_path / "facts")).collect())
    renamed = Counter({(5, "name 5"): 1, (5, "renamed"): 2})
    assert facts == Counter((key, f"name {key}") for key in range(KEYS) for _ in keys if key != 5) + renamed
