"""Streaming sources without admission control: Spark asks for the latest offset, without start and limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "Unlimited"]


class ReadLimit:
    """Maximum size of a micro-batch."""


class ReadAllAvailable(ReadLimit):
    """No maximum."""


@dataclass(frozen=True)
class ReadMaxRows(ReadLimit):
    """A maximum number of rows."""

    max_rows: int


class SupportsTriggerAvailableNow:
    """A reader with a method that Spark calls before it reads what is available now. Older versions never call it."""


class Unlimited(DataSourceStreamReader):
    """A reader with limits, for a Spark that does not know them: it limits micro-batches itself.

    The start of a micro-batch is the end of the last one that Spark has planned. After a restart, Spark first plans an
    empty micro-batch at the offset of the checkpoint.

    Spark does not tell a reader that the trigger is ``availableNow``, and asks it once per run. So a reader with a
    maximum number of rows first gives that number at once, also if its rows arrive at a rate: none would have arrived
    yet.

    Parameters
    ----------
    reader
        A reader whose ``latestOffset`` takes a start, a limit, and whether to wait for no arrivals (``at_once``).
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._start: Any = None
        self._asked = False

    def initialOffset(self) -> Any:
        return self._reader.initialOffset()

    def latestOffset(self) -> Any:  # type: ignore[override]
        start = self.initialOffset() if self._start is None else self._start
        limit = self._reader.getDefaultReadLimit()
        first, self._asked = not self._asked, True
        if first and hasattr(limit, "max_rows"):
            return self._reader.latestOffset(start, limit, at_once=True)
        return self._reader.latestOffset(start, limit)

    def partitions(self, start: Any, end: Any) -> Any:
        self._start = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)  # type: ignore[no-any-return]
