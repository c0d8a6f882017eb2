"""The master tables that benchmarks can join with: random bytes, a product catalogue, and tables of TPC-H.

All have the key ``product_id`` with the values 0, ``stride``, 2 · ``stride``, …, one row per key, in key order.

Example
-------
>>> layout("tpch"), master("catalogue", 10).row_count
('tpch-part', 10)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from semistream.core.arguments import nearest
from semistream.workloads.keys.key_space import KeySpace
from semistream.workloads.master_table import MasterTable
from semistream.workloads.table_source import TableSource
from semistream_lab.workloads.catalogue import CatalogueTable
from semistream_lab.workloads.tpch import TABLE_ROWS, TpchTable

__all__ = ["Layout", "layout", "master"]

Layout = Literal["random", "product", "catalogue", "tpch-part", "tpch-customer", "tpch-supplier"]


def layout(text: str) -> Layout:
    """Return the layout of this name, or raise `ValueError`."""
    known = get_args(Layout)
    for name in known:
        if text == name or (text == "tpch" and name == "tpch-part"):
            found: Layout = name
            return found
    raise ValueError(f"unknown layout {text!r}; {nearest(text, known, 'known: ' + ', '.join(known))}")


def master(
    layout: Layout, rows: int, *, row_bytes: int = 128, stride: int = 1, seed: int = 0, directory: str | Path = "."
) -> TableSource:
    """Return a master table.

    Parameters
    ----------
    layout, rows
        Kind of rows, and their number.
    row_bytes
        Bytes of values per row, for ``random`` and ``product``. The other layouts have their own sizes.
    stride
        Distance of the keys. From 2, the stream can have keys between them, which no row has.
    directory
        Directory for generated TPC-H files.
    """
    if layout == "catalogue":
        return CatalogueTable(rows, stride, seed=seed)
    if layout == "random" or layout == "product":
        space = KeySpace(rows, stride=stride)
        kind: Literal["minimal", "product"] = "minimal" if layout == "random" else "product"
        return MasterTable(rows, row_bytes=row_bytes, key_space=space, layout=kind, seed=seed)
    name = layout.removeprefix("tpch-")
    return _Renumbered(TpchTable(name, (rows + 0.5) / TABLE_ROWS[name], directory, rows), rows, stride)


@dataclass(frozen=True, slots=True)
class _Renumbered(TableSource):
    """A TPC-H table as the generator has it, except for name and values of its key, the first column."""

    source: TpchTable
    rows: int
    stride: int

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("product_id", pa.int64()), *list(self.source.schema)[1:]])

    @property
    def row_count(self) -> int:
        return self.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema, start = self.schema, 0
        for batch in self.source.batches():
            keys = np.arange(start, start + batch.num_rows, dtype=np.int64) * self.stride
            yield pa.record_batch([pa.array(keys), *batch.columns[1:]], schema=schema)
            start += batch.num_rows
        if start != self.rows:
            raise ValueError(f"{self.source.file()} has {start:,} rows, not {self.rows:,}; delete it")
