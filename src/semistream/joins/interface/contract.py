"""The contract of a join's author: what a join says about itself, what its author writes, and what is there to use.

::

    say     class attributes (`Traits`): id, title, and where the join differs from most
    write   least_bytes   the least memory of its own parts
            open_parts    take the memory
            turn          one turn of the loop, which yields results
            waiting, absorb, check_parts, before_update, after_update, give_up    if tuples wait or rows are kept
    use     relation, budget, stream, pairs_at_once, row_bytes, tally
            looked_up, joined, without_partner, rows_of    make results of what was found

`docs/how-to/add-an-algorithm.md` writes a join with it.
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
    """What goes on at the same time while a join works."""

    NOTHING = "one thing after the other"
    PHASES = "tuples are looked up in the cache while the join behind reads and probes"
    PHASES_AND_READS = "and pages are read while others are probed"


class Traits:
    """Class attributes that a join sets where it differs from most."""

    id: ClassVar[str]
    """Name in the registry."""
    title: ClassVar[str]
    """One line for tables."""
    when: ClassVar[str] = ""
    """When to choose it, in one line; tables show the title if it is empty."""
    place: ClassVar[int] = 1000
    """Where it stands in lists: the joins of the papers first, in the order in which they build on each other."""
    listed: ClassVar[bool] = True
    """Whether it is a join to choose, and not only a part of one."""
    conditions: ClassVar[tuple[ConditionName, ...]] = ("equal",)
    """What it can join on."""
    uses_index: ClassVar[bool] = True
    """Whether the index of R is held, and so counted."""
    bounded: ClassVar[bool] = True
    """Whether the join keeps to its budget."""
    bounded_wait: ClassVar[bool] = True
    """Whether every tuple is served in the end, however long the stream is."""
    deterministic: ClassVar[bool] = True
    """Whether the same stream gives results in the same order; threads do not."""
    overlap: ClassVar[Overlap] = Overlap.NOTHING
    """What it does at the same time."""
    scans: ClassVar[bool] = False
    """Whether R is read in a circle, whatever the stream asks for."""
    waits: ClassVar[bool] = True
    """Whether tuples wait for others that need the same page; if not, each is read for by itself."""
    mixes: ClassVar[bool] = False
    """Whether tuples with and without a partner leave in one batch, unless it is told to keep them ``apart``."""
    in_order: ClassVar[bool] = False
    """Whether results leave in the order of the stream, unless tuples are kept ``apart`` or may wait."""
    keeps_cache: ClassVar[bool] = False
    """Whether what it has learned of the stream can lie in files (``arrays``), for the next process to go on with."""
    makes_results: ClassVar[bool] = True
    """Whether pairs become batches; a simulation, where nobody reads them, only counts them."""
    stands_behind: ClassVar[bool] = True
    """Whether another stage may hand tuples on to it: it takes them from the stream buffer, and shows all matches."""
    default_for: ClassVar[tuple[str, ...]] = ()
    """Conditions for which ``"auto"`` takes it without comparing, on a device that does not seek. For other conditions
    ``"auto"`` leaves such a join out; a join without an entry here is compared wherever it can be used."""
    calibrated: ClassVar[bool] = False
    """Whether ``tune --calibrate`` measures it as a whole: joins that compete on a device that does not seek."""
    for_batches: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options for a join that is drained after every batch, as on Spark; those that a user gives come first."""


class Algorithm(Traits, ABC):
    """What the author of a join writes and uses. Derive from `Join`, which has the rest.

    A tuple that was offered waits in ``stream`` until `turn` takes it. It must leave exactly once: through `looked_up`,
    or through `joined` for each of its rows of R and `without_partner` if there is none; then it counts in
    ``tally.rows_done``.
    """

    # -- use ----------------------------------------------------------------------------------------------

    relation: Relation
    """R: `locate` finds pages by key, `read` brings them into frames, `rows` decodes."""
    on: tuple[str, ...]
    """The stream's key columns."""
    how: str
    """``"left"`` or ``"inner"``; `without_partner` respects it."""
    condition: Condition
    """What the join is on."""
    budget: MemoryBudget
    """All memory of the join: reserve under a name before you allocate, and never hold more."""
    stream_codec: RowCodec
    """Encodes rows of the stream; known from `open_parts` on."""
    row_bytes: float
    """Bytes of a row of the stream, encoded, on average: what to lay memory out for."""
    stream: StreamBuffer
    """Tuples that were offered: ``take(n)`` yields keys, 64 bits each and none NULL, with their rows."""
    pairs_at_once: int
    """How many pairs to find before results are made of them."""
    result_bytes: int
    """A batch of results is no larger, unless it is a single row."""
    largest_row: int | None = None
    """Longest row, in bytes, that can wait; set it in `open_parts`. Longer ones are served through the index."""
    tally: JoinStatistics
    """Counters: add to ``rows_done`` for each tuple that leaves, to ``probes`` and others as they apply."""
    bound: bool
    """Whether the stream is known and the memory taken."""
    closing: bool = False
    """Whether nothing more comes for now: each turn must then let tuples leave."""
    more_coming: bool = False
    """Whether more tuples are ready to be offered after this turn."""

    @abstractmethod
    def looked_up(self, part: Tuples, lookup: PageLookup) -> Iterator[pa.RecordBatch]:
        """Join tuples at once, each through the index, and let them leave. Counts them."""

    @abstractmethod
    def joined(
        self, keys: Ints, stream: Leaving, data: Bytes, starts: Ints, flags: Bytes, *, seen: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Make results of pairs: tuples of the stream, and rows of R that start at ``starts`` of ``data``.

        ``keys`` and ``flags`` are those of R's rows, as pages have them. The observer of a join behind another stage
        sees the pairs, unless it has ``seen`` them.
        """

    @abstractmethod
    def without_partner(self, stream: Leaving) -> Iterator[pa.RecordBatch]:
        """Let tuples leave for which R has no row: dropped, or with NULLs."""

    @abstractmethod
    def rows_of(self, batch: pa.RecordBatch) -> BatchRows:
        """Return the rows of a batch as something that can leave: ``.at(positions)`` or ``.all()``."""

    # -- write --------------------------------------------------------------------------------------------

    @abstractmethod
    def least_bytes(self) -> int:
        """Return the least bytes that the algorithm's own parts can do with, given ``row_bytes``."""

    @abstractmethod
    def open_parts(self) -> None:
        """Reserve and allocate, all of ``budget.free`` if it helps. The stream's schema is known now."""

    @abstractmethod
    def turn(self) -> Iterator[pa.RecordBatch]:
        """Run one turn of the loop and yield results. While ``closing``, a turn must make progress."""

    def absorb(self) -> None:
        """Move tuples from ``stream`` to where they wait, if the algorithm does so between turns."""

    @property
    def waiting(self) -> int:
        """Tuples that the algorithm holds, those in ``stream`` left out."""
        return 0

    def check_parts(self) -> None:
        """Assert the invariants of the algorithm's own state."""
