"""Which keys are hot, known to the driver, and through it to Spark's shuffle.

::

    tasks of a micro-batch: a sample of their keys ──accumulator──▶ driver ──▶ hot keys ──▶ shuffle of the next ones

A row of a hot key goes to the task that a hash of the whole row says, any other row to that of its shard. What is hot
is told by a constant in the query's plan whose bytes are changed here between micro-batches. Spark works the plan out
anew for each, and folds the constant into an array then: a micro-batch has one set of hot keys from its first task to
its last, whatever of it is done again. Where there is no JVM to reach, as on Spark Connect, nothing is spread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark import AccumulatorParam
from pyspark.accumulators import Accumulator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.xxhash import SPARK_SEED
from semistream.spark.joining.spreading.repeatable import is_repeatable
from semistream.spark.relations.key_expressions import by_position, key_hash

__all__ = ["MOST_KEYS", "HotKeys", "KeySample", "Told"]

MOST_KEYS = 32
"""Keys that are spread at most."""
_SAMPLED = 4096
_WORDS = MOST_KEYS * 21 // 8
"""A hash and a comma are 21 characters at most, and eight of them a word."""
_HASHED = (
    st.IntegralType, st.DecimalType, st.StringType, st.BinaryType, st.BooleanType, st.DateType, st.TimestampType,
    st.TimestampNTZType,
)  # fmt: skip
"""Types of which rows are told apart; sums of floats may have other last bits when they are worked out again."""


@dataclass(frozen=True)
class Told:
    """What a task has seen: its part of the stream, rows, and rows of the keys that had the most, by their hash."""

    part: int
    rows: int
    counts: Mapping[int, int] = field(default_factory=dict)


class HotKeys:
    """The hot keys of a query, on the driver.

    A key is hot when it has more rows than half a task has on average, and until it has fewer than a quarter.

    Parameters
    ----------
    stream, parts
        What is spread, over how many tasks.
    most
        Keys that may be hot at once, of `MOST_KEYS`.
    """

    def __init__(self, stream: DataFrame, parts: int, most: int = MOST_KEYS) -> None:
        context = stream.sparkSession.sparkContext
        jvm: Any = context._jvm
        self.hot: frozenset[int] = frozenset()
        self.told: Accumulator[list[Told]] = context.accumulator([], _Telling(self))
        self._parts, self._most = parts, min(most, MOST_KEYS)
        self._by_part: dict[int, Told] = {}
        self._changing = threading.Lock()
        # of longs, as an array of bytes would be copied on its way to the JVM; they are read as the bytes of a text
        self._words: Any = context._gateway.new_array(jvm.long, _WORDS)  # type: ignore[union-attr]
        self._write()
        unsafe = jvm.org.apache.spark.unsafe
        text = unsafe.types.UTF8String.fromAddress(self._words, unsafe.Platform.LONG_ARRAY_OFFSET, 8 * _WORDS)
        constant = Column(jvm.org.apache.spark.sql.functions.lit(text))
        self._column = F.split(constant, ",").try_cast("array<bigint>")

    @staticmethod
    def possible(stream: DataFrame) -> bool:
        """Return whether a stream can have any.

        The JVM of its session is at hand, its plan is worked out for each micro-batch, with constants folded, and rows
        are the same when a task that sends them runs again: a row that went elsewhere then would be lost, or be twice.
        """
        if not (stream.isStreaming and hasattr(stream.sparkSession, "_jsparkSession")):
            return False
        excluded = stream.sparkSession.conf.get("spark.sql.optimizer.excludedRules", "") or ""
        return "ConstantFolding" not in excluded and is_repeatable(stream)

    def part_of(self, stream: DataFrame, on: tuple[str, ...], codec: KeyCodec, home: Column) -> Column:
        """Return the part that each row of the `positional` stream goes to; ``home`` unless its key is hot."""
        key = key_hash(stream, on, codec)
        # of the row, not by turns: a task that runs again must send each row to where it went before
        hashed = [by_position(at) for at, part in enumerate(stream.schema) if isinstance(part.dataType, _HASHED)]
        anywhere = F.xxhash64(*hashed) if hashed else key
        spread = F.pmod(anywhere, F.lit(self._parts)).cast("int")
        return F.when(F.array_contains(self._column, key), spread).otherwise(home)

    def hear(self, told: Told) -> None:
        """Take notice of what a task tells."""
        with self._changing:
            self._by_part[told.part] = told
            rows, counts = 0, Counter[int]()
            for each in self._by_part.values():
                rows += each.rows
                counts.update(each.counts)
            share = rows / len(self._by_part)
            limits = {key: share / 4 if key in self.hot else share / 2 for key in counts}
            found = [key for key, count in counts.most_common() if count > limits[key]]
            hot = frozenset(found[: self._most])
            if hot != self.hot:
                self.hot = hot
                self._write()

    def _write(self) -> None:
        text = ",".join(map(str, sorted(self.hot))).ljust(8 * _WORDS)
        for at, word in enumerate(np.frombuffer(text.encode(), np.int64).tolist()):
            self._words[at] = word


class _Telling(AccumulatorParam[list[Told]]):
    """Collects what tasks tell, and gives it to who listens on the driver."""

    def __init__(self, listener: HotKeys | None) -> None:
        self._listener = listener

    def zero(self, value: list[Told]) -> list[Told]:
        return []

    def addInPlace(self, value1: list[Told], value2: list[Told]) -> list[Told]:
        if self._listener is None:
            return value1 + value2
        for told in value2:
            self._listener.hear(told)
        return []

    def __reduce__(self) -> tuple[Any, ...]:
        return _Telling, (None,)


class KeySample:
    """Keys of a task's first rows, by which those are found that have many."""

    def __init__(self, codec: KeyCodec, on: tuple[str, ...], parts: int, first: pa.RecordBatch) -> None:
        step = -(-first.num_rows // _SAMPLED)
        some = first.take(pa.array(np.arange(0, first.num_rows, step)))
        keys, valid = codec.encode(some, on)
        found, counts = np.unique(codec.hashes(keys[valid]), return_counts=True)
        many = counts > max(8, some.num_rows // (4 * parts))
        self._shares = dict(zip(found[many].tolist(), (counts[many] / some.num_rows).tolist(), strict=True))
        if len(on) == 1 and (nulls := 1 - np.count_nonzero(valid) / some.num_rows) > 1 / (4 * parts):
            self._shares[SPARK_SEED] = nulls

    def told(self, part: int, rows: int) -> Told:
        """Return what a task has to tell that had so many rows."""
        return Told(part, rows, {key: int(share * rows) for key, share in self._shares.items()})
