"""Chooses how the rows of a DataFrame are packed, on the driver, from a sample.

The sample has the first rows of some partitions. It need not be representative: a packed column can hold every value,
and one that the sample did not show only takes more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages import encoding_choice
from semistream.relation.pages.encoding_choice import EncodingChoice
from semistream.spark.relations.key_expressions import positional
from semistream.spark.relations.types import fit

__all__ = ["sampled_choice"]

_PARTITIONS = 16
"""Partitions that are sampled, each with at most about 1 MiB (`PACKED_FROM`): 16 MiB on the driver."""
_UNCOMPRESSED = 4
"""Spark estimates the bytes of files as they are, and rows of compressed files are larger."""
_SAMPLE = "whole boolean, rows binary"
_SAMPLE_ARROW = pa.schema({"whole": pa.bool_(), "rows": pa.binary()})


def sampled_choice(
    df: DataFrame,
    schema: pa.Schema,
    key: KeyCodec,
    *,
    page_bytes: int,
    plain: bool,
    numbers: Sequence[int],
    never: Sequence[str],
) -> EncodingChoice:
    """Return how rows are encoded.

    This runs a job, unless Spark knows that there are few rows. For the parameters see `EncodingChoice`.
    """
    if plain or _estimated_bytes(df) < encoding_choice.PACKED_FROM // _UNCOMPRESSED:
        return EncodingChoice(schema, key, page_bytes=page_bytes, plain=True, numbers=numbers)
    samples = positional(df).mapInArrow(_FirstRows(schema), _SAMPLE).limit(_PARTITIONS).collect()
    all_seen = len(samples) < _PARTITIONS and all(sample.whole for sample in samples)
    choice = EncodingChoice(
        schema, key, page_bytes=page_bytes, plain=False, numbers=numbers, never=never, large=not all_seen
    )
    for sample in samples:
        with pa.ipc.open_stream(pa.py_buffer(sample.rows)) as reader:
            for batch in reader:
                choice.add(batch)
    choice.all_added = all_seen
    return choice


def _estimated_bytes(df: DataFrame) -> float:
    """Return Spark's estimate of the bytes of a DataFrame; infinite if there is none."""
    try:
        return float(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes().toString())
    except (AttributeError, Py4JError, ValueError):
        return float("inf")


class _FirstRows:
    """Returns the first rows of a partition, and whether these are all."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._most = schema, encoding_choice.PACKED_FROM

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink, left, whole = pa.BufferOutputStream(), self._most, True
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in batches:
                rows = batch.slice(0, max(1, batch.num_rows * left // max(1, batch.nbytes)))
                writer.write_batch(fit(rows, self._schema))
                left -= rows.nbytes
                if left <= 0 or rows.num_rows < batch.num_rows:
                    whole = False
                    break
        yield pa.record_batch([[whole], [sink.getvalue().to_pybytes()]], schema=_SAMPLE_ARROW)
