"""A join behind another stage, which hands tuples on to it: what that stage may ask of it, and must tell it.

The stage makes the join with its options and ``memory=None``, asks `least_memory`, and once it knows the stream lets it
`stand_behind` with the memory that is its, and what it lends it of its own. From then on it hands tuples over, lets the
join `step`, and says whether more will come. Results come out of `step`; what was matched is shown to the stage's
observer.
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
    """Memory that a stage has and the join behind it uses as well, counted by the stage alone."""

    room: Room
    """For tuples that come; the stage counts its own there, or sees by itself to what lies in both."""
    lookup: PageLookup
    """For tuples that are too long."""
    results: tuple[int, int] | None = None
    """Pairs found at once, and bytes of a batch of results; None where both may have some."""

    @property
    def lending(self) -> Lending:
        """What it is that is lent."""
        return Lending.ARRIVALS if self.results is None else Lending.ALL


class StageBehind(Algorithm):
    """The part of a join that serves a stage before it."""

    _single: PageLookup
    _lent: Lent | None = None
    _lending: Lending
    _on_match: Observer | None = None

    @abstractmethod
    def _take_memory(self, schema: pa.Schema, sample: pa.RecordBatch | None, row_bytes: float | None) -> None:
        """Fix the stream's schema and take the memory."""

    def stand_behind(
        self, schema: pa.Schema, *, memory: int, row_bytes: float, observer: Observer, lent: Lent | None = None
    ) -> None:
        """Take ``memory`` for a stream of ``schema``, whose rows have ``row_bytes`` on average.

        The stage before counts that memory in its own budget, sees as ``observer`` what is matched, and passes updates
        of R on: this join does not listen to R itself. What is ``lent`` it has beside that memory.
        """
        if not self.stands_behind:
            raise UnsupportedJoinError(f"{self.id} cannot stand behind another stage; HYBRIDJOIN and others can")
        self.budget = MemoryBudget(memory)
        self._lent = lent
        self._lending = Lending.NOTHING if lent is None else lent.lending
        self._on_match = observer
        self._take_memory(schema, None, row_bytes)

    def hand(self, part: Tuples) -> int:
        """Take tuples, as `offer` does, whose keys are known; return how many, counted from the first."""
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
        """Tuples in the stream buffer. While there are none, what `hand` does not take is too long for it."""
        return len(self.stream) if self.bound else 0

    @property
    def done(self) -> int:
        """Tuples that have left."""
        return self.tally.rows_done

    @property
    def arrived_bytes(self) -> int:
        """Bytes of these tuples."""
        return self.stream.nbytes if self.bound else 0

    def look_up(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        """Join tuples at once, each through the index: those that are too long to be handed over."""
        yield from self.looked_up(part, self._single)

    def _looked_up_aside(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        """Join tuples that were offered and are too long for the memory of the algorithm."""
        yield from self.look_up(part)
