"""Workloads: a stream, the master table it is joined with, and the columns to join them on.

A `Workload` is data. The functions here describe the papers' workloads, by default at the papers' sizes. No rows
are generated before batches are requested.

Example
-------
>>> workload = zipf(master_rows=10_000, stream_rows=1_000, exponent=1.0, shape="random", seed=1)
>>> workload.stream.table().num_rows, workload.master.table().num_rows
(1000, 10000)
>>> workload.stream_key, workload.master_key
('product_id', 'product_id')
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from semistream.workloads.arrivals import Arrivals, ConstantArrivals
from semistream.workloads.keys.key_source import Shape, ZipfKeys
from semistream.workloads.keys.key_space import KeySpace
from semistream.workloads.master_table import MasterTable
from semistream.workloads.sales import SalesStream
from semistream.workloads.table_source import TableSource
from semistream_lab.workloads.locality import LocalityKeys
from semistream_lab.workloads.tpch import TpchTable
from semistream_lab.workloads.weather import WeatherReports

__all__ = ["Workload", "locality", "one_to_many", "tpch_lineitem", "tpch_orders", "weather", "zipf"]

_CONSTANT = ConstantArrivals(rate=10_000.0)


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream and the master table to join it with.

    Parameters
    ----------
    stream_key, master_key
        The columns to join on, both of the same type.
    arrivals
        Arrival times of stream tuples, for simulations and for pacing.
    """

    name: str
    stream: TableSource
    master: TableSource
    stream_key: str
    master_key: str
    arrivals: Arrivals = _CONSTANT


def zipf(
    master_rows: int = 100_000_000,
    stream_rows: int | None = None,
    exponent: float = 1.0,
    shape: Shape = "noperm",
    *,
    row_bytes: int = 120,
    absent: float = 0.0,
    arrivals: Arrivals = _CONSTANT,
    seed: int = 0,
) -> Workload:
    """Return the workload of all five papers: unique keys in R, a Zipf stream. ``exponent`` 0 is uniform.

    ``absent`` is the share of the stream without a match. R's keys are then even numbers, and odd ones are absent.
    """
    made = _minimal("zipf", ZipfKeys(master_rows, exponent, shape, seed), 1, stream_rows, row_bytes, arrivals, seed)
    if not absent:
        return made
    assert isinstance(made.stream, SalesStream)
    assert isinstance(made.master, MasterTable)
    space = KeySpace(master_rows, stride=2)
    stream = replace(made.stream, key_space=space, absent_share=absent)
    return replace(made, stream=stream, master=replace(made.master, key_space=space))


def one_to_many(
    rows_per_key: int,
    master_rows: int = 80_000_000,
    stream_rows: int | None = 20_000_000,
    exponent: float = 1.0,
    *,
    row_bytes: int = 128,
    arrivals: Arrivals = _CONSTANT,
    seed: int = 0,
) -> Workload:
    """Return a workload with ``rows_per_key`` rows per key in an R of the same size (SSIJ §VI-A, "1:K joins", Fig. 7).

    >>> one_to_many(400).master.key_count
    200000
    """
    keys = ZipfKeys(master_rows // rows_per_key, exponent, "noperm", seed)
    return _minimal("one-to-many", keys, rows_per_key, stream_rows, row_bytes, arrivals, seed)


def locality(
    key_count: int = 5_000_000,
    stream_rows: int = 40_000_000,
    rows_per_key: int = 16,
    intervals: int = 20,
    *,
    row_bytes: int = 128,
    arrivals: Arrivals = _CONSTANT,
    seed: int = 0,
) -> Workload:
    """Return a workload with temporal locality (SSIJ §VI): the stream passes over R once, part by part.

    >>> locality().stream.keys.interval_rows
    2000000
    """
    keys = LocalityKeys(key_count, intervals, max(1, stream_rows // intervals), seed=seed)
    return _minimal("locality", keys, rows_per_key, stream_rows, row_bytes, arrivals, seed)


def tpch_orders(directory: str | Path, scale_factor: float = 100.0, stream_rows: int | None = None) -> Workload:
    """Orders as the stream, Customer as R (CMESHJOIN): keys without skew, and a third of R never requested."""
    return Workload(
        "tpch-orders",
        TpchTable("orders", scale_factor, directory, stream_rows),
        TpchTable("customer", scale_factor, directory),
        stream_key="o_custkey",
        master_key="c_custkey",
    )


def tpch_lineitem(directory: str | Path, scale_factor: float = 100.0, stream_rows: int | None = 10_000_000) -> Workload:
    """The first tuples of LineItem as the stream, Part as R (SSIJ §VI)."""
    return Workload(
        "tpch-lineitem",
        TpchTable("lineitem", scale_factor, directory, stream_rows),
        TpchTable("part", scale_factor, directory),
        stream_key="l_partkey",
        master_key="p_partkey",
    )


def weather(stream_rows: int = 6_000_000, master_rows: int = 20_000_000, *, seed: int = 0) -> Workload:
    """Synthetic cloud reports, joined by longitude, many to many; see `semistream_lab.workloads.weather`."""
    return Workload(
        "weather",
        WeatherReports(stream_rows, months=(12,), seed=seed),
        WeatherReports(master_rows, months=(4, 8), seed=seed),
        stream_key="longitude",
        master_key="longitude",
    )


def _minimal(
    name: str,
    keys: ZipfKeys | LocalityKeys,
    rows_per_key: int,
    stream_rows: int | None,
    row_bytes: int,
    arrivals: Arrivals,
    seed: int,
) -> Workload:
    """Tuples of the papers' sizes, all columns of fixed width."""
    master = MasterTable(keys.size * rows_per_key, rows_per_key, row_bytes, layout="minimal", seed=seed)
    stream = SalesStream(keys, stream_rows, arrivals, layout="minimal", seed=seed)
    return Workload(name, stream, master, stream.key, master.key, arrivals)
