"""Parked rows in the state store: Arrow batches as blobs, with columns identified by name.

The query that reads them may differ from the one that wrote them, and its columns may be in a different order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.errors import UnsupportedJoinError
from semistream.spark.relations.types import fit

__all__ = ["DEADLINE", "PARKED", "ParkedColumns", "Unpacking", "binary", "packed", "unpacked"]

PARKED = "\0parked"
"""Mark of rows to be parked, between the join and the operator that parks them."""
DEADLINE = "__deadline"


@dataclass(frozen=True)
class ParkedColumns:
    """Columns of the parked rows of a query: key and stream.

    Their order and the zone of timestamps do not matter.
    """

    on: tuple[str, ...]
    schema: pa.Schema

    @property
    def described(self) -> str:
        """Text that is stored with the rows; equal for compatible columns."""
        return json.dumps({"on": self.on, "columns": {part.name: _name_of(part.type) for part in self.schema}},
                          sort_keys=True)  # fmt: skip

    def check(self, before: str, label: str) -> None:
        """Raise if the text stored with parked rows, ``before``, does not fit the query as it is now."""
        if before == self.described:
            return
        old, new = json.loads(before), json.loads(self.described)
        changed = [
            f"{name}: {old['columns'].get(name, 'none')} before, {new['columns'].get(name, 'none')} now"
            for name in sorted({*old["columns"], *new["columns"]})
            if old["columns"].get(name) != new["columns"].get(name)
        ]
        if old["on"] != new["on"]:
            changed.append(f"on: {old['on']} before, {new['on']} now")
        raise UnsupportedJoinError(
            f"rows that {label} has parked in this checkpoint have different columns from the query now: "
            f"{'; '.join(changed)}. Run the unchanged query until no row waits, or start the changed one with a new "
            "checkpoint"
        )

    def rows(self, blob: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a blob, with the columns that the query has now."""
        for batch in unpacked(blob):
            yield fit(batch.select(self.schema.names), self.schema)


@dataclass(frozen=True)
class Unpacking:
    """Turns blobs into rows again."""

    without: int | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for blobs in batches:
            for blob in blobs.column(0):
                for batch in unpacked(blob.as_buffer()):
                    yield batch if self.without is None else batch.remove_column(self.without)


def packed(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """Return a batch as an Arrow stream, with its schema: a later release may read it, in another time zone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unpacked(blob: Any) -> Iterable[pa.RecordBatch]:
    """Return the batches of a blob."""
    with pa.ipc.open_stream(blob) as reader:
        return list(reader)


def _name_of(kind: pa.DataType) -> str:
    """Return a type's name without the session's time zone and the width of offsets."""
    return re.sub(r"tz=[^\]]*", "tz", str(kind)).replace("large_", "")


def binary(blob: pa.Buffer | None) -> pa.Array:
    """Return an array of one value, without copying the value."""
    if blob is None:
        return pa.nulls(1, pa.binary())
    ends = pa.py_buffer(np.array([0, blob.size], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, blob])
