"""The partition-based join: reads the partition with the most waiting tuples (cited in X-HYBRIDJOIN §2).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``h_S``        tuples that the wait buffer holds
``P``          partitions of R
``θ``          tuples that wait for a partition when it is read
=============  =============================================================================================

If the buffer is full, the partition with the most tuples is read. So every partition grows until it has ``θ`` tuples,
frequent ones soon and rare ones late, and holds half of that on average: ``P·(θ - 1)/2 = h_S``. A read answers
``w = θ = 1 + 2·h_S / P`` tuples, whatever the skew. An iteration reads several partitions and admits ``u`` tuples. So a
partition that a share ``q`` of them needs is read every ``θ/q + u/2`` tuples, but at most once per iteration; a
frequent one then has more than ``θ`` tuples. This is the steady state, which is reached only when the rarest partition
has ``θ`` tuples.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from semistream.core.arrays import Floats
from semistream.costs.basis.model import common_memory
from semistream.costs.basis.popularity import KeyClasses, Units
from semistream.costs.basis.queue_steady_state import root
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins.partitioned_join import PartitionLayout
from semistream.structures.stream_table import StreamTable
from semistream.structures.wait_buffer import WaitBuffer

__all__ = ["COSTS", "PartitionedJoinCosts"]


class PartitionedJoinCosts(DiskCosts):
    """The wait buffer in its steady state, with equal numbers of tuples of rare and of frequent keys."""

    id = "partitioned_join"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        partition_pages: int | None = None, in_flight: int = 256, **options: Any,
    ) -> Served:  # fmt: skip
        parts = common_memory(setting, memory, index=True)
        layout = _layout(setting)
        if parts.free < (least := layout.least(partition_pages)):
            raise self.too_small(setting, parts, least)
        pages, count = layout.split(parts.free, partition_pages, in_flight)
        parts.give("disk buffer", count * pages * layout.frame_bytes)
        parts.give("INLJ page", layout.frame_bytes)
        places, capacity = layout.places(pages), layout.capacity(parts.free, pages)
        parts.give("wait buffer", capacity * layout.tuple_bytes + WaitBuffer.fixed_bytes(places))

        units = keys.units(setting, pages)
        read = min(count, places)
        served = _served(units, capacity, read)
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
            turns=1.0 / (read * served),
            events=matched_in_passes(keys, served * places / max(keys.miss_share, 1e-12)),
            details={"w": served, "h_S": capacity, "P": places},
        )

    def least(self, setting: Setting, **options: Any) -> int:
        return _layout(setting).least(options.get("partition_pages"))

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        room = common_memory(setting, memory, index=True).free // 2 // setting.frame_bytes
        return {"partition_pages": [1 << power for power in range(max(1, min(room, setting.pages)).bit_length())]}


def _layout(setting: Setting) -> PartitionLayout:
    beside_row = WaitBuffer.bytes_beside_row - StreamTable.bytes_beside_row
    return PartitionLayout(setting.pages, setting.frame_bytes, setting.waiting_bytes + beside_row)


def _served(units: Units, capacity: float, read: int) -> float:
    """Return ``w`` if ``read`` partitions are read in an iteration."""
    popularity = units.popularity
    turn, served = float(read), 1.0

    def lacking(turn: float, level: float) -> float:
        """Return the excess of waiting tuples if partitions were read at ``level`` tuples."""
        held = units.total(np.maximum(popularity * _cycles(popularity, level, turn) - 1.0, 0.0) / 2)
        # half of an iteration's tuples are missing on average, because its partitions are emptied together
        return held - max(capacity - turn / 2, capacity / 2)

    for _ in range(16):
        level = root(functools.partial(lacking, turn), 1.0, 2.0 + 4.0 * capacity)
        served = 1.0 / units.total(1.0 / _cycles(popularity, level, turn))
        turn = (turn + min(read * served, capacity)) / 2
    return max(1.0, served)


def _cycles(popularity: Floats, level: float, turn: float) -> Floats:
    """Return the number of tuples between two reads of a partition."""
    return np.asarray(np.maximum(level / popularity + turn / 2, turn))


COSTS = (PartitionedJoinCosts(),)
