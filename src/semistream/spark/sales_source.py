"""``spark.readStream.format("semistream-sales")``: a bursty stream of sales whose products follow Zipf's law.

A source to try pipelines, for benchmarks and for tests. Sale number ``n`` is a pure function of the options and of
``n`` (`semistream.workloads.SalesStream`), and an offset is such a number. So a replayed micro-batch contains the same
rows on any machine, and the whole stream can also be read as a batch DataFrame for comparison.

::

    driver                                      tasks
    how many sales have arrived? ──────────▶    sales [start, end) in parts, as Arrow batches
    offset {"sale": n}, in the checkpoint
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from semistream.core.errors import SemistreamError
from semistream.spark.features import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    stream_reader,
)
from semistream.spark.relations.relation_source import RelationDataSource
from semistream.spark.relations.types import spark_type
from semistream.workloads import ArrivalCursor, Arrivals, BurstyArrivals, ConstantArrivals, SalesStream, ZipfKeys

__all__ = ["SalesDataSource", "SalesOptions", "register_sources"]

_PART_ROWS = 32_768
"""Minimum number of sales per task."""
_LONG = 2**62


class SourceOptionError(SemistreamError, ValueError):
    """An unknown option of a source, or an invalid value."""


def register_sources(spark: SparkSession) -> None:
    """Register ``format("semistream")``, a relation, and ``format("semistream-sales")`` with a session.

    `semistream.spark.session` does this automatically. It also sets ``spark.sql.python.filterPushdown.enabled``: Spark
    refuses data sources that use the conditions of a query without it. See also `semistream.register`.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RelationDataSource)
    spark.dataSource.register(SalesDataSource)


class SalesDataSource(DataSource):
    """Sales as a streaming source, or as a table.

    Options, all optional; names ignore case:

    ``size``, ``exponent``, ``shape``
        Number of distinct products, their skew (0 uniform, 1 as in the papers), and the position of frequent products
        in key order: ``random``, or ``noperm`` for first. As in `semistream.workloads.ZipfKeys`.
    ``rows``
        Total number of sales; without it the stream is endless. Required for a batch DataFrame and ``availableNow``.
    ``rowsPerSecond``
        Average arrival rate of sales, in bursts of milliseconds to seconds. Time stands still while no query runs.
        Without it all ``rows`` are available from the start. It determines ``event_time`` in either case.
    ``rowsPerBatch``
        Maximum number of rows in a micro-batch. Before Spark 4.2, the trigger ``availableNow`` then reads one
        micro-batch per run.
    ``arrivals``
        ``bursty`` or ``constant``.
    ``absentShare``, ``nullShare``
        Share of sales whose product does not exist, and share of sales with a NULL key.
    ``key``, ``layout``, ``stores``, ``seed``
        As in `semistream.workloads.SalesStream`.
    ``partitions``
        Maximum number of tasks of a micro-batch; by default the number of cores.

    Examples
    --------
    >>> register_sources(spark)                                                          # doctest: +SKIP
    >>> sales = (spark.readStream.format("semistream-sales")
    ...          .options(size=1_000_000, exponent=1.0, rowsPerSecond=20_000, seed=7).load())  # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.parsed = SalesOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return "semistream-sales"

    def schema(self) -> st.StructType:
        fields = self.parsed.stream.schema
        return st.StructType([st.StructField(field.name, spark_type(field.name, field.type)) for field in fields])

    def reader(self, schema: st.StructType) -> DataSourceReader:
        return _TableReader(self.parsed)

    def streamReader(self, schema: st.StructType) -> DataSourceStreamReader:
        return stream_reader(_StreamReader(self.parsed))


@dataclass(frozen=True)
class SalesOptions:
    """The options, read and checked."""

    stream: SalesStream
    rows: int | None
    paced: bool
    batch_rows: int | None
    partitions: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SalesOptions:
        """Read options from Spark, which are texts. Raise `SourceOptionError` for invalid ones."""
        given = {name.lower(): text for name, text in options.items() if name.lower() != "path"}
        unknown = sorted(set(given) - set(_DEFAULTS))
        if unknown:
            raise SourceOptionError(
                f"semistream-sales has no option {unknown[0]!r}; it has {', '.join(_DEFAULTS)} (case is ignored)"
            )
        values: dict[str, Any] = {}
        for name, (default, read) in _DEFAULTS.items():
            try:
                values[name] = read(given[name]) if name in given else default
            except ValueError:
                raise SourceOptionError(f"option {name} of semistream-sales cannot be {given[name]!r}") from None
        return cls._of(values)

    @classmethod
    def _of(cls, values: dict[str, Any]) -> SalesOptions:
        rows, pace, seed = values["rows"], values["rowspersecond"], values["seed"]
        if rows is None and pace is None and values["rowsperbatch"] is None:
            raise SourceOptionError(
                "semistream-sales without rows, rowsPerSecond and rowsPerBatch would be an endless micro-batch; give "
                "one of them"
            )
        try:
            rate = 10_000.0 if pace is None else pace
            arrivals = BurstyArrivals(rate, seed=seed) if values["arrivals"] == "bursty" else ConstantArrivals(rate)
            keys = ZipfKeys(values["size"], values["exponent"], values["shape"], seed)
            stream = SalesStream(
                keys, rows, arrivals, absent_share=values["absentshare"], null_share=values["nullshare"],
                layout=values["layout"], key=values["key"], stores=values["stores"], seed=seed,
            )  # fmt: skip
        except ValueError as error:
            raise SourceOptionError(f"semistream-sales: {error}") from None
        return cls(stream, rows, pace is not None, values["rowsperbatch"], values["partitions"])


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return read


_DEFAULTS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "size": (1_000_000, _positive),
    "exponent": (1.0, float),
    "shape": ("random", _one_of("random", "noperm")),
    "rows": (None, _positive),
    "rowspersecond": (None, float),
    "rowsperbatch": (None, _positive),
    "arrivals": ("bursty", _one_of("bursty", "constant")),
    "absentshare": (0.0, float),
    "nullshare": (0.0, float),
    "key": ("product_id", str),
    "layout": ("sales", _one_of("sales", "minimal")),
    "stores": (500, _positive),
    "seed": (0, int),
    "partitions": (os.cpu_count() or 1, _positive),
}


@dataclass
class _Sales(InputPartition):
    """Sales ``start`` to before ``stop``."""

    start: int
    stop: int


def _parts(start: int, stop: int, most: int) -> list[_Sales]:
    count = min(most, math.ceil((stop - start) / _PART_ROWS))
    edges = [start + (stop - start) * part // count for part in range(count + 1)] if count else []
    return [_Sales(low, high) for low, high in itertools.pairwise(edges)]


@lru_cache(maxsize=4)
def _kept_cursors(arrivals: Arrivals) -> list[ArrivalCursor]:
    """Return the cursors that this process keeps; the next micro-batch begins at or after one of them."""
    return []


def _read(stream: SalesStream, part: _Sales) -> Iterator[pa.RecordBatch]:
    kept = _kept_cursors(stream.arrivals)
    behind = [cursor for cursor in kept if cursor.position <= part.start]
    cursor = max(behind, key=lambda cursor: cursor.position) if behind else stream.arrivals.cursor()
    if behind:
        kept.remove(cursor)
    yield from stream.between(part.start, part.stop, cursor)
    kept[:] = [cursor, *kept][:4]


class _TableReader(DataSourceReader):
    """All sales as a batch DataFrame."""

    def __init__(self, options: SalesOptions) -> None:
        self.options = options

    def partitions(self) -> list[_Sales]:
        if self.options.rows is None:
            raise SourceOptionError("semistream-sales is endless and cannot be read as a table; give the option rows")
        return _parts(0, self.options.rows, self.options.partitions)

    def read(self, partition: _Sales) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return _read(self.options.stream, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Sales as they arrive. Spark keeps one reader in a process of the driver while the query runs."""

    def __init__(self, options: SalesOptions) -> None:
        self.options = options
        self.everything = False
        self.clock: _Clock | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"sale": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        if self.options.rows is None:
            raise SourceOptionError(
                "semistream-sales is endless, so the trigger availableNow would never end; give the option rows, or "
                "another trigger"
            )
        self.everything = True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.batch_rows is None else ReadMaxRows(self.options.batch_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit, *, at_once: bool = False) -> dict[str, int]:
        begin = start["sale"]
        end = self._available(begin, at_once)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        elif end >= _LONG:  # a trigger without a limit on an endless stream
            end = begin + (self.options.batch_rows or 0)
        return {"sale": end}

    def _available(self, begin: int, at_once: bool) -> int:
        rows = _LONG if self.options.rows is None else max(self.options.rows, begin)
        if at_once or self.everything or not self.options.paced:
            return rows
        if self.clock is None:
            self.clock = _Clock(self.options.stream.arrivals, begin)
        return min(rows, max(begin, self.clock.arrived()))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Sales]:
        return _parts(start["sale"], end["sale"], self.options.partitions)

    def read(self, partition: _Sales) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return _read(self.options.stream, partition)


class _Clock:
    """Counts the sales that have arrived; time continues from the arrival of the last sale that was read before."""

    def __init__(self, arrivals: Arrivals, begin: int) -> None:
        self._cursor = arrivals.cursor()
        self._cursor.skip(max(0, begin - 1))
        last = float(self._cursor.take(1)[0]) if begin else 0.0
        self._origin = time.monotonic() - last

    def arrived(self) -> int:
        self._cursor.until(time.monotonic() - self._origin)
        return self._cursor.position
