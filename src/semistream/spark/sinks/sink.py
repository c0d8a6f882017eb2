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
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.core.errors import SemistreamError
from semistream.spark.joining.missing import MISSING_IN, has_marker

__all__ = ["LETTER", "BatchSink", "SinkError", "check_apart", "quoted", "with_letters", "write_stream"]

LETTER = "__dead_letter"
"""Column in which dead letters travel to their sink."""


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

    @property
    def place(self) -> str | None:
        """Where the rows end, the same for two sinks that write to one place: a directory's path, or a table's name."""
        return None

    def check(self, schema: pa.Schema) -> None:
        """Raise for rows that the sink can never take; called before a query starts."""


@dataclass(frozen=True)
class _BatchWriter:
    """What Spark calls for every micro-batch."""

    sink: BatchSink
    query: str | None
    dead_letters: BatchSink | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query = self.query
        if query is None:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise SinkError("Spark does not tell which query this is; give write_stream the argument query")
        table = rows.toArrow()
        if self.dead_letters is not None:
            letters = table[LETTER].combine_chunks()
            table = table.filter(pc.is_null(letters)).drop_columns(LETTER)
            self.dead_letters.write(pa.Table.from_struct_array(letters.drop_null()), query, batch)
        self.sink.write(table, query, batch)


def check_apart(sink: BatchSink, letters: BatchSink) -> None:
    """Raise if dead letters would go where the other rows go: the sink would take one of the two for a replay."""
    one, other = sink.place, letters.place
    if one is None or other is None:
        return
    if one == other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"):
        where = one if one == other else f"{one} and {other}, one inside the other"
        raise SinkError(f"rows and dead letters both go to {where}; give the dead letters a place of their own")


def with_letters(df: DataFrame, columns: Sequence[str], letters: Sequence[Column]) -> DataFrame:
    """Return ``columns`` of a frame, and beside them one more: what a dead letter consists of, NULL in other rows."""
    letter = F.when(F.col(MISSING_IN).isNotNull(), F.struct(*letters, MISSING_IN)).alias(LETTER)
    return df.select(*(quoted(name) for name in columns), letter)


def quoted(name: str) -> Column:
    """Return a column by its exact name, whatever is in it."""
    return F.col(f"`{name.replace('`', '``')}`")


def write_stream(
    df: DataFrame, sink: BatchSink, *, dead_letters: BatchSink | None = None, query: str | None = None
) -> DataStreamWriter:
    """Return a writer of a streaming DataFrame into a sink, to be given a checkpoint and started.

    The rows of one micro-batch pass through the driver, as one Arrow table: bound what a batch may hold at the source
    (``maxFilesPerTrigger``, ``maxOffsetsPerTrigger``, ``rowsPerBatch``).

    Parameters
    ----------
    df
        A streaming DataFrame.
    sink
        Such as `ParquetSink`, `DeltaSink` or `DatabaseSink`.
    dead_letters
        Where rows go that a join with ``on_missing="dead_letter"`` has marked: all columns of ``df``, and in
        ``missing_in`` the name of the join. Both sinks have a batch once, whenever the query is killed.
    query
        A name that tells this query from all others that write to the sink; by default the id that Spark keeps in the
        checkpoint. Name it if the checkpoint may be thrown away though the sink is kept, and never use a name twice.

    Examples
    --------
    >>> writer = write_stream(enriched, DatabaseSink("postgresql://etl@db/sales", "facts", key="sale_id"),
    ...                       dead_letters=ParquetSink("unknown_products/"))  # doctest: +SKIP
    >>> writer.option("checkpointLocation", "check/").start()                 # doctest: +SKIP
    """
    from semistream.spark.relations.types import arrow_schema

    if LETTER not in df.columns:
        if has_marker(df) and dead_letters is None:
            raise SinkError(
                "a join of this stream marks dead letters, and there is no sink for them; give write_stream "
                "dead_letters, or filter by the column missing_in"
            )
        if dead_letters is not None:
            if MISSING_IN not in df.columns:
                raise SinkError("no join of this stream marks dead letters; give one on_missing='dead_letter'")
            others = [name for name in df.columns if name != MISSING_IN]
            df = with_letters(df, others, [quoted(name) for name in others])
    schema = arrow_schema(df.schema)
    if dead_letters is not None:
        check_apart(sink, dead_letters)
        dead_letters.check(pa.schema(list(schema.field(LETTER).type)))
        schema = schema.remove(schema.get_field_index(LETTER))
    sink.check(schema)
    return df.writeStream.foreachBatch(_BatchWriter(sink, query, dead_letters))
