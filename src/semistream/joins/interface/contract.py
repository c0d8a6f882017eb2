"""The contract for authors of joins: what to declare, what to implement, and what is available.

::

    declare    class attributes (`Traits`): id, title, and properties in which the join differs from most
    implement  least_bytes   minimum memory of its own parts
               open_parts    reserve and allocate the memory
               turn          one iteration of the loop, which yields results
               waiting, absorb, check_parts, before_update, after_update, give_up    if tuples wait or rows are cached
    use        relation, budget, stream, pairs_at_once, row_bytes, tally
               looked_up, joined, without_partner, rows_of    make results

`docs/how-to/add-an-algorithm.md` shows how to write a join.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.budget import MemoryBudget
from semistream.core.statistics import JoinStatistics
from semistream.joins.interface.conditions import Condition, ConditionName
from semistream.joins.interface.leaving import BatchRows, Leaving
from semistream.joins.interface.stream_buffer import StreamBuffer, Tuples
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.lookup import PageLookup

__all__ = ["Algorithm", "Overlap", "Traits"]


class Overlap(Enum):
    """Which work of a join overlaps."""

    NOTHING = "one thing after the other"
    PHASES = "tuples are looked up in the cache while the join behind reads and probes"
    PHASES_AND_READS = "and pages are read while others are probed"


class Traits:
    """Class attributes, which a join sets if it differs from most."""

    id: ClassVar[str]
    """Name in the registry."""
    title: ClassVar[str]
    """One line for tables."""
    when: ClassVar[str] = ""
    """When to choose it, in one line; tables show the title if it is empty."""
    place: ClassVar[int] = 1000
    """Position in lists: the joins of the papers first, in the order in which they build on each other."""
    listed: ClassVar[bool] = True
    """Whether users can choose it; False for a join that is only a part of another."""
    conditions: ClassVar[tuple[ConditionName, ...]] = ("equal",)
    """The join conditions that it supports."""
    uses_index: ClassVar[bool] = True
    """Whether it holds the index of R, which then counts towards its memory."""
    bounded: ClassVar[bool] = True
    """Whether the join respects its budget."""
    bounded_wait: ClassVar[bool] = True
    """Whether every tuple is eventually served, also in an endless stream."""
    deterministic: ClassVar[bool] = True
    """Whether the same stream gives results in the same order; False for joins with threads."""
    overlap: ClassVar[Overlap] = Overlap.NOTHING
    """Which of its work overlaps."""
    scans: ClassVar[bool] = False
    """Whether it scans R cyclically, regardless of the keys of the stream."""
    waits: ClassVar[bool] = True
    """Whether tuples wait for others that need the same page; if not, each tuple causes its own read."""
    mixes: ClassVar[bool] = False
    """Whether tuples with and without a match leave in one batch, unless the option ``apart`` separates them."""
    in_order: ClassVar[bool] = False
    """Whether results are in stream order, unless tuples are kept ``apart`` or may wait."""
    keeps_cache: ClassVar[bool] = False
    """Whether its cache can be in files (``arrays``), so that the next process can continue with it."""
    makes_results: ClassVar[bool] = True
    """Whether pairs become batches; a simulation, which does not need them, only counts pairs."""
    stands_behind: ClassVar[bool] = True
    """Whether a stage before it may pass tuples to it: it takes them from the stream buffer and reports all matches."""
    default_for: ClassVar[tuple[str, ...]] = ()
    """Conditions for which ``"auto"`` chooses it without comparing, on a device that does not seek. For other
    conditions ``"auto"`` ignores such a join. A join without an entry here is compared wherever it can be used."""
    calibrated: ClassVar[bool] = False
    """Whether ``tune --calibrate`` measures it as a whole: for joins that compete on a device that does not seek."""
    for_batches: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Default options if the join is drained after every batch, as on Spark; the user's options have precedence."""


class Algorithm(Traits, ABC):
    """What the author of a join implements and uses. Derive from `Join`, which has the rest.

    A tuple that was offered waits in ``stream`` until `turn` takes it. It must leave exactly once: through `looked_up`,
    or through `joined` for each matching row of R, or through `without_partner` if there is none. Then add it to
    ``tally.rows_done``.
    """

    # -- use ----------------------------------------------------------------------------------------------

    relation: Relation
    """R: `locate` finds pages by key, `read` reads them into frames, `rows` decodes."""
    on: tuple[str, ...]
    """The stream's key columns."""
    how: str
    """``"left"`` or ``"inner"``; `without_partner` respects it."""
    condition: Condition
    """The join condition."""
    budget: MemoryBudget
    """All memory of the join: reserve under a name before you allocate, and never hold more."""
    stream_codec: RowCodec
    """Encodes rows of the stream; available from `open_parts` on."""
    row_bytes: float
    """Mean bytes of an encoded row of the stream, for sizing memory."""
    stream: StreamBuffer
    """Tuples that were offered: ``take(n)`` yields 64-bit keys, never NULL, with their rows."""
    pairs_at_once: int
    """Maximum pairs to collect before results are made of them."""
    result_bytes: int
    """Maximum bytes of a batch of results, unless it is a single row."""
    largest_row: int | None = None
    """Bytes of the longest row that can wait; set it in `open_parts`. Longer rows are looked up through the index."""
    tally: JoinStatistics
    """Counters: add to ``rows_done`` for each tuple that leaves, to ``probes`` and others as they apply."""
    bound: bool
    """Whether the stream's schema is known and the memory is allocated."""
    closing: bool = False
    """Whether no more tuples arrive for now: then tuples must leave in every iteration."""
    more_coming: bool = False
    """Whether more tuples are ready to be offered after this iteration."""

    @abstractmethod
    def looked_up(self, part: Tuples, lookup: PageLookup) -> Iterator[pa.RecordBatch]:
        """Join tuples immediately, each through the index, and let them leave. Counts them."""

    @abstractmethod
    def joined(
        self, keys: Ints, stream: Leaving, data: Bytes, starts: Ints, flags: Bytes, *, seen: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Make results of pairs: tuples of the stream, and rows of R that start at ``starts`` in ``data``.

        ``keys`` and ``flags`` are those of R's rows, as stored in pages. If the join stands behind another stage, the
        pairs are passed to the stage's observer, unless it has already ``seen`` them.
        """

    @abstractmethod
    def without_partner(self, stream: Leaving) -> Iterator[pa.RecordBatch]:
        """Let tuples without a matching row of R leave: dropped, or with NULLs."""

    @abstractmethod
    def rows_of(self, batch: pa.RecordBatch) -> BatchRows:
        """Return the rows of a batch, ready to leave: use ``.at(positions)`` or ``.all()``."""

    # -- write --------------------------------------------------------------------------------------------

    @abstractmethod
    def least_bytes(self) -> int:
        """Return the minimum bytes of the algorithm's own parts, given ``row_bytes``."""

    @abstractmethod
    def open_parts(self) -> None:
        """Reserve and allocate memory, all of ``budget.free`` if this helps. The stream's schema is known now."""

    @abstractmethod
    def turn(self) -> Iterator[pa.RecordBatch]:
        """Run one iteration of the loop and yield results. While ``closing``, it must make progress."""

    def absorb(self) -> None:
        """Move tuples from ``stream`` to where they wait, if the algorithm does so between iterations."""

    @property
    def waiting(self) -> int:
        """Number of tuples that the algorithm holds, without those in ``stream``."""
        return 0

    def check_parts(self) -> None:
        """Assert the invariants of the algorithm's own state."""
