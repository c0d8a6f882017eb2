"""Sales enriched over Spark Connect. Needs semistream[spark,connect].

    cd examples/connect
    python enrich.py                   # with a server of its own, on this machine
    python enrich.py sc://host:15002   # with one that is there, and sees this directory

The client has no JVM: the join is planned here, and its tasks run where the server's executors are, which need
semistream installed and the relation under the same path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import semistream
from semistream.spark.java import use_java

PRODUCTS = 5_000


def run(directory: Path, server: str = "local[2]") -> int:
    """Write facts under ``directory``; return how many there are."""
    relation = directory / "relations" / "products"
    if not relation.exists():
        names = [f"product {number}" for number in range(PRODUCTS)]
        products = pa.table({"product_id": range(PRODUCTS), "name": names})
        semistream.Relation.build(products, relation, key="product_id", shards=2).close()
    if server.startswith("local"):
        use_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or tasks run whichever python3 comes first
    spark = SparkSession.builder.remote(server).getOrCreate()
    try:
        sales = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=2_000, numPartitions=2).load()
        sales = sales.selectExpr("value AS sale_id", f"pmod(value * 7919, {PRODUCTS + 500}) AS product_id")
        enriched = semistream.join(sales, relation, on="product_id", how="left", memory="2MB", metrics="products")
        query = (
            enriched.writeStream.format("parquet")
            .option("checkpointLocation", str(directory / "out" / "checkpoint"))
            .option("path", str(directory / "out" / "facts"))
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            while not query.recentProgress or query.recentProgress[-1].batchId < 2:
                query.awaitTermination(1)
        finally:
            query.stop()
        facts = spark.read.parquet(str(directory / "out" / "facts"))
        facts.orderBy("sale_id").show(5)
        return facts.count()
    finally:
        spark.stop()


if __name__ == "__main__":
    print(run(Path(__file__).parent.absolute(), *sys.argv[1:]), "facts")
