"""The partition-based join: the partition that most tuples wait for is read (cited in X-HYBRIDJOIN §2).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``h_S``        tuples that the wait buffer holds
``P``          partitions of R
``θ``          tuples that wait for a partition when it is read
=============  =============================================================================================

With the buffer full, a partition is read as soon as no other has more tuples. So all of them grow until they have
``θ``, the frequent ones soon and the rare ones late, and at any time hold half of that on average:
``P·(θ - 1)/2 = h_S``, and a read serves ``w = θ = 1 + 2·h_S / P`` tuples, whatever the skew. That is the limit after a
long time. Until the rarest partition has ``θ`` tuples the buffer is not clogged yet, and the join is faster: after
``t`` tuples of the stream a partition holds ``q·t`` if that is less than ``θ``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from semistream.joins.costs.behind import DiskCosts, Served, matched_in_passes
from semistream.joins.costs.model import common_memory
from semistream.joins.costs.popularity import KeyClasses, Units
from semistream.joins.costs.setting import Setting
from semistream.joins.costs.steady import root
from semistream.structures.directory import ENTRY_BYTES
from semistream.structures.wait_buffer import WaitBuffer

__all__ = ["PartitionedJoinCosts"]

_LEAST_TUPLES = 16
_TUPLE_BYTES = 17
"""A waiting tuple beside its row; in the other joins' table it takes 25 and a hash entry."""


class PartitionedJoinCosts(DiskCosts):
    """The wait buffer in its last state: as many tuples of rare keys as of frequent ones."""

    id = "partitioned_join"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        partition_pages: int | None = None, in_flight: int = 256, after: float = math.inf, **options: Any,
    ) -> Served:  # fmt: skip
        """Return what the join does after so many tuples of the stream, by default after very many."""
        parts = common_memory(setting, memory, index=True)
        tuple_bytes = setting.waiting_bytes - 25 - ENTRY_BYTES + _TUPLE_BYTES
        free, frame = parts.free, setting.frame_bytes

        def needed(pages: int) -> int:
            places = WaitBuffer.fixed_bytes(math.ceil(setting.pages / pages))
            return (pages + 1) * frame + places + _LEAST_TUPLES * tuple_bytes

        sizes = [1 << power for power in range(setting.pages.bit_length())]
        if partition_pages is not None:
            sizes = [min(partition_pages, setting.pages)]
        fitting = [size for size in sizes if needed(size) <= free]
        if not fitting:
            raise self._too_small(setting, parts, min(needed(size) for size in sizes))
        small = (size for size in fitting if WaitBuffer.fixed_bytes(math.ceil(setting.pages / size)) <= free // 32)
        pages = next(small, min(fitting, key=needed))
        count = 1 + min(in_flight - 1, min(free - needed(pages), free // 8) // (pages * frame))
        parts.give("disk buffer", count * pages * frame)
        parts.give("INLJ page", frame)
        places = math.ceil(setting.pages / pages)
        capacity = (parts.free - WaitBuffer.fixed_bytes(places)) // tuple_bytes
        parts.give("wait buffer", capacity * tuple_bytes + WaitBuffer.fixed_bytes(places))

        units = keys.units(setting, pages)
        read = min(count, places)
        # half a turn's tuples are lacking on average, as the turn's partitions are emptied together
        served = (1.0 + 2.0 * capacity / places) / (1.0 + read / places)
        if math.isfinite(after):
            served = _level(units, capacity, after) / (1.0 + read / places)
        chance = np.minimum(units.popularity * read, 1.0)
        runs = read - min(units.adjacent(chance), read - 1.0)
        beyond = (setting.rows_per_key - 1.0) / setting.rows_per_page
        return Served(
            parts,
            {**options, "partition_pages": pages, "in_flight": in_flight},
            probes=float(pages),
            reads=runs / (read * served),
            pages=(pages + beyond) / served,
            seek=setting.seek_with(read),
            events=matched_in_passes(keys, served * places / max(keys.miss_share, 1e-12)),
            details={"w": served, "h_S": capacity, "P": places},
        )

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        room = common_memory(setting, memory, index=True).free // 2 // setting.frame_bytes
        return {"partition_pages": [1 << power for power in range(max(1, min(room, setting.pages)).bit_length())]}


def _level(units: Units, capacity: float, after: float) -> float:
    """Return ``θ`` after so many tuples: partitions that have not reached it hold all that came for them."""
    came = units.popularity * after

    def held(level: float) -> float:
        return units.total(np.where(came < level, came, (level - 1.0) / 2))

    return root(lambda level: held(level) - capacity, 1.0, 2.0 + 4.0 * capacity)
