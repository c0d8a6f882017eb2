"""The demo's data: sales, and their products, customers, stores and dates.

::

    products ┐
    customers├──▶ relations (pages on disk)
    stores   ┘          │
    sales ──▶ three streaming joins, a few per cent of R in memory ──▶ Parquet warehouse ──▶ queries, with dates

Sales arrive in bursts, and their products and customers follow Zipf's law. A file contains the sales of one interval of
time, and is one micro-batch. Some sales have a product that R does not have, or a NULL, and are loaded with NULLs.

The steps are functions of a `DemoPlan` and a directory, and print nothing. ``semistream demo`` shows their progress,
and tests run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Ints
from semistream.joins import create
from semistream.relation.relation import Relation
from semistream.spark.joining.join_plan import ALGORITHM
from semistream.workloads import BurstyArrivals, MasterTable, SalesStream, ZipfKeys

__all__ = ["ALGORITHM", "DIMENSIONS", "DemoPlan", "rehearse", "sold", "write_masters", "write_sales"]

DIMENSIONS = {"products": "product_id", "customers": "customer_id", "stores": "store_id"}
"""The tables that sales are joined with, and their keys."""

_MASTER_FILE_ROWS = 250_000
_MOST_CUSTOMERS = 100_000
_SALES_PER_SECOND = 20_000.0
_FIRST_DAY = date(2026, 6, 1)
_DAYS = 28
_REGIONS = ("north", "east", "south", "west", "overseas")
_SEGMENTS = ("household", "trade", "student", "public", "export", "staff")
_COUNTRIES = ("Germany", "France", "Italy", "Poland", "Spain", "Austria", "Denmark", "Norway")


@dataclass(frozen=True)
class DemoPlan:
    """Sizes of the demo's data, and parameters of its joins.

    Parameters
    ----------
    rows, sales
        Products in the master table, and sales in the stream. There is one customer per five products, up to 100,000.
        Customers and stores are small enough for Spark to broadcast; products are not.
    batches
        Number of intervals of time, one per micro-batch. With fewer, micro-batches are larger, and more sales share a
        read: a page read of ours, or Spark's read of all products, which it shuffles for every micro-batch.
    shards
        Parts of R, each joined by its own task: one per core, at most eight.
    memory, algorithm
        As in `semistream.join`, for the products; customers and stores may be held whole, as Spark does.
    exponent
        Skew of the products sold.
    """

    rows: int = 2_000_000
    sales: int = 60_000
    batches: int = 4
    shards: int = field(default_factory=lambda: min(8, max(2, os.cpu_count() or 2)))
    memory: str = "5%"
    algorithm: str = ALGORITHM
    exponent: float = 1.0
    seed: int = 7
    stores: int = 500

    def __post_init__(self) -> None:
        for name in ("rows", "sales", "batches", "shards"):
            check_at_least(1, **{name: getattr(self, name)})

    @property
    def customers(self) -> int:
        """Number of customers."""
        return max(1, min(_MOST_CUSTOMERS, self.rows // 5))

    @property
    def master(self) -> MasterTable:
        """The table of products, in random order."""
        return MasterTable(self.rows, order="shuffled", seed=self.seed)

    @property
    def stream(self) -> SalesStream:
        """The sales. Popular products are anywhere in R; one sale in fifty has a product that R does not have."""
        return SalesStream(
            ZipfKeys(self.rows, self.exponent, "random", self.seed),
            self.sales,
            BurstyArrivals(_SALES_PER_SECOND, seed=self.seed),
            absent_share=0.02,
            null_share=0.005,
            stores=self.stores,
            seed=self.seed,
        )


def rehearse(plan: DemoPlan, directory: Path) -> None:
    """Build and join a few rows here, without Spark.

    Every kernel is compiled on its first use and cached on disk. Doing this here avoids that all Python workers of
    Spark compile at the same time.
    """
    small = replace(plan, rows=1000, sales=1000)
    with Relation.build(small.master.table(), directory / "rehearsal", key="product_id", shards=2) as relation:
        rehearsal = create(plan.algorithm, relation, on="product_id", how="left", memory="16MB")
        for _ in rehearsal.process(small.stream.batches()):
            pass


def write_masters(plan: DemoPlan, directory: Path, wrote: Callable[[int], None] = lambda _: None) -> None:
    """Write products, customers, stores and dates as Parquet files, each table in a directory with its name."""
    for name in (*DIMENSIONS, "dates"):
        (directory / name).mkdir()
    for number, start in enumerate(range(0, plan.rows, _MASTER_FILE_ROWS)):
        batch = plan.master.batch(start, min(_MASTER_FILE_ROWS, plan.rows - start))
        pq.write_table(pa.Table.from_batches([batch]), directory / "products" / f"part-{number:05d}.parquet")
        wrote(batch.num_rows)
    for name, table in (("customers", _customers(plan)), ("stores", _stores(plan)), ("dates", _dates())):
        pq.write_table(table, directory / name / "part-00000.parquet")


def _customers(plan: DemoPlan) -> pa.Table:
    numbers = np.random.default_rng(plan.seed).permutation(plan.customers)
    return pa.table(
        {
            "customer_id": numbers,
            "segment": pa.array(_SEGMENTS).take(pa.array(_unevenly(numbers, len(_SEGMENTS)))),
            "country": pa.array(_COUNTRIES).take(pa.array(_unevenly(numbers // 7, len(_COUNTRIES)))),
            "email": pa.array([f"customer.{number}@example.com" for number in numbers.tolist()]),
        }
    )


def _unevenly(numbers: Ints, count: int) -> Ints:
    """Map each number to one of ``count`` numbers, lower ones more often than higher ones."""
    shares = (numbers * 2_654_435_761 % 10_007) / 10_007
    return np.minimum((shares**1.6 * count).astype(np.int64), count - 1)


def _stores(plan: DemoPlan) -> pa.Table:
    numbers = np.arange(plan.stores)
    regions = pa.array(_REGIONS).take(pa.array(_unevenly(numbers * 31, len(_REGIONS))))
    return pa.table({"store_id": pa.array(numbers, pa.int32()), "region": regions})


def _dates() -> pa.Table:
    days = [_FIRST_DAY + timedelta(days=number) for number in range(_DAYS)]
    return pa.table(
        {
            "date_id": pa.array([_date_id(day) for day in days], pa.int32()),
            "day": pa.array(days),
            "weekday": [f"{day:%A}" for day in days],
            "week": pa.array([day.isocalendar().week for day in days], pa.int32()),
        }
    )


def _date_id(day: date) -> int:
    return day.year * 10_000 + day.month * 100 + day.day


def sold(plan: DemoPlan, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return sales with their customers and dates; the first sale is number ``first``."""
    numbers = np.arange(first, first + batch.num_rows)
    customers = ZipfKeys(plan.customers, 0.7, "random", plan.seed + 1).keys(first, batch.num_rows)
    days = np.array([_date_id(_FIRST_DAY + timedelta(days=day)) for day in range(_DAYS)], np.int32)
    dates = days[numbers * _DAYS // plan.sales % _DAYS]
    batch = batch.append_column("customer_id", pa.array(customers))
    return batch.append_column("date_id", pa.array(dates))


def write_sales(plan: DemoPlan, directory: Path, wrote: Callable[[int], None] = lambda _: None) -> list[int]:
    """Write the sales to ``directory/sales``, one file per interval of time; return the rows of each."""
    (directory / "sales").mkdir()
    stream = plan.stream
    last = float(stream.arrivals.cursor().take(plan.sales)[-1])
    begin = round(stream.epoch.timestamp() * 1e6)
    edges = begin + np.linspace(0, last * 1e6, plan.batches + 1)[1:-1].astype(np.int64)
    waiting: list[pa.RecordBatch] = []
    rows: list[int] = []

    def close_file() -> None:
        if waiting:
            table = pa.Table.from_batches(waiting)
            pq.write_table(table, directory / "sales" / f"part-{len(rows):05d}.parquet")
            rows.append(table.num_rows)
            waiting.clear()

    stretch, first = 0, 0
    for bare in stream.batches():
        batch = sold(plan, bare, first)
        first += batch.num_rows
        times = pc.cast(batch["event_time"], pa.int64()).to_numpy()
        cuts = np.searchsorted(times, edges[stretch:])
        at = 0
        for cut in cuts[cuts < times.size]:
            waiting.append(batch.slice(at, int(cut) - at))
            close_file()
            stretch, at = stretch + 1, int(cut)
        waiting.append(batch.slice(at))
        wrote(batch.num_rows)
    close_file()
    return rows
