"""How fast the generators are on this machine: ``python -m semistream_lab.benchmarks.generators``.

Each generator makes batches for a while, after a first call that compiles it. Seconds are CPU time of this
thread, not wall-clock time, and the best of several rounds counts. Other work on the machine then has little effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count as count_from

from semistream.core.units import format_count
from semistream.workloads.arrivals import Arrivals, ConstantArrivals, PoissonArrivals
from semistream.workloads.bursty import BurstyArrivals
from semistream.workloads.keys.key_source import KeySource, Shape, UniformKeys, ZipfKeys
from semistream.workloads.master_table import MasterTable
from semistream.workloads.sales import SalesStream
from semistream.workloads.table_source import TableSource
from semistream_lab.workloads.locality import LocalityKeys
from semistream_lab.workloads.weather import WeatherReports

__all__ = ["measure", "rate_of"]

_ROWS = 1 << 18
_SHAPES: tuple[Shape, ...] = ("noperm", "random")


def rate_of(make_rows: Callable[[], int], seconds: float = 0.2, rounds: int = 3) -> float:
    """Return the rows per second of ``make_rows``, which makes some rows and returns their number.

    >>> rate_of(lambda: 10, seconds=0.001) > 0
    True
    """
    make_rows()
    best = 0.0
    for _ in range(rounds):
        made, begin = 0, time.thread_time()
        while (passed := time.thread_time() - begin) < seconds or not made:
            made += make_rows()
        best = max(best, made / passed)
    return best


def measure(seconds: float = 0.2) -> Iterator[tuple[str, float]]:
    """Yield the name of each generator and its rows per second."""
    sources: dict[str, KeySource] = {"uniform keys, 100 M": UniformKeys(100_000_000)}
    for size, exponent in ((1_000_000, 1.0), (100_000_000, 0.5), (100_000_000, 1.0), (1_000_000_000, 1.5)):
        for shape in _SHAPES:
            sources[f"Zipf {exponent} keys, {format_count(size)}, {shape}"] = ZipfKeys(size, exponent, shape)
    sources["locality keys, 5 M"] = LocalityKeys(5_000_000)
    for name, source in sources.items():
        yield name, rate_of(_keys(source), seconds)
    arrivals: dict[str, Arrivals] = {
        "constant arrivals": ConstantArrivals(1e6),
        "Poisson arrivals": PoissonArrivals(1e6),
        "bursty arrivals": BurstyArrivals(1e6),
    }
    for name, times in arrivals.items():
        yield name, rate_of(_times(times), seconds)
    tables: dict[str, TableSource] = {
        "sales stream": SalesStream(ZipfKeys(1_000_000), arrivals=BurstyArrivals(1e5)),
        "sales stream, 20 bytes": SalesStream(ZipfKeys(1_000_000), layout="minimal"),
        "master table": MasterTable(100_000_000),
        "master table, fixed width": MasterTable(100_000_000, layout="minimal"),
        "weather reports": WeatherReports(100_000_000),
    }
    for name, table in tables.items():
        yield name, rate_of(_rows(table), seconds)


def _keys(source: KeySource) -> Callable[[], int]:
    starts = count_from(0, _ROWS)
    return lambda: source.keys(next(starts), _ROWS).size


def _times(arrivals: Arrivals) -> Callable[[], int]:
    cursor = arrivals.cursor()
    return lambda: cursor.take(_ROWS).size


def _rows(table: TableSource) -> Callable[[], int]:
    batches = table.batches()
    return lambda: int(next(batches).num_rows)


def _main() -> None:
    for name, rate in measure():
        print(f"{name:36} {format_count(rate):>8} a second of one core")


if __name__ == "__main__":
    _main()
