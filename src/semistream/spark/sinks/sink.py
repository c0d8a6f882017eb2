"""From at least once to exactly once: a sink that knows which micro-batches it holds.

Spark runs a micro-batch again if it was stopped before the batch was noted as done; by then the sink may hold it. So a
sink keeps, in the same transaction as the rows, the number of the last batch of each query, and passes over what is
not newer. A query's batches come one after the other, so one number a query is enough.

Rows never meet on the driver. Each task puts its share aside, where readers do not look yet, and hands the driver a
receipt of a few bytes; the driver then makes all shares part of the sink at once. A share whose receipt did not arrive,
of a task that died or had a faster twin, is not part of anything.

::

    micro-batch 7 ──▶ task 0: rows put aside ──receipt──┐
                  ──▶ task 1: rows put aside ──receipt──┤
                                                        ▼
                      driver: is 7 newer than what the sink has of this query? ──no──▶ nothing to do
                                                        │ yes
                                                        ▼
                      one transaction: the shares of these receipts, and "query q: 7"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semistream.core.errors import SemistreamError
from semistream.spark.joining.missing import MISSING_IN
from semistream.spark.relations.key_expressions import quoted

__all__ = ["LETTER", "BatchSink", "Share", "SinkError", "Staging", "check_apart", "with_letters"]

LETTER = "__dead_letter"
"""Column in which dead letters travel to their sink."""


class SinkError(SemistreamError, ValueError):
    """Rows that a sink cannot take."""


class Share(ABC):
    """The rows of one task, being put aside."""

    @abstractmethod
    def append(self, rows: pa.RecordBatch) -> None:
        """Put more rows aside; memory held does not grow with how many there were."""

    @abstractmethod
    def finish(self) -> str:
        """Flush the rows and return a receipt, by which the driver finds them."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove what was put aside, as far as that is possible."""


class Staging(ABC):
    """What a task needs to put its share of a micro-batch aside; it is pickled."""

    @abstractmethod
    def open(self) -> Share:
        """Begin a share; two attempts of one task have two."""


S = TypeVar("S", bound=Staging)


class BatchSink(ABC, Generic[S]):
    """Where the rows of micro-batches go, each batch once."""

    @abstractmethod
    def holds(self, query: str, batch: int) -> bool:
        """Return whether the sink has this batch of a query, or a later one."""

    @abstractmethod
    def stage(self, schema: pa.Schema, query: str, batch: int) -> S:
        """Make ready for a batch, on the driver, and clear away what earlier tries at it have left."""

    @abstractmethod
    def commit(self, staging: S, receipts: Sequence[str], query: str, batch: int) -> bool:
        """Make the shares of a batch part of the sink, all at once, or leave it if the sink has it.

        Parameters
        ----------
        staging
            What `stage` returned.
        receipts
            One of each share; none if the batch is empty.
        query
            What tells this query from others that write here: the same after a restart.
        batch
            Its number, which grows.

        Returns
        -------
        bool
            Whether it was written.
        """

    @property
    def place(self) -> str | None:
        """Where the rows end, the same for two sinks that write to one place: a directory's path, or a table's name."""
        return None

    def check(self, schema: pa.Schema) -> None:
        """Raise for rows that the sink can never take; called before a query starts."""

    def write(self, rows: pa.Table, query: str, batch: int) -> bool:
        """Write a batch that is in this process, or leave it if the sink has it; return whether it was written."""
        if self.holds(query, batch):
            return False
        staging = self.stage(rows.schema, query, batch)
        receipts = []
        if rows.num_rows:
            share = staging.open()
            try:
                for part in rows.to_batches():
                    share.append(part)
                receipts.append(share.finish())
            except BaseException:
                share.abandon()
                raise
        return self.commit(staging, receipts, query, batch)


def check_apart(sink: BatchSink[Staging], letters: BatchSink[Staging]) -> None:
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
