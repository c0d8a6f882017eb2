"""Joins that count their results instead of making them: for simulated runs, where nobody reads the rows.

Everything else is the algorithm's own code: what is read, probed, cached, evicted and when. Only the copying of rows
into result batches is left out, which the cost model prices by their number anyway.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.statistics import JoinStatistics
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.join import Join
from semistream.joins.interface.leaving import Leaving

__all__ = ["silent"]


class _Silent(Join):
    """Counts pairs where they would be put together."""

    def _joined(
        self, keys: Ints, stream: Leaving, data: Bytes, starts: Ints, flags: Bytes, *, seen: bool = False
    ) -> Iterator[pa.RecordBatch]:
        if self._on_match is not None and not seen:
            self._on_match(keys, data, starts, flags)
        self._stats.rows_out += len(keys)
        yield from ()


class _SilentFront(_Silent, FrontStage):
    """A front stage whose join behind is silent too."""

    @property
    def stats(self) -> JoinStatistics:
        both = super().stats
        return dataclasses.replace(both, rows_out=both.rows_out + self.inner.stats.rows_out)


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
    return type(f"Silent{algorithm.__name__}", (base, algorithm), own)
