"""How rows arrive in a task: in which part of the stream, and at which time of the query.

Both are in one column, which is negative for guests: rows of a hot key that another shard has. A task cannot ask Spark
which part it has: after a ``coalesce`` or a ``union`` of the results its number is another than that of the shuffle it
reads, and one task may have several parts, one after the other.
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
        """Return what a column says, whose values are all alike, but for those of guests.

        >>> Arrival.of(pa.array([(1700000000000 << 20) | 3]))
        Arrival(part=3, moment=1700000000000)
        """
        value = column[0].as_py()
        value = value if value >= 0 else ~value
        return cls(value & (1 << _BITS) - 1, value >> _BITS)


def arrival(timed: bool, home: Column | None = None) -> Column:
    """Return the column, for rows right after their shuffle; those are guests that are not where they are at home."""
    moment = _of_micro_batch() if timed else F.lit(0).cast("bigint")
    arrived = F.shiftleft(moment, _BITS).bitwiseOR(F.spark_partition_id().cast("bigint"))
    if home is None:
        return arrived
    return F.when(home == F.spark_partition_id(), arrived).otherwise(F.bitwise_not(arrived))


def _of_micro_batch() -> Column:
    """Return the time of the micro-batch in milliseconds."""
    # Spark replaces this by a constant, which a replay has too. Other than the query's id, it also reaches what threads
    # of a foreachBatch do with the frame.
    moment = F.unix_millis(F.current_timestamp())
    # Of that constant Spark would make Java, to be compiled in every micro-batch, and slow as long as it is new. Inside
    # of a function that Spark does not compile, as this one, it is read from memory; others of that kind take longer.
    one = F.array(F.lit(0))
    return F.get(F.zip_with(one, one, lambda _one, _other: moment), F.lit(0))
