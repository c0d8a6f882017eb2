"""The master table R: products, with one or several rows per key, and an exact number of bytes per row.

A row is a function of its number. Any range of the table can be generated without the rest, even of a table of a
hundred million rows that is stored nowhere.

Example
-------
>>> master = MasterTable(rows=1000, rows_per_key=4, row_bytes=120)
>>> batch = master.batch(start=2, count=3)
>>> batch["product_id"].to_pylist(), batch["variant"].to_pylist()
([0, 0, 1], [2, 3, 0])
>>> MasterTable(rows=1000, layout="minimal").schema.field("filler").type.byte_width
104
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.workloads.keys.key_space import KeySpace
from semistream.workloads.keys.permutation import Permutation
from semistream.workloads.made_columns import decimals, filler_bytes, filler_text
from semistream.workloads.products import categories, longest_text, names, prices
from semistream.workloads.table_source import BATCH_ROWS, TableSource, batch_ranges, check_batch_rows

__all__ = ["MasterLayout", "MasterTable", "RowOrder"]

MasterLayout = Literal["product", "minimal"]
RowOrder = Literal["sorted", "shuffled"]

_FIXED_BYTES = {"product": 8 + 4 + 16, "minimal": 8 + 8}


@dataclass(frozen=True, slots=True)
class MasterTable(TableSource):
    """Master data for a `SalesStream` of the same seed.

    Parameters
    ----------
    rows
        Number of rows, a multiple of ``rows_per_key``.
    rows_per_key
        1 for a primary key, K for a 1:K relation (SSIJ §VI-A). Rows with the same key differ in ``variant``.
    row_bytes
        Bytes of values per row, including the key but not Arrow's offsets and validity: 120 in most papers, 128 in
        SSIJ.
    key_space
        The key values. Default: 0, 1, 2, ….
    layout
        ``product``: key, variant, name, category, price and a description as long as needed to reach
        ``row_bytes``; the texts have variable length. ``minimal``: key, row number and a filler, all of fixed width.
    order
        ``sorted`` by key, or ``shuffled`` like the papers' tables without an index.
    """

    rows: int
    rows_per_key: int = 1
    row_bytes: int = 120
    key_space: KeySpace | None = None
    layout: MasterLayout = "product"
    order: RowOrder = "sorted"
    key: str = "product_id"
    batch_rows: int = BATCH_ROWS
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch_rows(self.batch_rows)
        if self.rows_per_key < 1 or self.rows < 1 or self.rows % self.rows_per_key:
            raise ValueError(f"rows must be a positive multiple of rows_per_key = {self.rows_per_key}, not {self.rows}")
        if self.layout not in _FIXED_BYTES:
            raise ValueError(f"layout must be 'product' or 'minimal', not {self.layout!r}")
        if self.order not in ("sorted", "shuffled"):
            raise ValueError(f"order must be 'sorted' or 'shuffled', not {self.order!r}")
        least = _FIXED_BYTES[self.layout] + (longest_text(self.key_count) if self.layout == "product" else 1)
        if self.row_bytes < least:
            raise ValueError(f"row_bytes must be at least {least} for layout {self.layout!r}, not {self.row_bytes}")
        if self.space.size != self.key_count:
            raise ValueError(
                f"the key space has {self.space.size} keys, but the table has {self.key_count}; "
                f"use KeySpace({self.key_count}, ...)"
            )

    @property
    def key_count(self) -> int:
        """Number of distinct keys."""
        return self.rows // self.rows_per_key

    @property
    def space(self) -> KeySpace:
        """The key values."""
        return self.key_space or KeySpace(self.key_count)

    @property
    def schema(self) -> pa.Schema:
        key = pa.field(self.key, pa.int64())
        if self.layout == "minimal":
            filler = pa.binary(self.row_bytes - _FIXED_BYTES["minimal"])
            return pa.schema([key, pa.field("row", pa.int64()), pa.field("filler", filler)])
        return pa.schema([
            key,
            pa.field("variant", pa.int32()),
            pa.field("name", pa.string()),
            pa.field("category", pa.string()),
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("description", pa.string()),
        ])  # fmt: skip

    @property
    def row_count(self) -> int:
        return self.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        for start, count in batch_ranges(self.rows, self.batch_rows):
            yield self.batch(start, count)

    def batch(self, start: int, count: int) -> pa.RecordBatch:
        """Return the rows ``start`` … ``start + count - 1``."""
        if start < 0 or count < 0 or start + count > self.rows:
            raise ValueError(f"rows {start} to {start + count} are not in a table of {self.rows} rows")
        rows = np.arange(start, start + count, dtype=np.int64)
        if self.order == "shuffled":
            rows = Permutation(self.rows, self.seed).apply(rows)
        products = rows // self.rows_per_key
        columns = self._minimal(rows) if self.layout == "minimal" else self._product(rows, products)
        return pa.record_batch([pa.array(self.space.present(products)), *columns], schema=self.schema)

    def _minimal(self, rows: NDArray[np.int64]) -> list[pa.Array]:
        return [pa.array(rows), filler_bytes(self.seed, rows, self.row_bytes - _FIXED_BYTES["minimal"])]

    def _product(self, rows: NDArray[np.int64], products: NDArray[np.int64]) -> list[pa.Array]:
        name, category = names(self.seed, products), categories(self.seed, products)
        text = pc.add(pc.binary_length(name), pc.binary_length(category)).to_numpy(zero_copy_only=False)
        lengths: NDArray[np.int64] = self.row_bytes - _FIXED_BYTES["product"] - text.astype(np.int64)
        return [
            pa.array((rows % self.rows_per_key).astype(np.int32)),
            name,
            category,
            decimals(prices(self.seed, products), 12, 2),
            filler_text(self.seed, rows, lengths),
        ]
