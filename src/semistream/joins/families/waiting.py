"""What joins with a stream table share: reserving its memory, filling it, and making results from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.joins.families.holding import HoldingJoin
from semistream.structures.stream_table import StreamTable

__all__ = ["WaitingJoin"]


class WaitingJoin(HoldingJoin[StreamTable]):
    """A join whose stream tuples wait in ``H_S`` for their page."""

    _serving = False
    """Whether pages are being probed: a tuple that is added now would miss pages that were probed before."""

    def _tuple_bytes(self) -> int:
        """Return the bytes of one waiting tuple."""
        if not hasattr(self, "stream_codec"):
            return int(self.row_bytes) + StreamTable.bytes_beside_row
        return StreamTable.bytes_per_tuple(self.stream_codec, self.row_bytes)

    def _fixed_bytes(self) -> int:
        return StreamTable.fixed_bytes()

    def _table_minimum(self, tuples: int) -> int:
        return tuples * self._tuple_bytes() + StreamTable.fixed_bytes()

    def _open_table(self, size: int) -> None:
        """Make a stream table that fits into ``size`` bytes, and reserve its memory."""
        capacity = max(1, (size - StreamTable.fixed_bytes()) // self._tuple_bytes())
        self._table_part = self.budget.reserve("stream table", self._table_minimum(capacity))
        self.table = StreamTable(self.stream_codec, capacity, self.row_bytes)
        self._table_part.resize(self.table.nbytes)
        self._limit_rows()

    def _admit(self, most: int) -> int:
        """Move up to ``most`` tuples from the stream buffer into the table."""
        if self._serving:
            return 0
        admitted = 0
        for part in self.stream.take(min(most, self.table.free)):
            count = self.table.insert(part.keys, part.batch)
            admitted += count
            if count < len(part.keys):
                self.stream.put_back(type(part)(part.keys[count:], part.batch.slice(count)))
                break
        self.tally.appended += admitted
        return admitted

    def _probed(
        self, frames: Bytes, wanted: Ints | None = None, *, leave: bool = False
    ) -> Iterator[tuple[Slots, Ints, Bytes]]:
        """Probe the table with the rows of pages; yield pairs in portions that fit into the match buffer."""
        cursor = np.array([0, 0, -1], np.int64)
        while cursor[0] < len(frames):
            slots, starts, flags, probes = self.table.probe(
                frames, self.relation.layout.stride, cursor, self.pairs_at_once, wanted=wanted, leave=leave
            )
            self.tally.probes += probes
            if slots.size:
                yield slots, starts, flags

    def _joined_slots(self, slots: Slots, frames: Bytes, starts: Ints, flags: Bytes) -> Iterator[pa.RecordBatch]:
        yield from self.joined(self.table.keys_of(slots), self._held(slots), frames.reshape(-1), starts, flags)

    def _leave(self, slots: Slots, matched: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Let tuples that were removed from the table leave; ``how`` decides about those without a match."""
        yield from self.without_partner(self._held(slots[~matched]))
        self._let_go(slots)

    def _let_go(self, slots: Slots) -> None:
        """Free the slots of tuples that were removed from the table and whose results were returned."""
        self.tally.rows_done += slots.size
        self.tally.evicted += slots.size
        self.table.release(slots)

    def let_wait(self, batch: pa.RecordBatch) -> None:
        """Add waiting tuples without running an iteration, as if they had arrived earlier; for measurements."""
        while batch.num_rows:
            taken = self.offer(batch)
            if taken + self._admit(self.table.free) == 0:
                raise ValueError(f"{batch.num_rows:,} tuples do not fit into {self.id}, where {self.pending:,} wait")
            batch = batch.slice(taken)
        self._admit(self.table.free)

    def check_parts(self) -> None:
        self.table.check()
