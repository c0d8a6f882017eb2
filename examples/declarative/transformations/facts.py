"""Sales with their products, as a streaming table.

Inside a function of a declarative pipeline a frame cannot be asked for its columns, which a join must do. So the join
is made outside, when the file is read, and the function only hands it over.
"""

from __future__ import annotations

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import semistream

HERE = Path(__file__).absolute().parents[1]

spark = SparkSession.active()
sales = spark.readStream.schema("sale_id long, product_id long, quantity int").parquet(str(HERE / "sales"))
enriched = semistream.join(sales, HERE / "relations" / "products", on="product_id", how="left", memory="2MB")


@dp.table
def facts() -> DataFrame:
    """Every sale, with name and price of its product."""
    return enriched


@dp.materialized_view
def revenue() -> DataFrame:
    """Revenue by product."""
    return spark.read.table("facts").groupBy("name").agg({"price": "sum"})
