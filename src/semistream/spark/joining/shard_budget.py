"""The memory of a join on Spark, given out to shards: each gets the same part, and the largest must do with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import format_bytes
from semistream.joins import Join
from semistream.relation.relation import Relation
from semistream.relation.stores.store_path import Place

__all__ = ["NEW_ROWS", "WAITING_ROWS", "ShardBudget"]

NEW_ROWS, WAITING_ROWS = 0.75, 0.25
"""Where rows are parked: parts of the memory for joining new rows, and for joining parked ones again."""


@dataclass(frozen=True)
class ShardBudget:
    """Memory of all shards, and what one of them needs."""

    largest: Relation
    path: Place
    shards: int
    total: int

    def of_shard(self, part: float) -> int:
        """Return one shard's share of a part of all memory."""
        return max(1, int(self.total * part) // self.shards)

    def share(self, kind: type[Join], schema: pa.Schema, settings: dict[str, Any], part: float) -> tuple[int, int]:
        """Return one shard's part of the memory and the least that would do, or raise if the largest needs more."""
        share = self.of_shard(part)
        if not kind.bounded:
            kind(self.largest, memory=1, **settings)  # for the checks; with the schema it would read all of the shard
            return share, 0
        minimum = kind.minimum_memory(self.largest, schema, **settings)
        if share < minimum:
            parking = "" if part == 1.0 else f", {part:.0%} being for {'new' if part == NEW_ROWS else 'parked'} rows"
            needed = math.ceil(minimum * self.shards / part)
            raise BudgetTooSmallError(
                f"memory of {format_bytes(self.total)} is too small for {self.path}: {format_bytes(share)} for each of "
                f"its {self.shards} shards{parking}, of which {kind.id} needs at least {minimum:,} B for one, so "
                f"{needed:,} B in all; give at least that, or build the relation with fewer shards or larger pages"
                if self.shards > 1
                else f"memory of {format_bytes(self.total)} is too small for {self.path}{parking}: {kind.id} needs at "
                f"least {needed:,} B; give at least that",
                needed,
            )
        return share, minimum
