"""From at least once to exactly once: a sink that knows which micro-batches it holds.

Spark runs a micro-batch again if it was stopped before the batch was noted as done; by then the sink may hold it. So a
sink keeps, in the same transaction as the rows, the number of the last batch of each query, and passes over what is
not newer. A query's batches come one after the other, so one number a query is enough.

::

    micro-batch 7 ──▶ is 7 newer than what the sink has of this query? ──no──▶ nothing to do
                                        │ yes
                                        ▼
                      one transaction: the rows, and "query q: 7"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.core.errors import SemistreamError

__all__ = ["BatchSink", "SinkError", "write_stream"]


class SinkError(SemistreamError, ValueError):
    """Rows that a sink cannot take."""


class BatchSink(ABC):
    """Where the rows of micro-batches go, each batch once."""

    @abstractmethod
    def write(self, rows: pa.Table, query: str, batch: int) -> bool:
        """Write a batch whole, or leave it if the sink has it; return whether it was written.

        Parameters
        ----------
        rows
            The batch. It may be empty.
        query
            What tells this query from others that write here: the same after a restart.
        batch
            Its number, which grows.
        """

    def check(self, schema: pa.Schema) -> None:
        """Raise for rows that the sink can never take; called before a query starts."""


@dataclass(frozen=True)
class _BatchWriter:
    """What Spark calls for every micro-batch."""

    sink: BatchSink
    query: str | None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query = self.query
        if query is None:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise SinkError("Spark does not tell which query this is; give write_stream the argument query")
        self.sink.write(rows.toArrow(), query, batch)


def write_stream(df: DataFrame, sink: BatchSink, *, query: str | None = None) -> DataStreamWriter:
    """Return a writer of a streaming DataFrame into a sink, to be given a checkpoint and started.

    The rows of one micro-batch pass through the driver, as one Arrow table: bound what a batch may hold at the source
    (``maxFilesPerTrigger``, ``maxOffsetsPerTrigger``, ``rowsPerBatch``).

    Parameters
    ----------
    df
        A streaming DataFrame.
    sink
        Such as `DeltaSink` or `DatabaseSink`.
    query
        A name that tells this query from all others that write to the sink; by default the id that Spark keeps in the
        checkpoint. Name it if the checkpoint may be thrown away though the sink is kept, and never use a name twice.

    Examples
    --------
    >>> writer = write_stream(enriched, DatabaseSink("postgresql://etl@db/sales", "facts", key="sale_id"))
    ...                                                                       # doctest: +SKIP
    >>> writer.option("checkpointLocation", "check/").start()                 # doctest: +SKIP
    """
    from semistream.spark.types import arrow_schema

    sink.check(arrow_schema(df.schema))
    return df.writeStream.foreachBatch(_BatchWriter(sink, query))
