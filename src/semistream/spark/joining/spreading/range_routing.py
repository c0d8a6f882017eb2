"""Which task a row goes to in a join on ranges.

A range can touch any shard, because shards are remainders of a hash. So each task opens all shards, and each row goes
to exactly one task: the result is exact wherever a row goes, and a row without a match is known to have none. Rows are
divided by stripes of the key's order, by their low bound, so that tasks read different pages. Where the order of the
bound is not known to Spark, rows are divided by a hash of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.key_kinds import tick_kind, tick_nanoseconds
from semistream.spark.relations.key_expressions import by_position

__all__ = ["RangeRouting"]

_DAY = 86_400.0
"""Seconds of a day."""


@dataclass(frozen=True)
class RangeRouting:
    """How rows of a join on ranges are divided among its tasks."""

    tasks: int
    width: int = 0
    """Values of key64 per stripe; 0 if rows are divided by hash."""
    shards: ClassVar[int] = 1
    """Each task has all of R, as if it had one shard."""

    def part_of(self, df: DataFrame, on: tuple[str, ...], codec: KeyCodec) -> Column:
        """Return the task of each row of ``df``, whose columns are `positional`; ``on`` are the two bounds."""
        position = df.columns.index(on[0])
        low = by_position(position)
        ticks = _ticks(low, df.schema.fields[position].dataType, codec.types[0]) if self.width else None
        if ticks is None:
            return F.pmod(F.xxhash64(low), F.lit(self.tasks)).cast("int")
        stripe = F.floor(ticks / F.lit(float(self.width)))
        return F.coalesce(F.pmod(stripe, F.lit(self.tasks)), F.lit(0)).cast("int")


def _ticks(low: Column, theirs: st.DataType, ours: pa.DataType) -> Column | None:
    """Return the approximate key64 of a low bound, which is enough for routing; None if Spark cannot compute it."""
    if isinstance(theirs, st.NumericType):
        scale = ours.scale if pa.types.is_decimal(ours) else 0
        return low.cast("double") * F.lit(10.0**scale)
    if tick_kind(ours) not in ("date", "timestamp"):
        return None
    if isinstance(theirs, st.TimestampType):
        seconds = F.unix_micros(low) / F.lit(1e6)
    elif isinstance(theirs, st.DateType):
        seconds = F.unix_date(low) * F.lit(_DAY)
    elif isinstance(theirs, st.TimestampNTZType):
        # Without a cast to a timestamp, which can overflow in the session's time zone.
        clock = F.hour(low) * F.lit(3600) + F.minute(low) * F.lit(60) + F.second(low)
        seconds = F.unix_date(low.cast("date")) * F.lit(_DAY) + clock
    else:
        return None
    return seconds * F.lit(1e9 / tick_nanoseconds(ours))
