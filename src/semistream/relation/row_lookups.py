"""The interface of look-ups, which `Relation.lookups` returns. Their cache is built on a join, a layer above R."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, Self, cast

import pyarrow as pa

from semistream.core.statistics import JoinStatistics

__all__ = ["RowLookups", "open_lookups"]


class RowLookups(Protocol):
    """Look-ups in one relation, through a cache of its rows; see `semistream.lookups.Lookups`."""

    def get(
        self, keys: Any, columns: Sequence[str] | None = None, *, found: str | None = None, many: bool = False
    ) -> pa.RecordBatch:
        """Return R's columns for each key, in the order of the keys; NULLs where R does not have the key."""
        ...

    async def aget(
        self, keys: Any, columns: Sequence[str] | None = None, *, found: str | None = None, many: bool = False
    ) -> pa.RecordBatch:
        """Do the same as `get`; the event loop goes on while pages are read."""
        ...

    @property
    def stats(self) -> JoinStatistics:
        """Counters: keys, hits, pages read."""
        ...

    def close(self) -> None:
        """Release the memory. R stays open."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_lookups(relation: object, memory: int | float | str) -> RowLookups:
    """Create look-ups. The module is loaded by name: R does not depend on what is built on it."""
    return cast(RowLookups, import_module("semistream.lookups").Lookups(relation, memory=memory))
