"""INLJ, the index nested loop join: the baseline of all five papers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_at_least
from semistream.joins.interface.following import Undo
from semistream.joins.interface.join import Join
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation
from semistream.relation.rows.selection import take_rows
from semistream.structures.lookup import PageLookup

__all__ = ["Inlj"]


class Inlj(Join):
    """Looks up each stream tuple in the index of R, and reads its page for this tuple alone.

    Nothing is shared: two tuples with the same key read the same page twice. So the rate is the device's rate of random
    reads, for any skew.

    Parameters
    ----------
    in_flight
        Tuples whose pages are read together. The papers read one at a time (1). A higher value does not change the
        number of reads; the device only works on several at the same time.
    """

    id = "inlj"
    title = "index nested loop join: one read per tuple"
    when = "As the baseline; or for a handful of tuples per hour."
    place = 10
    conditions = ("equal", "as_of")
    calibrated = True
    waits = False

    def __init__(self, relation: Relation, *, in_flight: int = 256, **common: Any) -> None:
        check_at_least(1, in_flight=in_flight)
        self._in_flight = in_flight
        super().__init__(relation, **common)

    def least_bytes(self) -> int:
        return self.relation.device.frame_bytes

    def open_parts(self) -> None:
        frames = max(1, min(self._in_flight, self.budget.free // self.relation.device.frame_bytes))
        self._lookup = PageLookup(self.relation, frames, share=False, cap=self.pairs_at_once)
        self._disk_part = self.budget.reserve("disk buffer", self._lookup.nbytes)

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Read fewer pages together."""
        lookup, frame = self._lookup, self.relation.device.frame_bytes
        frames = (lookup.nbytes - lacking) // frame
        if frames < 1:
            raise self.too_large(lacking - (lookup.nbytes - frame), patch)

        def undo() -> None:
            self._lookup = lookup
            self._disk_part.resize(lookup.nbytes)

        self._lookup = PageLookup(self.relation, frames, share=False, cap=self.pairs_at_once)
        self._disk_part.resize(self._lookup.nbytes)
        return undo

    def turn(self) -> Iterator[pa.RecordBatch]:
        for part in self.stream.take(self.pairs_at_once):
            # Sort by key: an observer of the matches needs equal keys to be adjacent.
            order = np.argsort(part.keys, kind="stable")
            part = Tuples(part.keys[order], take_rows(part.batch, order))
            yield from self.looked_up(part, self._lookup)
