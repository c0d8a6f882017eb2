"""Filters of absent keys in small relations, used by every join that can, from its first read on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from semistream.core.arrays import Slots
from semistream.joins.adaptive import stream_follower
from semistream.joins.adaptive.adaptive_memory import AdaptiveMemory
from semistream.relation.filters import filter_writer
from semistream.structures import absent_keys
from semistream.structures.absent_keys import AbsentKeys
from semistream.structures.hot.hot_rows import HotRows

__all__ = ["chosen_filters", "filters_built", "forced_filters"]


@contextlib.contextmanager
def filters_built() -> Iterator[None]:
    """Build a filter of every shard that has a key."""
    with mock.patch.object(filter_writer, "LEAST_KEYS", 1):
        yield


@contextlib.contextmanager
def forced_filters(planes: int = 6) -> Iterator[None]:
    """Build filters, and read them before the first read of a join, whether or not they are worth their memory.

    No R is held whole: what is in memory would be found there.
    The memory of filters comes on top of the budget, as a join of next to none has no room for them.
    """
    usual = AbsentKeys.left_of

    def left_of(self: AbsentKeys, arena: HotRows, unknown: Slots) -> Slots:
        if self.size is None and self._wanted and (sizes := self._possible()):
            budget = self._budget
            budget.total, total, peak = 1 << 40, budget.total, budget.peak
            self.load(sizes[min(planes, len(sizes) - 1)])
            if self._part is not None:
                self._part.release()
            budget.total, budget.peak = total, peak
        return usual(self, arena, unknown)

    with (
        filters_built(),
        mock.patch.object(AbsentKeys, "left_of", left_of),
        mock.patch.object(AdaptiveMemory, "should_hold_all", return_value=False),
    ):
        yield


@contextlib.contextmanager
def chosen_filters() -> Iterator[None]:
    """Build filters, and let joins choose them after few keys, if they are worth their memory at all."""
    with (
        filters_built(),
        mock.patch.object(stream_follower, "_TELLING_ALL", 16),
        mock.patch.object(absent_keys, "_WORTH_IT", 1.0),
    ):
        yield
