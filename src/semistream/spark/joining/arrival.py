"""The part of the stream that a task's rows are in, and the time of their micro-batch.

One column holds both. It is negative for guests: rows of a hot key whose shard another task has. A task cannot get its
part from Spark: after a ``coalesce`` or a ``union`` of the results, the partition number differs from that of the
shuffle, and one task may read several parts one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["ARRIVAL", "Arrival", "arrival"]

ARRIVAL = "arrival"
"""Name of the column."""
_BITS = 20


@dataclass(frozen=True)
class Arrival:
    """The part of the stream that rows are in, and the time of their micro-batch in milliseconds."""

    part: int
    moment: int

    @classmethod
    def of(cls, column: pa.Array) -> Arrival:
        """Decode a column.

        All of its values are equal, except that those of guests are inverted.

        >>> Arrival.of(pa.array([(1700000000000 << 20) | 3]))
        Arrival(part=3, moment=1700000000000)
        """
        value = column[0].as_py()
        value = value if value >= 0 else ~value
        return cls(value & (1 << _BITS) - 1, value >> _BITS)


def arrival(timed: bool, home: Column | None = None) -> Column:
    """Return the column, for rows right after their shuffle.

    A row outside of its ``home`` partition is a guest.
    """
    moment = _of_micro_batch() if timed else F.lit(0).cast("bigint")
    arrived = F.shiftleft(moment, _BITS).bitwiseOR(F.spark_partition_id().cast("bigint"))
    if home is None:
        return arrived
    return F.when(home == F.spark_partition_id(), arrived).otherwise(F.bitwise_not(arrived))


def _of_micro_batch() -> Column:
    """Return the time of the micro-batch in milliseconds."""
    # Spark replaces this by a constant; a replay has the same constant. Unlike the query's id, it also reaches threads
    # of a foreachBatch that use the frame.
    moment = F.unix_millis(F.current_timestamp())
    # Spark would compile Java code for this constant in every micro-batch, and new code is slow. Inside a function that
    # Spark does not compile, such as zip_with, the constant is read from memory. Other such functions are slower.
    one = F.array(F.lit(0))
    return F.get(F.zip_with(one, one, lambda _one, _other: moment), F.lit(0))
