"""Make the master data of this example: a relation of products, and one of stores."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from semistream import Relation
from semistream.workloads import MasterTable

PRODUCTS, STORES = 20_000, 350
REGIONS = ("north", "east", "south", "west")


def make(directory: Path) -> None:
    """Write both relations under ``directory/relations``."""
    products = MasterTable(PRODUCTS, order="shuffled", seed=7)
    reader = pa.RecordBatchReader.from_batches(products.schema, products.batches())
    Relation.build(reader, directory / "relations" / "products", key="product_id", shards=2).close()
    numbers = range(STORES)
    stores = pa.table(
        {"store_id": pa.array(numbers, pa.int32()), "region": [REGIONS[number % 4] for number in numbers]}
    )
    Relation.build(stores, directory / "relations" / "stores", key="store_id").close()


if __name__ == "__main__":
    make(Path(__file__).parent)
