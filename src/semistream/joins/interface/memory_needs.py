"""How much memory a join needs for its options and for the lengths of the stream's rows."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semistream.core.budget import Reservation
from semistream.core.errors import BudgetTooSmallError, UpdateRefusedError, UpdateTooLargeError
from semistream.core.units import format_bytes
from semistream.joins.interface.contract import Algorithm
from semistream.joins.interface.following import Undo
from semistream.joins.interface.stage_behind import Lent
from semistream.joins.interface.stream_buffer import StreamBuffer
from semistream.joins.shares import PAIR_BYTES, Lending, common_parts, least_budget
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.lookup import PageLookup

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch

__all__ = ["MemoryNeeds"]


class MemoryNeeds(Algorithm):
    """The part of a join that computes its smallest budget; an algorithm adds `least_bytes`."""

    _may_grow: bool
    """Whether the budget is a share of R, which is raised to the minimum of the join if needed."""
    _index_bytes: int
    _lent: Lent | None
    _updates_part: Reservation
    _inbox: Reservation
    _single: PageLookup
    _lending = Lending.NOTHING
    """Which parts of a stage before this join both share."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Stream tuples that were offered and have not left."""

    @abstractmethod
    def too_large(self, lacking: int, patch: Patch) -> UpdateTooLargeError:
        """Return the error for an update that leaves too little memory."""

    @abstractmethod
    def must_drain(self, waiting: int) -> UpdateRefusedError:
        """Return the error for an update that needs memory of waiting tuples."""

    @abstractmethod
    def _update_bytes(self, overlay_bytes: int, index_bytes: int) -> int:
        """Return the bytes that R holds in memory because of updates."""

    def least_memory(
        self,
        codec: RowCodec | None = None,
        row_bytes: float | None = None,
        lending: Lending | None = None,
    ) -> int:
        """Return the smallest budget that is enough; until the stream is known, the minimum for any stream.

        A stage before this join may call this before the join has memory: for rows of ``codec`` of ``row_bytes`` bytes
        on average, and with the parts that the stage will lend.
        """
        if lending is not None and not self.bound:
            self._lending = lending
        if codec is not None and not self.bound:
            self.stream_codec = codec
        if row_bytes is not None and not self.bound:
            self.row_bytes = row_bytes
        return self._least_with(self._update_bytes_now())

    def _least_with(self, update_bytes: int) -> int:
        """Return the smallest budget that is enough while updates of R need ``update_bytes``."""
        others = self.least_bytes() + update_bytes + (self._index_bytes if self.uses_index else 0)
        if self._lending is Lending.NOTHING:
            others += self.relation.device.frame_bytes
        return least_budget(others, self._lending)

    def _take_parts(self, update_bytes: int) -> None:
        """Reserve and allocate all of the memory, including ``update_bytes`` for updates of R."""
        if self.uses_index:
            self.budget.reserve("index", self._index_bytes)
        self._updates_part = self.budget.reserve("updates of R", update_bytes)
        self._take_common_parts()
        self.open_parts()

    def start_over(self, patch: Patch) -> Undo:
        """Allocate all memory again, as a new join on the updated R would; return a function that undoes it.

        The join's cache is lost. Raises if a new join would have too little memory, or if tuples wait.
        """
        before, after = self._updates_part.bytes, self._update_bytes(patch.overlay.nbytes, patch.index_bytes)
        if (least := self._least_with(after)) > self.budget.total:
            raise self.too_large(least - self.budget.total, patch)
        if self.pending:
            raise self.must_drain(self.pending)
        self._take_again(after)
        return partial(self._take_again, before)

    def _take_again(self, update_bytes: int) -> None:
        self.drop_parts()
        self.budget.release()
        self._take_parts(update_bytes)

    def drop_parts(self) -> None:
        """Drop everything that `_take_parts` has allocated; a join that uses `start_over` implements this."""
        raise NotImplementedError(f"{self.id} cannot take its memory again")

    def memory_of_long_turns(self) -> int:
        """Return the memory with which an iteration serves many tuples; 0 if it always does."""
        return 0

    def _take_common_parts(self) -> None:
        """Reserve the parts of every join, except parts that a stage before it lends."""
        lent, reserve = self._lent, self.budget.reserve
        inbox, self.pairs_at_once, self.result_bytes = common_parts(self.budget.total, self._lending)
        self._inbox = reserve("stream buffer", inbox)
        self.stream = StreamBuffer(self.stream_codec, inbox if lent is None else lent.room)
        if lent is None:
            reserve("look-up page", self.relation.device.frame_bytes)
        reserve("matches", self.pairs_at_once * PAIR_BYTES)
        reserve("results", self.result_bytes)
        if lent is not None and lent.results is not None:
            self.pairs_at_once, self.result_bytes = lent.results
        self._single = PageLookup(self.relation, 1, share=True, cap=self.pairs_at_once) if lent is None else lent.lookup

    def _update_bytes_now(self) -> int:
        return self._update_bytes(self.relation.overlay.nbytes, self.relation.index_bytes)

    def _check_minimum(self) -> None:
        minimum = self.least_memory()
        if self.budget.total < minimum and self._may_grow:
            self.budget.resize(minimum)
        if self.budget.total < minimum:
            index = f"; of that {format_bytes(self.relation.index_bytes)} for the index" if self.uses_index else ""
            raise BudgetTooSmallError(
                f"memory of {self.budget.total:,} B is too small for {self.id}: with this relation it needs at least "
                f"{minimum:,} B ({format_bytes(minimum)}{index}); give at least that, or build the relation with "
                "larger pages",
                minimum,
            )

    def _typical_row(self, sample: pa.RecordBatch | None) -> float:
        """Return the typical bytes of a row, from the first rows; a few long rows have little effect."""
        if sample is None or not sample.num_rows:
            return self.row_bytes
        lengths = self.stream_codec.lengths(sample.slice(0, 1024))
        return float(min(lengths.mean(), 8 * np.median(lengths)))

    def _expect_rows(self, least: float, wished: float) -> None:
        """Size memory for rows of ``wished`` bytes, or less if the budget requires it, but at least ``least``.

        Whether a budget is enough must not depend on which rows arrive first: longer rows are looked up through the
        index.
        """
        self.row_bytes = wished
        if wished <= least or self.least_memory() <= self.budget.total:
            return
        low, high = least, wished
        while high - low > 1.0:
            self.row_bytes = (low + high) / 2
            low, high = (self.row_bytes, high) if self.least_memory() <= self.budget.total else (low, self.row_bytes)
        self.row_bytes = low
