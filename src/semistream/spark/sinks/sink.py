"""Exactly-once sinks: a sink that knows which micro-batches it holds.

Spark repeats a micro-batch if it was stopped before the batch was recorded as done. At that point the sink may already
hold it. So a sink stores the number of the last batch of each query in the same transaction as the rows, and skips
batches that are not newer. The batches of a query run one after the other, so one number per query is enough.

Rows never pass through the driver. Each task writes its share to a staging area that readers do not see, and returns a
receipt of a few bytes to the driver. The driver then makes all shares part of the sink in one step. A share without a
receipt, from a task that died or lost against a speculative copy, is never used.

::

    micro-batch 7 ──▶ task 0: rows staged ─────receipt──┐
                  ──▶ task 1: rows staged ─────receipt──┤
                                                        ▼
                      driver: is 7 newer than the sink's last batch of this query? ──no──▶ nothing to do
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
"""Column that carries dead letters to their sink."""


class SinkError(SemistreamError, ValueError):
    """Rows that a sink cannot write."""


class Share(ABC):
    """The staged rows of one task."""

    @abstractmethod
    def append(self, rows: pa.RecordBatch) -> None:
        """Stage more rows. Memory does not grow with the number of rows."""

    @abstractmethod
    def finish(self) -> str:
        """Flush the rows and return a receipt that identifies them to the driver."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove the staged rows, as far as possible."""


class Staging(ABC):
    """What a task needs to stage its share of a micro-batch; it is pickled."""

    @abstractmethod
    def open(self) -> Share:
        """Begin a share; each attempt of a task has its own."""


S = TypeVar("S", bound=Staging)


class BatchSink(ABC, Generic[S]):
    """A sink that contains each micro-batch exactly once."""

    @abstractmethod
    def holds(self, query: str, batch: int) -> bool:
        """Return whether the sink holds this batch of a query, or a later one."""

    @abstractmethod
    def stage(self, schema: pa.Schema, query: str, batch: int) -> S:
        """Prepare for a batch, on the driver, and remove what earlier attempts at it left."""

    @abstractmethod
    def commit(self, staging: S, receipts: Sequence[str], query: str, batch: int) -> bool:
        """Make all shares of a batch part of the sink in one step, or do nothing if the sink holds the batch.

        Parameters
        ----------
        staging
            The result of `stage`.
        receipts
            The receipt of each share; none if the batch is empty.
        query
            Identifies this query among all that write here; the same after a restart.
        batch
            The batch's number, which increases.

        Returns
        -------
        bool
            Whether it was written.
        """

    @property
    def place(self) -> str | None:
        """The target, a directory's path or a table's name; equal for two sinks that write to the same target."""
        return None

    def check(self, schema: pa.Schema) -> None:
        """Raise for rows that the sink can never write; called before a query starts."""

    def write(self, rows: pa.Table, query: str, batch: int) -> bool:
        """Write a batch from this process unless the sink holds it; return whether it was written."""
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
    """Raise if dead letters and rows have the same target: the sink would treat one of the two as a replay."""
    one, other = sink.place, letters.place
    if one is None or other is None:
        return
    if one == other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"):
        where = one if one == other else f"{one} and {other}, one inside the other"
        raise SinkError(f"rows and dead letters are both written to {where}; give the dead letters their own place")


def with_letters(df: DataFrame, columns: Sequence[str], letters: Sequence[Column]) -> DataFrame:
    """Return ``columns`` of a frame, and one more column: the content of a dead letter, NULL in other rows."""
    letter = F.when(F.col(MISSING_IN).isNotNull(), F.struct(*letters, MISSING_IN)).alias(LETTER)
    return df.select(*(quoted(name) for name in columns), letter)
