"""A stateful processor of rows, without ``transformWithState``: ``transformWithStateInPandas`` sends DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

__all__ = ["StateInPandas"]


class StateInPandas(StatefulProcessor):
    """Passes rows to a processor, and its rows back, in DataFrames.

    Parameters
    ----------
    processor
        The processor of rows.
    """

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor

    def init(self, handle: Any) -> None:
        self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield from _frames(self._processor.handleInputRows(key, _rows(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield from _frames(self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def close(self) -> None:
        self._processor.close()


def _rows(frames: Iterable[pd.DataFrame]) -> Iterator[Row]:
    for frame in frames:
        columns = [
            [None if null else value for value, null in zip(frame[name].tolist(), frame[name].isna(), strict=True)]
            for name in frame.columns
        ]
        as_row = Row(*frame.columns)
        for values in zip(*columns, strict=True):
            yield as_row(*values)


def _frames(rows: Iterable[Any]) -> Iterator[pd.DataFrame]:
    for row in rows:  # a row may have a blob of megabytes
        yield pd.DataFrame([tuple(row)], columns=list(row.__fields__))
