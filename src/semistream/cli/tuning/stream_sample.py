"""A sample of a stream in files, with keys cast to a relation's types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.cli.relations.table_files import InputError, InputFiles, parse_types

if TYPE_CHECKING:
    from semistream.relation.relation import Relation

__all__ = ["StreamSample"]


class StreamSample:
    """Rows of a sample. Columns that are not in the key are unchanged.

    Attributes
    ----------
    schema
        The sample's columns; key columns have R's types.
    strangers
        Number of rows so far whose key is not a value of R's type, such as text that is not a number, or 1.7 for an
        integer key. Their key becomes NULL.
    """

    def __init__(self, reader: pa.RecordBatchReader, keys: dict[str, pa.DataType]) -> None:
        self._reader, self._keys = reader, keys
        self.schema = pa.schema([part.with_type(keys.get(part.name, part.type)) for part in reader.schema])
        self.strangers = 0
        self._example: object = None

    @classmethod
    def of(cls, files: Sequence[Path], types: Sequence[str], on: Sequence[str], relation: Relation) -> StreamSample:
        """Open the files of a sample with the key columns ``on``."""
        wanted = dict(zip(on, (relation.schema.field(name).type for name in relation.key.names), strict=False))
        reader = InputFiles.find(files, parse_types(types), known=wanted).reader()
        for name in on:
            if name not in reader.schema.names:
                raise InputError(
                    f"the sample has no column {name!r}; name its key with --on. It has "
                    f"{', '.join(reader.schema.names)}"
                )
        return cls(reader, wanted)

    @property
    def warning(self) -> str:
        """What is wrong with the rows whose key R cannot have."""
        return f"a key that is not of R's type, {self._such}: they count as rows with a NULL key"

    @property
    def _such(self) -> str:
        return f"such as {self._example!r} ({', '.join(f'{name} {kind}' for name, kind in self._keys.items())})"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        rows = 0
        for batch in self._reader:
            columns = [
                self._read(batch.column(part.name), part.type) if part.name in self._keys else batch.column(part.name)
                for part in self.schema
            ]
            rows += batch.num_rows
            if self.strangers == rows > 0:
                raise InputError(
                    f"the sample has only keys that are not of R's type, {self._such}; name another column with --on"
                )
            yield pa.record_batch(columns, schema=self.schema)

    def _read(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return column.cast(kind)
        except pa.ArrowNotImplementedError:
            raise InputError(
                f"the sample's key is {column.type}, which cannot be cast to R's {kind}; name another column with --on"
            ) from None
        except pa.ArrowInvalid:
            pass
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        values = [_as(value, kind) for value in coded.dictionary]
        found = pa.array(values, kind).take(coded.indices)
        lost = found.is_null().to_numpy(zero_copy_only=False) & column.is_valid().to_numpy(zero_copy_only=False)
        if lost.any():
            self.strangers += int(lost.sum())
            self._example = column[int(lost.argmax())].as_py()
        return found


def _as(value: pa.Scalar, kind: pa.DataType) -> object:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None
