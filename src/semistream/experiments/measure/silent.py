"""Joins that count their results instead of making them: for simulated runs, where nobody reads the rows.

Everything else is the algorithm's own code: what is read, probed, cached, evicted and when. Only the copying of rows
into result batches is left out, which the cost model prices by their number anyway.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.statistics import JoinStatistics
from semistream.joins.base import Join
from semistream.joins.front_stage import FrontStage
from semistream.joins.ssij import Ssij
from semistream.joins.waiting import WaitingJoin

__all__ = ["silent"]

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]
Bytes = NDArray[np.uint8]


class _Silent(Join):
    """Counts pairs where they would be put together."""

    def _joined(
        self, keys: Ints, stream: pa.RecordBatch, data: Bytes, starts: Ints, flags: Bytes
    ) -> Iterator[pa.RecordBatch]:
        if self._on_match is not None:
            self._on_match(keys, data, starts, flags)
        self._stats.rows_out += len(keys)
        yield from ()


class _SilentWaiting(_Silent, WaitingJoin):
    """Does not even fetch the stream tuples of the pairs."""

    def _joined_slots(self, slots: Slots, frames: Bytes, starts: Ints, flags: Bytes) -> Iterator[pa.RecordBatch]:
        if self._on_match is not None:
            self._on_match(self.table.keys_of(slots), frames.reshape(-1), starts, flags)
        self._stats.rows_out += slots.size
        yield from ()


class _SilentSsij(_Silent, Ssij):
    """Does not fetch stream tuples either."""

    def _stream_rows(self, starts: Ints) -> pa.RecordBatch:
        assert self.schema is not None
        return _nothing(self.schema)


@functools.cache
def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


class _SilentFront(_Silent, FrontStage):
    """A front stage whose join behind is silent too."""

    @property
    def stats(self) -> JoinStatistics:
        both = super().stats
        return dataclasses.replace(both, rows_out=both.rows_out + self._inner._stats.rows_out)


@functools.cache
def silent(algorithm: type[Join]) -> type[Join]:
    """Return an algorithm that counts its results and makes none.

    >>> from semistream.joins import find
    >>> silent(find("meshjoin")).id
    'meshjoin'
    """
    base: type[Any] = _Silent
    own: dict[str, Any] = {"__doc__": algorithm.__doc__}
    if issubclass(algorithm, FrontStage):
        base = _SilentFront
        own["behind"] = silent(algorithm.behind)
    elif issubclass(algorithm, Ssij):
        base = _SilentSsij
    elif issubclass(algorithm, WaitingJoin):
        base = _SilentWaiting
    return type(f"Silent{algorithm.__name__}", (base, algorithm), own)
