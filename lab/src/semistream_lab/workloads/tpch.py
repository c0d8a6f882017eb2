"""TPC-H tables as Arrow batches, made by the generator ``tpchgen-cli``.

The papers join Orders with Customer (CMESHJOIN) and LineItem with Part (SSIJ) at scale factor 100. Tables
are generated once, as Parquet files in a directory of the caller's choice, and read from there in batches. If only
the first rows of a table are requested, only about that number is generated.

Example
-------
>>> orders = TpchTable("orders", scale_factor=0.01, directory="artifacts/tpch")
>>> next(orders.batches()).num_rows                                     # doctest: +SKIP
15000
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.core.errors import MissingExtraError, SemistreamError
from semistream.workloads.table_source import BATCH_ROWS, TableSource, check_batch_rows

__all__ = ["TABLE_ROWS", "TpchError", "TpchTable"]

TABLE_ROWS = {
    "customer": 150_000, "lineitem": 6_000_000, "orders": 1_500_000, "part": 200_000, "partsupp": 800_000,
    "supplier": 10_000,
}  # fmt: skip
"""Rows at scale factor 1 of each table that grows with the scale factor. LineItem's number is approximate."""

_MOST_PARTS = 1000


class TpchError(SemistreamError):
    """The TPC-H generator failed."""


@dataclass(frozen=True, slots=True)
class TpchTable(TableSource):
    """One TPC-H table.

    Parameters
    ----------
    name
        The table's name, in lower case.
    scale_factor
        1 is about a gigabyte for all tables together. The papers use 100.
    directory
        Directory of the Parquet files. An existing file is reused by any `TpchTable` of the same table, scale
        factor and part.
    rows
        Use only the first ``rows`` rows, as SSIJ uses the first 10 M of LineItem. None: all.
    """

    name: str
    scale_factor: float
    directory: str | Path
    rows: int | None = None
    batch_rows: int = BATCH_ROWS

    def __post_init__(self) -> None:
        check_batch_rows(self.batch_rows)
        if self.name not in TABLE_ROWS:
            raise ValueError(f"unknown TPC-H table {self.name!r}; known tables: {', '.join(TABLE_ROWS)}")
        if not self.scale_factor > 0:
            raise ValueError(f"scale_factor must be positive, not {self.scale_factor}")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows must be at least 1, or None for all, not {self.rows}")

    @property
    def schema(self) -> pa.Schema:
        with pq.ParquetFile(self.file()) as file:
            return _plain(file.schema_arrow)

    @property
    def row_count(self) -> int:
        with pq.ParquetFile(self.file()) as file:
            held = int(file.metadata.num_rows)
        return held if self.rows is None else min(held, self.rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.file()) as file:
            schema = _plain(file.schema_arrow)
            left = file.metadata.num_rows if self.rows is None else self.rows
            for batch in file.iter_batches(self.batch_rows):
                yield batch.slice(0, left).cast(schema)
                left -= batch.num_rows
                if left <= 0:
                    break

    def file(self) -> Path:
        """Return the Parquet file with the requested rows. Generate it if it does not exist."""
        parts = 1
        if self.rows is not None:
            # Parts are cut by orders, not by rows. The margin makes it unlikely that the first part is too short.
            parts = min(int(0.95 * TABLE_ROWS[self.name] * self.scale_factor / self.rows), _MOST_PARTS)
        while True:
            path = self._part(max(parts, 1))
            if parts <= 1 or self.rows is None or pq.read_metadata(path).num_rows >= self.rows:
                return path
            parts = parts * 9 // 10

    def _part(self, parts: int) -> Path:
        directory = Path(self.directory)
        target = directory / f"{self.name}-sf{float(self.scale_factor)}-1of{parts}.parquet"
        if not target.exists():
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=directory, prefix="unfinished-") as scratch:
                # The file is renamed when it is complete, so an existing file is never partial.
                os.replace(self._generate(Path(scratch), parts), target)
        return target

    def _generate(self, scratch: Path, parts: int) -> Path:
        command = [
            _generator(), "parquet", "--scale-factor", str(float(self.scale_factor)), "--tables", self.name,
            "--output-dir", str(scratch), "--quiet", "--no-progress",
        ]  # fmt: skip
        if parts > 1:
            command += ["--parts", str(parts), "--part", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = sorted(scratch.rglob("*.parquet"))
        if done.returncode or len(made) != 1:
            raise TpchError(
                f"tpchgen-cli did not generate table {self.name!r} at scale factor {self.scale_factor} "
                f"(exit code {done.returncode}): {done.stderr.strip() or 'no error message'}"
            )
        return made[0]


def _generator() -> str:
    """Return the path of the generator. Look next to this Python first, as the environment may not be activated."""
    for path in (sysconfig.get_path("scripts"), None):
        if found := shutil.which("tpchgen-cli", path=path):
            return found
    raise MissingExtraError("tpchgen-cli", "report", of="semistream-lab")


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` without Parquet's ids, and with strings instead of string views, which few readers support."""
    return pa.schema([
        pa.field(field.name, pa.string() if pa.types.is_string_view(field.type) else field.type)
        for field in schema
    ])  # fmt: skip
