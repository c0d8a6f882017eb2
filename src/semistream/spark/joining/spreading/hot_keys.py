"""The driver finds hot keys, and Spark's shuffle spreads them.

::

    tasks of a micro-batch: a sample of their keys ──accumulator──▶ driver ──▶ hot keys ──▶ shuffle of the next ones

A row of a hot key goes to the task given by a hash of the whole row; any other row goes to the task of its shard. The
hot keys are a constant in the query's plan, whose bytes are changed here between micro-batches. Spark optimizes the
plan for each micro-batch and then folds the constant into an array. So one set of hot keys holds for a whole
micro-batch, including all retries of its tasks. Without access to the JVM, as on Spark Connect, nothing is spread.
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

__all__ = ["MOST_KEYS", "HotKeys", "KeyReport", "KeySample"]

MOST_KEYS = 32
"""Maximum number of keys to spread."""
_SAMPLED = 4096
_WORDS = MOST_KEYS * 21 // 8
"""Size of the constant: a hash and a comma have at most 21 characters, and a word has 8."""
_HASHED = (
    st.IntegralType, st.DecimalType, st.StringType, st.BinaryType, st.BooleanType, st.DateType, st.TimestampType,
    st.TimestampNTZType,
)  # fmt: skip
"""Types that the hash of a row uses. Floats are left out: the last bits of a sum may differ when it is recomputed."""


@dataclass(frozen=True)
class KeyReport:
    """What a task has seen: its part of the stream, its rows, and the rows of its most frequent keys, by key hash."""

    part: int
    rows: int
    counts: Mapping[int, int] = field(default_factory=dict)


class HotKeys:
    """The hot keys of a query, on the driver.

    A key becomes hot if it has more than half as many rows as an average task. It stays hot until it has fewer than a
    quarter as many.

    Parameters
    ----------
    stream, parts
        The stream to spread, and the number of tasks.
    most
        Keys that may be hot at the same time; at most `MOST_KEYS`.
    """

    def __init__(self, stream: DataFrame, parts: int, most: int = MOST_KEYS) -> None:
        context = stream.sparkSession.sparkContext
        jvm: Any = context._jvm
        self.hot: frozenset[int] = frozenset()
        self.reports: Accumulator[list[KeyReport]] = context.accumulator([], _ReportCollector(self))
        self._parts, self._most = parts, min(most, MOST_KEYS)
        self._by_part: dict[int, KeyReport] = {}
        self._changing = threading.Lock()
        # longs, because an array of bytes would be copied on its way to the JVM; they are read as the bytes of a text
        self._words: Any = context._gateway.new_array(jvm.long, _WORDS)  # type: ignore[union-attr]
        self._write()
        unsafe = jvm.org.apache.spark.unsafe
        text = unsafe.types.UTF8String.fromAddress(self._words, unsafe.Platform.LONG_ARRAY_OFFSET, 8 * _WORDS)
        constant = Column(jvm.org.apache.spark.sql.functions.lit(text))
        self._column = F.split(constant, ",").try_cast("array<bigint>")

    @staticmethod
    def possible(stream: DataFrame) -> bool:
        """Return whether hot keys of a stream can be spread.

        The JVM of its session must be accessible. Its plan must be optimized for each micro-batch, with constants
        folded. Its rows must be the same when a task runs again: else a row could go elsewhere, and be lost or
        duplicated.
        """
        if not (stream.isStreaming and hasattr(stream.sparkSession, "_jsparkSession")):
            return False
        excluded = stream.sparkSession.conf.get("spark.sql.optimizer.excludedRules", "") or ""
        return "ConstantFolding" not in excluded and is_repeatable(stream)

    def part_of(self, stream: DataFrame, on: tuple[str, ...], codec: KeyCodec, home: Column) -> Column:
        """Return the part that each row of the `positional` stream goes to; ``home`` unless its key is hot."""
        key = key_hash(stream, on, codec)
        # by a hash of the row, not round robin: a task that runs again must send each row to the same part
        hashed = [by_position(at) for at, part in enumerate(stream.schema) if isinstance(part.dataType, _HASHED)]
        anywhere = F.xxhash64(*hashed) if hashed else key
        spread = F.pmod(anywhere, F.lit(self._parts)).cast("int")
        return F.when(F.array_contains(self._column, key), spread).otherwise(home)

    def update(self, report: KeyReport) -> None:
        """Update the hot keys with the report of a task."""
        with self._changing:
            self._by_part[report.part] = report
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


class _ReportCollector(AccumulatorParam[list[KeyReport]]):
    """Collects the reports of tasks, and passes them to the listener on the driver."""

    def __init__(self, listener: HotKeys | None) -> None:
        self._listener = listener

    def zero(self, value: list[KeyReport]) -> list[KeyReport]:
        return []

    def addInPlace(self, value1: list[KeyReport], value2: list[KeyReport]) -> list[KeyReport]:
        if self._listener is None:
            return value1 + value2
        for report in value2:
            self._listener.update(report)
        return []

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReportCollector, (None,)


class KeySample:
    """A sample of a task's first rows, to find frequent keys."""

    def __init__(self, codec: KeyCodec, on: tuple[str, ...], parts: int, first: pa.RecordBatch) -> None:
        step = -(-first.num_rows // _SAMPLED)
        some = first.take(pa.array(np.arange(0, first.num_rows, step)))
        keys, valid = codec.encode(some, on)
        found, counts = np.unique(codec.hashes(keys[valid]), return_counts=True)
        many = counts > max(8, some.num_rows // (4 * parts))
        self._shares = dict(zip(found[many].tolist(), (counts[many] / some.num_rows).tolist(), strict=True))
        if len(on) == 1 and (nulls := 1 - np.count_nonzero(valid) / some.num_rows) > 1 / (4 * parts):
            self._shares[SPARK_SEED] = nulls

    def report(self, part: int, rows: int) -> KeyReport:
        """Return the report of a task that had ``rows`` rows."""
        return KeyReport(part, rows, {key: int(share * rows) for key, share in self._shares.items()})
