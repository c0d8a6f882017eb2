"""A Spark driver for tests to kill: one query from files, through the join, to files."""

from __future__ import annotations

import sys
from pathlib import Path

import semistream
from feeding import HELD, joined_sales
from sales_histories import stream


def main(relation: Path, folder: Path, until: str, kind: str) -> None:
    """Run the query until all files are done (``until`` is "done") or somebody ends it.

    ``kind`` is "held" or "by page", or "as of" for a join with a history.
    """
    spark = semistream.spark.session("to be killed", master="local[2]", memory="1g")
    if kind == "as of":
        joined = semistream.join(
            stream(spark, folder), relation, on="id", as_of="at", memory="4MB", hold=False, metrics="join"
        )
    else:
        joined = joined_sales(spark, relation, folder, **HELD if kind == "held" else {})
    writer = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "facts"))
    )
    query = (writer.trigger(availableNow=True) if until == "done" else writer).start()
    print("started", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
