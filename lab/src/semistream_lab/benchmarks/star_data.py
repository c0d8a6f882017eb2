"""Data for ``semistream bench star``: sales, products, customers, stores and days, in files that later runs reuse.

::

    DIRECTORY/star-2000000-100000/
        products/ customers/ stores/ days/    master tables as Parquet, for Spark's own joins
        relations-2/NAME/                     the same as relations of two shards
        sales-100000/                         the stream, one file per micro-batch
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from semistream.core.arguments import check_at_least
from semistream.core.units import check_memory
from semistream.relation.relation import Relation
from semistream.workloads import ZipfKeys
from semistream.workloads.master_table import MasterTable

__all__ = ["DAYS", "KEYS", "STORES", "StarPlan", "write_star"]

STORES, DAYS = 500, 3_650
KEYS = {
    "product_id": ("products", "product_"),
    "customer_id": ("customers", "customer_"),
    "store_id": ("stores", "store_"),
    "order_day": ("days", "order_"),
    "ship_day": ("days", "ship_"),
}
"""Keys of a sale: the master table of each, and the prefix of its columns."""
_FILE_ROWS = 1 << 20
_GROUP_ROWS = 1 << 16

Report = Callable[[int], None]


@dataclass(frozen=True)
class StarPlan:
    """One point: the sizes of master tables and of micro-batches.

    Parameters
    ----------
    products, row_bytes, customers
        Number of products, bytes of each including the key, and number of customers.
    batch_rows
        Sales in a micro-batch.
    memory
        Budget of products. The other relations get enough to be held whole, also in the chain of joins.
    exponent
        Skew of the products' keys; frequent keys are anywhere. Other keys are uniform.
    fill, batches
        Number of micro-batches before the measurement, and of measured ones.
    shards, cores, heap
        Shards of each relation; parallel tasks and JVM heap of Spark.
    """

    products: int = 2_000_000
    row_bytes: int = 128
    customers: int = 100_000
    batch_rows: int = 100_000
    memory: str = "5%"
    exponent: float = 1.0
    fill: int = 40
    batches: int = 15
    shards: int = 2
    cores: int = 2
    heap: str = "6g"
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("products", "customers", "batch_rows", "batches", "shards", "cores"):
            check_at_least(1, **{name: getattr(self, name)})
        check_at_least(0, fill=self.fill)
        check_memory(self.memory)

    def place(self, directory: Path) -> Path:
        """Return the directory of the master tables."""
        return directory / f"star-{self.products}x{self.row_bytes}-{self.customers}"

    def relation(self, directory: Path, name: str) -> Path:
        """Return the path of the relation of a master table."""
        return self.place(directory) / f"relations-{self.shards}" / name

    def sales(self, directory: Path) -> Path:
        """Return the directory of the stream's files."""
        return self.place(directory) / f"sales-{self.exponent:g}-{self.batch_rows}"

    @property
    def files(self) -> int:
        """Number of files of the stream."""
        return self.fill + self.batches


def write_star(plan: StarPlan, directory: Path, wrote: Report = lambda _: None) -> None:
    """Write the master tables, relations and stream that do not exist; ``wrote`` is called with the rows written."""
    for name, batches in _masters(plan).items():
        folder = plan.place(directory) / name
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "part-00000.parquet"
        if not file.exists():
            _write_master(batches, file, wrote)
        for shards in sorted({1, plan.shards}):
            relation = replace(plan, shards=shards).relation(directory, name)
            if not relation.exists():
                key = ds.dataset(folder).schema.names[0]
                data = ds.dataset(folder).scanner().to_reader()
                Relation.build(data, relation, key=key, shards=shards, unique=True).close()
    plan.sales(directory).mkdir(exist_ok=True)
    for number in range(plan.files):
        file = plan.sales(directory) / f"part-{number:05d}.parquet"
        if not file.exists():
            sales = _sales(plan, number)
            _replace(file, partial(pq.write_table, sales, row_group_size=_GROUP_ROWS))
        wrote(plan.batch_rows)


def _masters(plan: StarPlan) -> dict[str, Iterator[pa.RecordBatch]]:
    products = MasterTable(plan.products, row_bytes=plan.row_bytes, layout="product", seed=plan.seed)
    customers, stores, days = np.arange(plan.customers), np.arange(STORES), np.arange(DAYS)
    segments, countries = np.array(["home", "business", "school", "public"]), np.array([f"C{i:02d}" for i in range(40)])
    return {
        "products": products.batches(),
        "customers": _some({
            "customer_id": customers, "segment": segments[customers % 4], "country": countries[customers * 7 % 40],
            "since": (customers % 20 + 2000).astype(np.int32),
        }),
        "stores": _some({"store_id": stores, "city": [f"city {i}" for i in stores], "region": stores % 12}),
        "days": _some({"day": days, "weekday": days % 7, "week": days // 7, "holiday": days % 41 == 0}),
    }  # fmt: skip


def _some(columns: dict[str, object]) -> Iterator[pa.RecordBatch]:
    yield from pa.table(columns).to_batches(max_chunksize=_FILE_ROWS)


def _write_master(batches: Iterator[pa.RecordBatch], file: Path, wrote: Report) -> None:
    def write(new: Path) -> None:
        first = next(batches)
        with pq.ParquetWriter(new, first.schema) as writer:
            for batch in (first, *batches):
                writer.write_batch(batch)
                wrote(batch.num_rows)

    _replace(file, write)


def _sales(plan: StarPlan, number: int) -> pa.Table:
    """Return the sales of one file; all of their keys are in the master tables."""
    rows = plan.batch_rows
    rng = np.random.default_rng((plan.seed, number))
    products = ZipfKeys(plan.products, plan.exponent, "random", seed=plan.seed).keys(number * rows, rows)
    return pa.table({
        "sale_id": np.arange(number * rows, (number + 1) * rows), "product_id": products,
        "customer_id": rng.integers(0, plan.customers, rows), "store_id": rng.integers(0, STORES, rows),
        "order_day": rng.integers(0, DAYS, rows), "ship_day": rng.integers(0, DAYS, rows),
        "quantity": rng.integers(1, 9, rows).astype(np.int32), "amount": rng.random(rows) * 100,
    })  # fmt: skip


def _replace(file: Path, write: Callable[[Path], None]) -> None:
    """Write a file atomically."""
    unfinished = file.with_name(f".{file.name}")
    write(unfinished)
    os.replace(unfinished, file)
