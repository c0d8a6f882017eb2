"""Workload generators: keys, arrivals, streams and master tables, seeded, vectorised, Arrow out.

========================  ============================================================================
keys of a stream          `UniformKeys`, `ZipfKeys`, `LocalityKeys`, `ShiftingKeys`
arrival times             `ConstantArrivals`, `PoissonArrivals`, `BurstyArrivals`
tables as Arrow batches   `SalesStream`, `MasterTable`, `WeatherReports`, `TpchTable`
both sides of a join      `Workload`, and the papers' own in `semistream.stream.workload`
========================  ============================================================================

Everything is a small, frozen, picklable description; what it describes is made on demand and depends on the
description alone, not on how much of it is asked for at a time.

Example
-------
>>> stream = SalesStream(ZipfKeys(size=1_000_000), rows=1000, arrivals=BurstyArrivals(rate=5000.0), seed=1)
>>> master = MasterTable(rows=1_000_000, seed=1)
>>> next(stream.batches()).num_rows, master.batch(0, 10).num_rows
(1000, 10)
"""

from semistream.stream.arrivals import ArrivalCursor, Arrivals, ConstantArrivals, PoissonArrivals
from semistream.stream.bursty import BurstyArrivals
from semistream.stream.key_space import KeySpace
from semistream.stream.keys import KeySource, UniformKeys, ZipfKeys
from semistream.stream.locality import LocalityKeys
from semistream.stream.master import MasterTable
from semistream.stream.permutation import Permutation
from semistream.stream.sales import SalesStream
from semistream.stream.shifting import ShiftingKeys
from semistream.stream.source import TableSource
from semistream.stream.tpch import TpchTable
from semistream.stream.weather import WeatherReports
from semistream.stream.workload import Workload
from semistream.stream.zipf import ZipfLaw, harmonic

__all__ = [
    "ArrivalCursor",
    "Arrivals",
    "BurstyArrivals",
    "ConstantArrivals",
    "KeySource",
    "KeySpace",
    "LocalityKeys",
    "MasterTable",
    "Permutation",
    "PoissonArrivals",
    "SalesStream",
    "ShiftingKeys",
    "TableSource",
    "TpchTable",
    "UniformKeys",
    "WeatherReports",
    "Workload",
    "ZipfKeys",
    "ZipfLaw",
    "harmonic",
]
