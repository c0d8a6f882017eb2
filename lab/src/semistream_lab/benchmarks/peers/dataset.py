"""R on disk, in all formats that contestants read.

Each is written once and reused by later runs.

::

    DIRECTORY/10000000x128-seed-1/      one R of random bytes
        master-….parquet    sorted by key; the source of all other formats
        relation/           ours
        …                   one file or folder per store
    DIRECTORY/catalogue-10000000-stride-2-seed-1/
    DIRECTORY/tpch/                     files of the TPC-H generator
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
from semistream.workloads.table_source import TableSource
from semistream_lab.workloads.masters import Layout, master

__all__ = ["KEY", "Dataset", "NoRoomError", "RowFormat"]

KEY = "product_id"
GROUP_ROWS = 32_768
"""Rows per row group. DuckDB's default is four times as large. With one such group per thread, and each column in one
piece, DuckDB would not fit into a small memory."""


class NoRoomError(SemistreamError):
    """The disk has too little space for R."""


class RowFormat:
    """Rows of fixed width as bytes, for stores without columns.

    The key is first.

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
    layout: Layout = "random"
    stride: int = 1
    """Distance between R's keys. If it is 2 or more, the keys between them are absent."""

    @property
    def place(self) -> Path:
        """Directory of all formats."""
        kind = f"{self.rows}x{self.row_bytes}" if self.layout == "random" else f"{self.layout}-{self.rows}"
        gaps = f"-stride-{self.stride}" if self.stride > 1 else ""
        return Path(self.directory) / f"{kind}{gaps}-seed-{self.seed}"

    @property
    def parquet(self) -> Path:
        """R as Parquet."""
        return self.place / f"master-{GROUP_ROWS}.parquet"

    @cached_property
    def format(self) -> RowFormat:
        """The format of R's rows as bytes.

        Only rows of the layout ``random`` have a fixed width.
        """
        return RowFormat(self._master().schema)

    @cached_property
    def width(self) -> int:
        """Bytes of values per row, without the overhead of any format; an average if rows differ."""
        if self.layout == "random":
            return int(self.format.width)
        self.write()
        with pq.ParquetFile(self.parquet) as file:
            first = file.read_row_group(0)
        return int(sum(map(_value_bytes, first.columns)) // max(1, first.num_rows))

    @property
    def nbytes(self) -> int:
        """Bytes of R's rows, without the overhead of any format."""
        return self.rows * self.width

    def present(self, keys: Ints) -> NDArray[np.bool_]:
        """Return which keys are in R."""
        found: NDArray[np.bool_] = (keys >= 0) & (keys < self.rows * self.stride) & (keys % self.stride == 0)
        return found

    def _master(self) -> TableSource:
        place = Path(self.directory) / "tpch"
        return master(
            self.layout, self.rows, row_bytes=self.row_bytes, stride=self.stride, seed=self.seed, directory=place
        )

    def write(self) -> None:
        """Write R as Parquet, unless it exists; it is compressed unless its bytes are random."""

        def write(path: Path) -> None:
            needed, free = 6 * self.rows * self.row_bytes, shutil.disk_usage(self.place).free
            if needed > free:
                raise NoRoomError(
                    f"R in all formats needs about {format_bytes(needed)}, and {self.place} has {format_bytes(free)} "
                    "free; give another directory, or fewer rows"
                )
            source = self._master()
            random = self.layout == "random"
            compression = "none" if random else "snappy"
            with pq.ParquetWriter(path, source.schema, compression=compression, use_dictionary=not random) as file:
                for table in _grouped(source.batches(), GROUP_ROWS):
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
        """Return the rows of these keys by a plain scan, to check answers."""
        wanted = pc.unique(keys)
        with pq.ParquetFile(self.parquet) as file:
            found = [
                table.filter(pc.is_in(table[KEY], wanted))
                for table in map(file.read_row_group, range(file.num_row_groups))
            ]
        return pa.concat_tables(found)


def _value_bytes(column: pa.ChunkedArray) -> int:
    if pa.types.is_string(column.type):
        return int(pc.sum(pc.binary_length(column)).as_py() or 0)
    return len(column) * int(column.type.bit_width) // 8


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
