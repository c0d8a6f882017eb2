"""A function of columns, without Arrow UDFs: ``mapInArrow`` sends whole rows to Python and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["WholeRows"]


@dataclass(frozen=True)
class WholeRows:
    """Adds a column of answers to batches.

    Rows wait here for their answers. Spark queues them in the JVM if it calls a function with columns; in both cases
    they are outside of the join's memory.
    """

    function: Callable[[Iterator[Any]], Iterator[pa.Array]]
    """Receives the arguments, batch by batch, and yields one answer per row, in order, in batches of any size."""
    name: str
    """Name of the column of answers."""
    arguments: tuple[int, ...]
    """Positions of the columns that the function receives."""
    kept: int
    """Columns after these are arguments only, and do not leave."""

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: deque[pa.RecordBatch] = deque()
        for answers in self.function(self._received(batches, waiting)):
            done = 0
            while done < len(answers):
                rows = waiting.popleft()
                count = min(rows.num_rows, len(answers) - done)
                if count < rows.num_rows:
                    waiting.appendleft(rows.slice(count))
                yield self._answered(rows.slice(0, count), answers.slice(done, count))
                done += count

    def _received(
        self, batches: Iterator[pa.RecordBatch], waiting: deque[pa.RecordBatch]
    ) -> Iterator[tuple[pa.Array, ...]]:
        for batch in batches:
            if batch.num_rows:
                waiting.append(batch.select(list(range(self.kept))))
                yield tuple(batch.column(at) for at in self.arguments)

    def _answered(self, rows: pa.RecordBatch, answers: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*rows.columns, answers], names=[*rows.schema.names, self.name])
