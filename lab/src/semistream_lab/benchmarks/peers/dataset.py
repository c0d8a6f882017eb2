"""R on disk, in all formats that contestants read. Each is written once and reused by later runs.

::

    DIRECTORY/10000000x128-seed-1/      one R
        master-….parquet    sorted by key; the source of all other formats
        relation/           ours
        …                   one file or folder per store
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.errors import SemistreamError
from semistream.core.units import format_bytes
from semistream_lab.workloads.workload import zipf

__all__ = ["KEY", "Dataset", "NoRoomError", "RowFormat"]

KEY = "product_id"
GROUP_ROWS = 32_768
"""Rows per row group. DuckDB's default is four times as large. With one such group per thread, and each column in one
piece, DuckDB would not fit into a small memory."""


class NoRoomError(SemistreamError):
    """The disk has too little space for R."""


class RowFormat:
    """Rows of fixed width as bytes, for stores without columns. The key is first.

    >>> format = RowFormat(pa.schema([("product_id", pa.int64()), ("name", pa.binary(3))]))
    >>> rows = format.pack(pa.table({"product_id": [7], "name": pa.array([b"fig"], pa.binary(3))}))
    >>> rows.dtype.itemsize, format.columns(rows)[1].to_pylist()
    (11, [b'fig'])
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.dtype = np.dtype([(field.name, self._kind(field.type)) for field in schema])

    @property
    def width(self) -> int:
        """Bytes per row."""
        return self.dtype.itemsize

    @staticmethod
    def _kind(type: pa.DataType) -> str:
        return f"V{type.byte_width}" if pa.types.is_fixed_size_binary(type) else np.dtype(type.to_pandas_dtype()).str

    def pack(self, table: pa.Table) -> NDArray[Any]:
        """Return rows as an array of records."""
        rows = np.empty(table.num_rows, self.dtype)
        for name in table.column_names:
            column = table[name].combine_chunks()
            kind = self.dtype[name]
            rows[name] = np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)
        return rows

    def columns(self, rows: NDArray[Any]) -> list[pa.Array]:
        """Return rows as Arrow columns."""
        return [
            pa.Array.from_buffers(field.type, len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows[field.name]))])
            for field in self.schema
        ]


@dataclass(frozen=True)
class Dataset:
    """One R under a directory."""

    directory: str
    rows: int
    row_bytes: int = 128
    seed: int = 1

    @property
    def place(self) -> Path:
        """Directory of all formats."""
        return Path(self.directory) / f"{self.rows}x{self.row_bytes}-seed-{self.seed}"

    @property
    def parquet(self) -> Path:
        """R as Parquet."""
        return self.place / f"master-{GROUP_ROWS}.parquet"

    @cached_property
    def format(self) -> RowFormat:
        """The format of R's rows as bytes."""
        return RowFormat(self._master().schema)

    @property
    def nbytes(self) -> int:
        """Bytes of R's rows, without the overhead of any format."""
        return self.rows * self.format.width

    def _master(self) -> Any:
        return zipf(self.rows, 1, 1.0, "random", row_bytes=self.row_bytes, seed=self.seed).master

    def write(self) -> None:
        """Write R as Parquet, unless it exists. It is not compressed, as its bytes are random."""

        def write(path: Path) -> None:
            needed, free = 6 * self.nbytes, shutil.disk_usage(self.place).free
            if needed > free:
                raise NoRoomError(
                    f"R in all formats needs about {format_bytes(needed)}, and {self.place} has {format_bytes(free)} "
                    "free; give another directory, or fewer rows"
                )
            master = self._master()
            with pq.ParquetWriter(path, master.schema, compression="none", use_dictionary=False) as file:
                for table in _grouped(master.batches(), GROUP_ROWS):
                    file.write_table(table, row_group_size=GROUP_ROWS)

        self.made(self.parquet.name, write)

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the path of one format of R. Call ``make`` unless it exists and is complete."""
        path = self.place / name
        if not path.exists():
            self.place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.place, prefix=".unfinished-") as folder:
                make(Path(folder) / name)
                os.replace(Path(folder) / name, path)
        return path

    def parts(self) -> Iterator[tuple[Ints, NDArray[Any]]]:
        """Yield keys and rows as bytes, ordered by key, one row group at a time."""
        with pq.ParquetFile(self.parquet) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                yield table[KEY].to_numpy(), self.format.pack(table)

    def lookup(self, keys: pa.Array) -> pa.Table:
        """Return the rows of these keys by a plain scan. Answers are checked against it."""
        wanted = pc.unique(keys)
        with pq.ParquetFile(self.parquet) as file:
            found = [
                table.filter(pc.is_in(table[KEY], wanted))
                for table in map(file.read_row_group, range(file.num_row_groups))
            ]
        return pa.concat_tables(found)


def _grouped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        while count >= rows:
            whole = pa.Table.from_batches(held).combine_chunks()
            yield whole.slice(0, rows)
            held, count = whole.slice(rows).to_batches(), count - rows
    if count:
        yield pa.Table.from_batches(held)
