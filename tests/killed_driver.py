"""A Spark driver for tests to kill: one query from files, through the join, to files."""

from __future__ import annotations

import sys
from pathlib import Path

import semistream
from feeding import HELD, joined_sales


def main(relation: Path, folder: Path, until: str, held: bool) -> None:
    """Run the query until all files are done (``until`` is "done") or somebody ends it."""
    spark = semistream.spark.session("to be killed", master="local[2]", memory="1g")
    writer = (
        joined_sales(spark, relation, folder, **HELD if held else {})
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "facts"))
    )
    query = (writer.trigger(availableNow=True) if until == "done" else writer).start()
    print("started", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], len(sys.argv) > 4)
