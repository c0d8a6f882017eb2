"""Reads tables of any form as a stream of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from semistream.core.errors import RelationBuildError
from semistream.relation.rows.fitting import fit

__all__ = ["as_reader", "read_whole"]


def as_reader(data: Any) -> pa.RecordBatchReader:
    """Return a reader over a table, a batch, an iterable of batches, or any Arrow stream (Polars, DuckDB, …)."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if isinstance(data, Iterable):
        iterator = iter(data)
        try:
            first = next(iterator)
        except StopIteration:
            raise RelationBuildError(
                "there is no batch, so there is no schema; give an empty pyarrow.Table with the schema"
            ) from None
        if isinstance(first, pa.RecordBatch):
            return pa.RecordBatchReader.from_batches(first.schema, _chain(first, iterator))
    raise RelationBuildError(
        f"cannot read {type(data).__name__} as Arrow data; give a pyarrow Table, RecordBatches, or an object "
        "with __arrow_c_stream__"
    )


def read_whole(data: Any) -> Any:
    """Return data that can be read repeatedly: a table; an array of keys or None is returned unchanged."""
    return data if data is None or isinstance(data, pa.Array | pa.ChunkedArray) else as_reader(data).read_all()


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    for batch in rest:
        yield fit(batch, first.schema)
