"""The demo that goes on until it is stopped: sales are made as they come, and a person turns the knobs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.errors import SemistreamError
from semistream.dashboard.server import Dashboard
from semistream.dashboard.web import Control
from semistream.relation.updates import upsert
from semistream.spark.demo.star_join import OURS, THEIRS, enriched, plain, start_into, stream_of_sales
from semistream.spark.demo.star_schema import DemoPlan, sold
from semistream.spark.demo.warehouse_questions import ask
from semistream.workloads import ConstantArrivals, ZipfKeys

__all__ = ["LiveDemo"]

_EVERY = "1 second"
_BURST_SECONDS = 10.0
_UPDATED = 1000
_TOO_EARLY = (
    "Spark's own stream-static joins run beside ours, on the same stream and the same cores. They are compared when "
    "both are past their first micro-batch, in which everything is compiled."
)


class LiveDemo:
    """A feeder of sales, our query, perhaps Spark's own beside it, and what a person may do to them.

    Parameters
    ----------
    spark, plan, directory
        Where the relations of a plan have been built.
    rate
        Sales a second.
    """

    def __init__(self, spark: SparkSession, plan: DemoPlan, directory: Path, rate: int = 10_000) -> None:
        self._spark, self._plan, self._directory, self._rate = spark, plan, directory, rate
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._query: StreamingQuery | None = None
        self._sold = 0
        self._burst, self._burst_until = 1.0, 0.0
        self._updates = 0
        self._page: Dashboard | None = None

    def controls(self) -> list[Control]:
        """Return the knobs, for the page."""
        share = float(self._plan.memory.removesuffix("%")) if self._plan.memory.endswith("%") else 5.0
        return [
            Control("skew", "Skew of the products", self._skew, "Zipf's exponent: at 0 all sell alike",
                    "range", 0.0, 1.6, 0.1, self._plan.exponent),
            Control("burst", "Burst", self._start_burst, f"So many times more sales for {_BURST_SECONDS:.0f} seconds",
                    "range", 1.0, 10.0, 1.0, 1.0, " ×", _BURST_SECONDS),
            Control("memory", "Memory", self._memory, "The query stops, and goes on from its checkpoint with this",
                    "range", 1.0, 50.0, 1.0, share, " % of R"),
            Control("hot", "Change the hot keys", self._change_hot, "Other products come into fashion"),
            Control("upsert", f"Update {_UPDATED:,} products", self._upsert,
                    "A new version of R, which the next micro-batch reads"),
            Control("kill", "Kill a Python worker", self._kill, "Spark does its task again; no row is lost"),
            Control("ask", "Ask the warehouse", self._ask, "DuckDB answers from what has been loaded so far"),
        ]  # fmt: skip

    def run(self, page: Dashboard | None, *, compare: bool = False) -> None:
        """Feed and join until interrupted."""
        self._page = page
        (self._directory / "sales").mkdir(exist_ok=True)
        self._feed_once()
        feeder = threading.Thread(target=self._feed, name="semistream-demo-feeder", daemon=True)
        feeder.start()
        self._start()
        other = None
        if compare:
            rows = plain(stream_of_sales(self._spark, self._directory, None), self._directory)
            other = start_into(rows, self._directory, THEIRS, _EVERY)
            if page is not None:
                page.tell("ratio", {"ours": None, "theirs": None, "note": _TOO_EARLY})
        try:
            while not self._ended.wait(2.0):
                self._raise_failure()
                if page is not None and other is not None:
                    self._tell_ratio(page, other)
        finally:
            self.stop()

    def stop(self) -> None:
        """End feeder and queries."""
        self._ended.set()
        for query in self._spark.streams.active:
            query.stop()

    def _start(self) -> None:
        rows = enriched(stream_of_sales(self._spark, self._directory, None), self._plan, self._directory)
        self._query = start_into(rows, self._directory, OURS, _EVERY)

    def _raise_failure(self) -> None:
        with self._lock:
            failed = None if self._query is None else self._query.exception()
        if failed is not None:
            raise failed

    def _tell_ratio(self, page: Dashboard, other: StreamingQuery) -> None:
        """Tell how soon sales are in the warehouse: both queries keep up with the stream, one in larger batches."""
        query = self._query
        ours, theirs = (None if one is None else _latency(one) for one in (query, other))
        if ours and theirs:
            sooner = ours <= theirs
            note = (
                f"{'sooner' if sooner else 'later'} in the warehouse than by Spark's own stream-static joins, which "
                "run beside ours on the same stream and the same cores; medians of the last micro-batches"
            )
            if not sooner and self._plan.rows < DemoPlan.rows:
                note += (
                    f". Spark broadcasts {self._plan.rows:,} products; give --rows {DemoPlan.rows}, which it does not"
                )
            page.tell("ratio", {"ours": ours, "theirs": theirs, "note": note, "seconds": True})

    # -- the stream ---------------------------------------------------------------------------------------

    def _feed(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due += 1.0
            self._feed_once()

    def _feed_once(self) -> None:
        """Write the sales of a second: to a hidden file first, for the query takes what it sees."""
        with self._lock:
            plan, first = self._plan, self._sold
            rows = int(self._rate * (self._burst if time.monotonic() < self._burst_until else 1.0))
            self._sold += rows
        stream = replace(plan.stream, rows=None, arrivals=ConstantArrivals(self._rate))
        table = pa.Table.from_batches(
            [sold(plan, batch, first) for batch in stream.between(first, first + rows, stream.arrivals.cursor())]
        )
        folder = self._directory / "sales"
        hidden = folder / f".{first:012d}.parquet"
        pq.write_table(table, hidden)
        os.replace(hidden, folder / f"sales-{first:012d}.parquet")

    # -- knobs --------------------------------------------------------------------------------------------

    def _skew(self, value: float | None) -> str:
        assert value is not None
        with self._lock:
            self._plan = replace(self._plan, exponent=value)
        return f"Sales follow Zipf's law with exponent {value:g} now."

    def _start_burst(self, value: float | None) -> str:
        assert value is not None
        with self._lock:
            self._burst, self._burst_until = value, time.monotonic() + _BURST_SECONDS
        return f"{self._rate * value:,.0f} sales a second for {_BURST_SECONDS:.0f} seconds."

    def _memory(self, value: float | None) -> str:
        assert value is not None
        with self._lock:
            self._plan, before = replace(self._plan, memory=f"{value:g}%"), self._plan
            if self._query is not None:
                self._query.stop()
            try:
                self._start()
            except SemistreamError:
                self._plan = before
                self._start()
                raise
        return f"The query went on from its checkpoint, with {value:g} % of R as its memory."

    def _change_hot(self, _: float | None) -> str:
        with self._lock:
            self._plan = replace(self._plan, seed=self._plan.seed + 1)
        return "Other products are in fashion now."

    def _upsert(self, _: float | None) -> str:
        path = self._directory / "relations" / "products"
        with self._lock:
            self._updates += 1
            hot = ZipfKeys(self._plan.rows, self._plan.exponent, "random", self._plan.seed)
        keys = pc.unique(pa.array(hot.keys(0, 4 * _UPDATED))).slice(0, _UPDATED)
        table = pq.read_table(self._directory / "products", filters=pc.field("product_id").isin(keys))
        names = pc.binary_join_element_wise(table["name"], f"({self._updates})", " ")
        version = upsert(path, table.set_column(table.schema.get_field_index("name"), "name", names))
        return f"{table.num_rows:,} of the products in fashion have new names: version {version} of R."

    def _ask(self, _: float | None) -> str:
        answers = ask(self._directory)
        if self._page is not None:
            self._page.tell("answers", [{"question": one.question, "rows": one.rows} for one in answers])
        return "The warehouse has answered, below the charts."

    def _kill(self, _: float | None) -> str:
        for worker in _workers():
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return f"Python worker {worker} is dead. Long live its successor."
        return "No Python worker is at work right now; try again."


def _latency(query: StreamingQuery) -> float | None:
    """Return the seconds that a micro-batch takes, the median of the last ones; the first pays for compiling."""
    done = [part["durationMs"]["triggerExecution"] for part in query.recentProgress if part["numInputRows"]][1:]
    return median(done[-15:]) / 1e3 if done else None


def _workers() -> Iterator[int]:
    """Yield the processes that Spark's daemon has forked for tasks of this driver, the youngest first."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                    daemons.add(int(entry.name))
            except (OSError, ValueError):
                continue  # it ended meanwhile
    for worker in sorted(daemons, reverse=True):
        above = parents.get(worker, 0)
        if above in daemons:
            while above not in (0, 1, os.getpid()):
                above = parents.get(above, 0)
            if above == os.getpid():
                yield worker
