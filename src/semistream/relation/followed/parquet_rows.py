"""Reads the rows of one Parquet file of a table, in the table's columns, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.relation.followed.source_table import FollowError
from semistream.relation.rows.fitting import as_type, null_array

__all__ = ["constant", "parquet_rows"]

_BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20


def parquet_rows(
    file: Any, name: str, schema: pa.Schema, constants: Mapping[str, pa.Scalar], extra: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches of ``schema``, followed by the columns ``extra``.

    Parameters
    ----------
    file
        An open Arrow file.
    name
        Its name, for errors.
    schema
        The table's columns. A column that the file lacks was added later, and is NULL.
    constants
        Columns that have one value in the whole file: partition columns.
    extra
        Further columns of the file.
    """
    with pq.ParquetFile(
        file, buffer_size=_BUFFER_BYTES, pre_buffer=False, coerce_int96_timestamp_unit="us"
    ) as parquet:  # fmt: skip
        there = set(parquet.schema_arrow.names)
        read = [field.name for field in schema if field.name in there and field.name not in constants] + list(extra)
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=read):
            columns = [_column(batch, field, constants.get(field.name), name) for field in schema]
            fields = [*schema, *(batch.schema.field(one) for one in extra)]
            columns += [batch.column(one) for one in extra]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _column(batch: pa.RecordBatch, field: pa.Field, value: pa.Scalar | None, name: str) -> pa.Array:
    if value is not None:
        return pa.repeat(value, batch.num_rows) if value.is_valid else null_array(batch.num_rows, field.type)
    if field.name not in batch.schema.names:
        return null_array(batch.num_rows, field.type)
    try:
        return as_type(batch.column(field.name), field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FollowError(
            f"column {field.name!r} of {name} is {batch.schema.field(field.name).type}, and the table says "
            f"{field.type}: {error}; rewrite the file in the source, for example by OPTIMIZE"
        ) from error


def constant(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a partition column, which logs of tables hold as text.

    >>> constant("2026-11-18", pa.date32()).as_py(), constant("", pa.int32()).as_py(), constant("7", pa.int8()).as_py()
    (datetime.date(2026, 11, 18), None, 7)
    """
    if text is None or text == "":  # Delta's protocol: an empty text is NULL
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        zoned = text if text.endswith("Z") else f"{text}Z"
        return pa.scalar(zoned).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    return pa.scalar(text).cast(kind)
