"""The live demo: generates sales until it is stopped; the user changes load and settings on the page."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

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

__all__ = ["LiveDemo", "comparison"]

_EVERY = "1 second"
_BURST_SECONDS = 10.0
_UPDATED = 1000
_ENOUGH = 5
"""Batches of each query before the two are compared. The first batch does not count: it compiles code."""
_COMPARED = 15
"""Number of batches over which the median is compared."""


class LiveDemo:
    """A feeder of sales, our query, optionally Spark's own query, and controls for the user.

    Parameters
    ----------
    spark, plan, directory
        The session, the plan, and the directory with the plan's relations.
    rate
        Sales per second.
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
        """Return the controls of the page."""
        share = float(self._plan.memory.removesuffix("%")) if self._plan.memory.endswith("%") else 5.0
        return [
            Control("skew", "Skew", self._skew, "Zipf exponent of the products sold. 0: all sell equally often.",
                    "range", 0.0, 1.6, 0.1, self._plan.exponent),
            Control("burst", "Burst", self._start_burst, f"Multiplies the sales rate for {_BURST_SECONDS:.0f} seconds.",
                    "range", 1.0, 10.0, 1.0, 1.0, " ×", _BURST_SECONDS),
            Control("memory", "Memory", self._memory, "Restarts the query from its checkpoint with this budget.",
                    "range", 1.0, 50.0, 1.0, share, " % of R"),
            Control("hot", "Change the hot keys", self._change_hot, "Other products become the frequent ones."),
            Control("upsert", f"Update {_UPDATED:,} products", self._upsert,
                    "Commits a new version of R. The next batch uses it."),
            Control("kill", "Kill a Python worker", self._kill, "Spark runs its task again. No row is lost."),
            Control("ask", "Query the warehouse", self._ask, "DuckDB queries the rows loaded so far."),
        ]  # fmt: skip

    def run(self, page: Dashboard | None, *, compare: bool = False) -> None:
        """Generate sales and join them until interrupted."""
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
                page.tell("ratio", comparison([], [], self._plan.rows))
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
        query = self._query
        if query is not None:
            page.tell("ratio", comparison(_durations(query), _durations(other), self._plan.rows))

    # -- the stream ---------------------------------------------------------------------------------------

    def _feed(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due += 1.0
            self._feed_once()

    def _feed_once(self) -> None:
        """Write the sales of one second: to a hidden file first, because the query reads every visible file."""
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

    # -- controls -----------------------------------------------------------------------------------------

    def _skew(self, value: float | None) -> str:
        assert value is not None
        with self._lock:
            self._plan = replace(self._plan, exponent=value)
        return f"The Zipf exponent is {value:g} now."

    def _start_burst(self, value: float | None) -> str:
        assert value is not None
        with self._lock:
            self._burst, self._burst_until = value, time.monotonic() + _BURST_SECONDS
        return f"{self._rate * value:,.0f} sales per second for {_BURST_SECONDS:.0f} seconds."

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
        return f"The query was restarted from its checkpoint with {value:g} % of R as its memory."

    def _change_hot(self, _: float | None) -> str:
        with self._lock:
            self._plan = replace(self._plan, seed=self._plan.seed + 1)
        return "Other products are the frequent ones now."

    def _upsert(self, _: float | None) -> str:
        path = self._directory / "relations" / "products"
        with self._lock:
            self._updates += 1
            hot = ZipfKeys(self._plan.rows, self._plan.exponent, "random", self._plan.seed)
        keys = pc.unique(pa.array(hot.keys(0, 4 * _UPDATED))).slice(0, _UPDATED)
        table = pq.read_table(self._directory / "products", filters=pc.field("product_id").isin(keys))
        names = pc.binary_join_element_wise(table["name"], f"({self._updates})", " ")
        version = upsert(path, table.set_column(table.schema.get_field_index("name"), "name", names))
        return f"Committed version {version} of R: {table.num_rows:,} frequent products have new names."

    def _ask(self, _: float | None) -> str:
        answers = ask(self._directory)
        if self._page is not None:
            self._page.tell("answers", [{"question": one.question, "rows": one.rows} for one in answers])
        return "The results are below the charts."

    def _kill(self, _: float | None) -> str:
        for worker in _workers():
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return f"Killed Python worker {worker}. Spark starts another one."
        return "No Python worker is running at the moment. Try again."


def comparison(ours: Sequence[float], theirs: Sequence[float], products: int) -> dict[str, Any]:
    """Return the page's comparison of the batch durations of both queries, which process the same stream.

    >>> comparison([0.5] * 5, [2.0] * 5, 2_000_000)["ours"]
    0.5
    >>> comparison([0.5] * 5, [2.0], 2_000_000)["ours"] is None
    True
    """
    if min(len(ours), len(theirs)) < _ENOUGH:
        note = (
            "Spark's own stream-static joins run on the same stream and the same cores. The comparison starts when "
            f"each query has finished {_ENOUGH} batches after its first one. So far: "
            f"semistream {min(len(ours), _ENOUGH)}, Spark {min(len(theirs), _ENOUGH)}."
        )
        return {"ours": None, "theirs": None, "note": note}
    compared = min(len(ours), len(theirs), _COMPARED)
    medians = [median(durations[-compared:]) for durations in (ours, theirs)]
    note = (
        "Median batch duration compared with Spark's own stream-static joins, on the same stream and the same cores. "
        f"Last {compared} batches."
    )
    if medians[0] > medians[1] and products < DemoPlan.rows:
        note += f" Spark broadcasts {products:,} products. It does not broadcast more: try --rows {DemoPlan.rows}."
    return {"ours": medians[0], "theirs": medians[1], "note": note, "seconds": True}


def _durations(query: StreamingQuery) -> list[float]:
    """Return the seconds of each recent batch with rows; the first one is left out, because it compiles code."""
    done = [part["durationMs"]["triggerExecution"] / 1e3 for part in query.recentProgress if part["numInputRows"]]
    return done[1:]


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
