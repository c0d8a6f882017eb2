"""Workload generators: keys, arrivals, streams and master tables. They are seeded and vectorised, and return Arrow.

========================  ============================================================================
keys of a stream          `UniformKeys`, `ZipfKeys`
arrival times             `ConstantArrivals`, `PoissonArrivals`, `BurstyArrivals`
tables as Arrow batches   `SalesStream`, `MasterTable`
========================  ============================================================================

Everything is a small, frozen, picklable description. The data is generated on demand and depends only on the
description, not on how much of it is requested at a time.

Example
-------
>>> stream = SalesStream(ZipfKeys(size=1_000_000), rows=1000, arrivals=BurstyArrivals(rate=5000.0), seed=1)
>>> master = MasterTable(rows=1_000_000, seed=1)
>>> next(stream.batches()).num_rows, master.batch(0, 10).num_rows
(1000, 10)
"""

from semistream.workloads.arrivals import ArrivalCursor, Arrivals, ConstantArrivals, PoissonArrivals
from semistream.workloads.bursty import BurstyArrivals
from semistream.workloads.keys.key_source import KeySource, UniformKeys, ZipfKeys
from semistream.workloads.keys.key_space import KeySpace
from semistream.workloads.keys.permutation import Permutation
from semistream.workloads.keys.zipf import ZipfLaw, harmonic
from semistream.workloads.master_table import MasterTable
from semistream.workloads.sales import SalesStream
from semistream.workloads.table_source import TableSource

__all__ = [
    "ArrivalCursor",
    "Arrivals",
    "BurstyArrivals",
    "ConstantArrivals",
    "KeySource",
    "KeySpace",
    "MasterTable",
    "Permutation",
    "PoissonArrivals",
    "SalesStream",
    "TableSource",
    "UniformKeys",
    "ZipfKeys",
    "ZipfLaw",
    "harmonic",
]
