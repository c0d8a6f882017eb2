"""A join behind another stage, which passes tuples to it: the interface between the two.

The stage creates the join with its options and ``memory=None``, and calls `least_memory`. When it knows the stream, it
calls `stand_behind` with the memory for the join, and with parts of its own memory that it lends. From then on it
passes tuples with `hand`, calls `step`, and sets whether more tuples will arrive. `step` yields the results; matches
are reported to the stage's observer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from semistream.core.budget import MemoryBudget
from semistream.core.errors import UnsupportedJoinError
from semistream.joins.interface.contract import Algorithm
from semistream.joins.interface.results import Observer
from semistream.joins.interface.stream_buffer import Room, Tuples
from semistream.joins.shares import Lending
from semistream.structures.lookup import PageLookup

__all__ = ["Lent", "StageBehind"]


@dataclass(frozen=True)
class Lent:
    """Memory of a stage that the join behind it also uses; only the stage counts it."""

    room: Room
    """Room for arriving tuples; the stage counts its own tuples there, or limits the sum of both itself."""
    lookup: PageLookup
    """Look-ups for tuples that are too long."""
    results: tuple[int, int] | None = None
    """Maximum pairs collected together, and bytes of a batch of results; None if both may hold some at once."""

    @property
    def lending(self) -> Lending:
        """Which parts are lent."""
        return Lending.ARRIVALS if self.results is None else Lending.ALL


class StageBehind(Algorithm):
    """The part of a join that a stage before it uses."""

    _single: PageLookup
    _lent: Lent | None = None
    _lending: Lending
    _on_match: Observer | None = None

    @abstractmethod
    def _take_memory(self, schema: pa.Schema, sample: pa.RecordBatch | None, row_bytes: float | None) -> None:
        """Set the stream's schema and allocate the memory."""

    def stand_behind(
        self, schema: pa.Schema, *, memory: int, row_bytes: float, observer: Observer, lent: Lent | None = None
    ) -> None:
        """Allocate ``memory`` bytes for a stream of ``schema``, whose rows have ``row_bytes`` on average.

        The stage before this join counts the memory in its own budget, gets the matches through ``observer``, and
        passes on updates of R: this join does not subscribe to R itself. ``lent`` is available in addition to
        ``memory``.
        """
        if not self.stands_behind:
            raise UnsupportedJoinError(f"{self.id} cannot stand behind another stage; HYBRIDJOIN and others can")
        self.budget = MemoryBudget(memory)
        self._lent = lent
        self._lending = Lending.NOTHING if lent is None else lent.lending
        self._on_match = observer
        self._take_memory(schema, None, row_bytes)

    def hand(self, part: Tuples) -> int:
        """Accept tuples whose keys are known, as `offer` does; return how many, counted from the first."""
        taken = 0
        while taken < len(part.keys):
            rest = part.batch.slice(taken)
            count = self.stream.fitting(rest)
            if count == 0:
                break
            self.stream.receive(Tuples(part.keys[taken : taken + count], rest.slice(0, count)))
            taken += count
            self.absorb()
        self.tally.rows_in += taken
        return taken

    @property
    def arrived(self) -> int:
        """Tuples in the stream buffer. If there are none, a tuple that `hand` does not accept is too long for it."""
        return len(self.stream) if self.bound else 0

    @property
    def done(self) -> int:
        """Tuples that have left."""
        return self.tally.rows_done

    @property
    def arrived_bytes(self) -> int:
        """Bytes of the tuples in the stream buffer."""
        return self.stream.nbytes if self.bound else 0

    def look_up(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        """Join tuples that are too long for `hand` immediately, each through the index."""
        yield from self.looked_up(part, self._single)

    def _looked_up_aside(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        """Join tuples that were offered and are too long for the memory of the algorithm."""
        yield from self.look_up(part)
