"""Make what this example reads: a relation of products, and two files of sales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream import Relation

PRODUCTS, SALES = 5_000, 20_000


def make(directory: Path) -> None:
    """Write relation and sales under ``directory``; every hundredth sale is of a product that is not there."""
    numbers = np.arange(PRODUCTS)
    products = pa.table(
        {"product_id": numbers, "name": [f"product {number}" for number in numbers], "price": numbers % 100 + 0.5}
    )
    Relation.build(products, directory / "relations" / "products", key="product_id", shards=2).close()
    (directory / "sales").mkdir(exist_ok=True)
    random = np.random.default_rng(7)
    for part in range(2):
        ids = np.arange(part * SALES, (part + 1) * SALES)
        wanted = np.where(ids % 100 == 0, PRODUCTS + 1, random.zipf(1.3, SALES) % PRODUCTS)
        sales = {"sale_id": ids, "product_id": wanted, "quantity": pa.array(ids % 5 + 1, pa.int32())}
        pq.write_table(pa.table(sales), directory / "sales" / f"{part}.parquet")


if __name__ == "__main__":
    make(Path(__file__).parent)
