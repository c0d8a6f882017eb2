"""Finds keys that R does not have without reading a page: a filter of R in the memory of a join.

The filter is read when it saves more than its bytes would save as a cache, and released when it no longer does. It
holds for the version of R that was open when it was read. Keys that change afterwards must be added: then they count
as keys that R may have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semistream.core.arrays import Ints, Slots
from semistream.core.budget import MemoryBudget, Reservation
from semistream.relation.filters.key_filter import (
    LOADING_BYTES,
    FilterSize,
    KeyFilter,
    absent_keys,
    filter_sizes,
    load_filters,
)
from semistream.relation.relation import Relation
from semistream.relation.storage.manifest import Manifest
from semistream.structures.array_source import Notes
from semistream.structures.hot.hot_rows import HotRows

__all__ = ["AbsentKeys"]

_CHANGED_BYTES = 4096
"""Bytes for keys that change while the filter is in memory; with more changes it is released."""
_WORTH_IT = 0.97
"""A filter of another size must cost less than this, relative to the present one: switching loses rows of the cache."""
_WORTH_A_START = 0.85
"""The same, if switching loses all rows of the cache."""
_NOTE = "filter planes"
_ALIKE = 0.05
"""Relative difference up to which values count as equal: the costs of all sizes take milliseconds to compute."""
_LEAST_SHARE = 0.02
"""Share of absent keys below which a filter is released, unless the cache would be lost with it."""


class AbsentKeys:
    """The filter of a join.

    Parameters
    ----------
    relation
        R.
    budget
        The join's budget, in which the filter is reserved.
    wanted
        Whether a filter may be used at all.
    """

    def __init__(self, relation: Relation, budget: MemoryBudget, *, wanted: bool = True) -> None:
        self._relation, self._budget = relation, budget
        self._filters: list[KeyFilter | None] | None = None
        self._changed: Ints = np.empty(0, np.int64)
        self._part: Reservation | None = None
        self._wanted = wanted
        self._considered: tuple[float, ...] = ()
        self._sizes: tuple[Manifest | None, list[FilterSize]] = (None, [])
        self.size: FilterSize | None = None
        """What is in memory; None if there is no filter."""
        self.share = 0.0
        """Share of absent keys among the unknown keys so far."""
        self.found = 0
        """Keys that the filter reported absent."""

    @property
    def nbytes(self) -> int:
        """Bytes that are reserved."""
        return 0 if self._part is None else self._part.bytes

    @property
    def free(self) -> int:
        """Bytes of the budget that are not reserved."""
        return self._budget.free

    @property
    def saved(self) -> float:
        """Share of unknown keys that the filter answers."""
        return 0.0 if self.size is None else self.share * (1.0 - self.size.mistaken)

    def left_of(self, arena: HotRows, unknown: Slots) -> Slots:
        """Return the numbers of unknown keys whose pages must be read; record in the arena which keys are absent."""
        if self._filters is None or unknown.size == 0:
            return unknown
        keys = arena.keys_of(unknown)
        absent = absent_keys(self._filters, self._relation.home, keys)
        if self._changed.size:
            absent &= ~np.isin(keys, self._changed)
        numbers = unknown[absent]
        arena.settle(numbers)
        self.found += numbers.size
        return unknown[~absent]

    def changed(self, keys: Ints) -> None:
        """Record keys that R may have from now on, whatever the filter says."""
        if self._filters is None:
            return
        changed = np.union1d(self._changed, keys)
        if changed.nbytes > _CHANGED_BYTES:
            self.release()
        else:
            self._changed = changed

    def best(
        self, cost: Callable[[int, float], float], *considered: float, anew: bool = False
    ) -> tuple[FilterSize | None, bool]:
        """Return the size that costs least, and whether it differs from the present one.

        ``cost(more, saved)`` returns the cost if the filter takes ``more`` bytes more than now from rows, and answers
        the share ``saved`` of unknown keys. It depends only on ``considered``: nothing is computed while these values
        are about the same as in the last computation. ``anew``: a filter of another size means that the cache starts
        empty.
        """
        if self.share < _LEAST_SHARE and not anew:
            return None, self.size is not None
        now = (1.0 - self.share, *considered)
        alike = len(now) == len(self._considered) and all(map(_alike, now, self._considered))
        if not self._wanted or alike:
            return self.size, False
        self._considered = now
        choices: list[FilterSize | None] = [None, *self._possible()]
        best, least = self.size, (_WORTH_A_START if anew else _WORTH_IT) * cost(0, self.saved)
        for size in choices:
            if size == self.size:
                continue
            saved = 0.0 if size is None else self.share * (1.0 - size.mistaken)
            if (other := cost(_reserved(size) - self.nbytes, saved)) < least:
                best, least = size, other
        return best, best != self.size

    def recall(self, arrays: object, most: int) -> None:
        """Read the filter that the previous process found worth its memory, if it takes at most ``most`` bytes."""
        if isinstance(arrays, Notes) and self._wanted and (planes := arrays.note(_NOTE)):
            for size in self._possible():
                if planes == str(size.planes) and _reserved(size) <= most:
                    self.load(size)

    def remember(self, arrays: object, size: FilterSize | None) -> None:
        """Note for the next process what is worth its memory; this one cannot change the sizes of its arrays."""
        if isinstance(arrays, Notes):
            arrays.leave_note(_NOTE, "" if size is None else str(size.planes))

    def lacking(self, size: FilterSize | None) -> int:
        """Return how many bytes the budget lacks for a filter of this size in place of the present one."""
        return _reserved(size) - self.nbytes - self._budget.free

    def load(self, size: FilterSize | None) -> bool:
        """Read a filter of this size, whose bytes must be free; None releases it.

        Return False if that failed. A filter that cannot be read, or that is damaged, is not tried again.
        """
        self.release()
        if size is None:
            return True
        relation, revision = self._relation, self._relation.revision
        self._part = self._budget.reserve("key filter", _reserved(size))
        manifest = relation.manifest
        if manifest is not None and self._is_current():
            shards = [manifest.shards[number].filter for number in relation.open_shards]
            filters = load_filters(relation.place, shards, size.planes)
            if filters is not None and relation.revision == revision and relation.manifest is manifest:
                held = sum(one.nbytes for one in filters if one is not None)
                if held + _CHANGED_BYTES <= self._part.bytes:
                    self._part.resize(held + _CHANGED_BYTES)
                    self._filters, self.size = filters, size
                    return True
        self.release()
        self._wanted = False
        return False

    def release(self) -> None:
        """Release the filter."""
        self._filters, self.size, self._changed = None, None, np.empty(0, np.int64)
        if self._part is not None:
            self._part.release()
            self._part = None

    def _is_current(self) -> bool:
        """Whether the filters that the manifest names have all keys of R as it is: R has no changes in memory."""
        return self._relation.overlay.ids.size == 0

    def _possible(self) -> list[FilterSize]:
        manifest = self._relation.manifest
        if manifest is None or not self._is_current():
            return []
        if self._sizes[0] is not manifest:
            filters = [manifest.shards[number].filter for number in self._relation.open_shards]
            self._sizes = manifest, filter_sizes(filters)
        return self._sizes[1]


def _reserved(size: FilterSize | None) -> int:
    return 0 if size is None else size.nbytes + _CHANGED_BYTES + LOADING_BYTES


def _alike(one: float, other: float) -> bool:
    return one == other or abs(one - other) <= _ALIKE * abs(other)
