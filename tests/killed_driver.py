"""A Spark driver for tests to kill: one query from files, through one join or a star, to files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import semistream
from feeding import HELD, joined_sales, starred_sales
from sales_histories import stream
from semistream.spark.sinks import ParquetSink, write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def main(relation: Path, folder: Path, until: str, shape: str) -> None:
    """Run the query until all files are done (``until`` is "done") or somebody ends it.

    The ``shape`` is "paged" or "held" for one join, by how R is read, "as of" for a join with a history, or "star".
    """
    spark = semistream.spark.session("to be killed", master="local[2]", memory="1g")
    writer = written(spark, relation, folder, shape).option("checkpointLocation", str(folder / "checkpoint"))
    query = (writer.trigger(availableNow=True) if until == "done" else writer).start()
    print("started", flush=True)
    query.awaitTermination()
    spark.stop()


def written(spark: SparkSession, relation: Path, folder: Path, shape: str) -> DataStreamWriter:
    """Return the writer: Spark's own for one join, and ours, with a second sink for dead letters, for a star."""
    if shape == "star":
        joined = starred_sales(spark, relation, folder)
        return write_stream(joined, ParquetSink(folder / "facts"), dead_letters=ParquetSink(folder / "letters"))
    if shape == "as of":
        joined = semistream.join(
            stream(spark, folder), relation, on="id", as_of="at", memory="4MB", hold=False, metrics="join"
        )
    else:
        joined = joined_sales(spark, relation, folder, **HELD if shape == "held" else {})
    return joined.writeStream.format("parquet").option("path", str(folder / "facts"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
