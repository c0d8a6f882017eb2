"""Writes a micro-batch from Spark's tasks to a sink, and its dead letters to another sink, in one job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.spark.joining.missing import MISSING_IN, has_marker
from semistream.spark.relations.key_expressions import positional, quoted
from semistream.spark.relations.types import arrow_schema, fit
from semistream.spark.sinks.sink import LETTER, BatchSink, Share, SinkError, Staging, check_apart, with_letters

__all__ = ["write_stream"]

_RECEIPTS = "receipts string"


def write_stream(
    df: DataFrame, sink: BatchSink[Any], *, dead_letters: BatchSink[Any] | None = None, query: str | None = None
) -> DataStreamWriter:
    """Return a writer of a streaming DataFrame to a sink. Give it a checkpoint and start it.

    Tasks write rows directly to the sink, not through the driver. The driver's memory does not depend on the number of
    rows in a micro-batch.

    Parameters
    ----------
    df
        A streaming DataFrame.
    sink
        A sink, such as `ParquetSink`, `DeltaSink` or `DatabaseSink`.
    dead_letters
        Sink for rows that a join with ``on_missing="dead_letter"`` has marked: all columns of ``df``, and in
        ``missing_in`` the name of the join. Both sinks contain each batch once, even if the query is killed.
    query
        A name that identifies this query among all that write to the sink; by default the id in Spark's checkpoint.
        Give a name if the checkpoint may be deleted while the sink is kept, and never use a name twice.

    Examples
    --------
    >>> writer = write_stream(enriched, DatabaseSink("postgresql://etl@db/sales", "facts", key="sale_id"),
    ...                       dead_letters=ParquetSink("unknown_products/"))  # doctest: +SKIP
    >>> writer.option("checkpointLocation", "check/").start()                 # doctest: +SKIP
    """
    if LETTER not in df.columns:
        if has_marker(df) and dead_letters is None:
            raise SinkError(
                "a join of this stream marks dead letters, but there is no sink for them; give write_stream "
                "dead_letters, or filter by the column missing_in"
            )
        if dead_letters is not None:
            if MISSING_IN not in df.columns:
                raise SinkError("no join of this stream marks dead letters; give one on_missing='dead_letter'")
            others = [name for name in df.columns if name != MISSING_IN]
            df = with_letters(df, others, [quoted(name) for name in others])
    rows, letters = _parts(arrow_schema(df.schema), dead_letters is not None)
    if dead_letters is not None:
        check_apart(sink, dead_letters)
        dead_letters.check(letters)
    sink.check(rows)
    return df.writeStream.foreachBatch(_BatchWriter(sink, query, dead_letters))


def _parts(schema: pa.Schema, has_letters: bool) -> tuple[pa.Schema, pa.Schema]:
    """Return the columns of rows and of dead letters."""
    if not has_letters:
        return schema, pa.schema([])
    return schema.remove(schema.get_field_index(LETTER)), pa.schema(list(schema.field(LETTER).type))


@dataclass(frozen=True)
class _BatchWriter:
    """The function that Spark calls for every micro-batch."""

    sink: BatchSink[Any]
    query: str | None
    dead_letters: BatchSink[Any] | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query = self.query
        if query is None:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise SinkError("Spark does not report which query this is; give write_stream the argument query")
        schema = arrow_schema(rows.schema)
        # Letters before rows, here and below: a reader that sees the rows may assume that the batch is complete.
        sinks = [] if self.dead_letters is None else [self.dead_letters]
        sinks.append(self.sink)
        parts = _parts(schema, self.dead_letters is not None)[::-1][-len(sinks) :]
        # A batch that all sinks hold is still run, because stateful steps must process every batch.
        stagings = [
            None if sink.holds(query, batch) else sink.stage(part, query, batch)
            for sink, part in zip(sinks, parts, strict=True)
        ]
        found = positional(rows).mapInArrow(_ShareTask(schema, tuple(stagings)), _RECEIPTS).collect()
        receipts = [json.loads(row.receipts) for row in found]
        for number, (sink, staging) in enumerate(zip(sinks, stagings, strict=True)):
            if staging is not None:
                sink.commit(staging, [each[number] for each in receipts if each[number] is not None], query, batch)


@dataclass(frozen=True)
class _ShareTask:
    """The work of a task: stages its rows. The last staging is for rows, one before it for dead letters."""

    schema: pa.Schema
    stagings: tuple[Staging | None, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shares: list[Share | None] = [None] * len(self.stagings)
        try:
            for batch in batches:
                for number, part in enumerate(self._split(fit(batch, self.schema))):
                    staging = self.stagings[number]
                    if staging is not None and part.num_rows:
                        opened = shares[number] = shares[number] or staging.open()
                        opened.append(part)
            receipts = [share and share.finish() for share in shares]
        except BaseException:
            for share in shares:
                if share is not None:
                    share.abandon()
            raise
        if any(receipt is not None for receipt in receipts):
            yield pa.record_batch({"receipts": [json.dumps(receipts)]})

    def _split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, ...]:
        if len(self.stagings) == 1:
            return (batch,)
        letters = batch.column(LETTER)
        rows = batch.filter(pc.is_null(letters)).drop_columns(LETTER)
        return pa.RecordBatch.from_struct_array(letters.drop_null()), rows
