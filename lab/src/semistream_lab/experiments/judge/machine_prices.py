"""Prices of the machines on which the papers ran, applied to the counts of a measurement.

A simulated measurement counts what a join does; its time is the disk's time plus a price for each counted operation. So
a rate on another machine needs no new run: the same counts get that machine's prices. What a join does would change
only if arrivals depended on its speed, so this applies to rates of streams that never run dry.

Four of the five papers ran Java programs that read R from MySQL. `JAVA_MYSQL_2010` describes such a machine by three
numbers relative to the disk of 2010 with compiled code:

================  ==================================================================================================
number            fitted on
================  ==================================================================================================
seek, 6.5 ms      INLJ keeps up with 150 tuples/s (HYBRIDJOIN, §6.2.1), so a read takes 6.67 ms at most
processor, ×21    HYBRIDJOIN has 70 % of X-HYBRIDJOIN's rate at 0.5 M tuples and 50 % at 8 M (X-HYBRIDJOIN, §5.2.2):
                  no factor gives both, this one is within 11 % of both, 18 to 25 within 14 %
loads at once, 2  two threads load OP-CACHEJOIN's buffers, from a server with several cores
================  ==================================================================================================

It was fitted on nothing else. The one absolute rate in these papers besides INLJ's, P-CACHEJOIN's 13 200 tuples/s, is
not met: see the table of absolute rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from semistream.costs import Constants, load_constants, simulated_seconds
from semistream.costs.basis.constants import DEFAULT
from semistream.costs.basis.pricing import Counts
from semistream.joins import find
from semistream.joins.interface.contract import Overlap
from semistream_lab.experiments.measure.machine_costs import slower
from semistream_lab.experiments.spec import Point

__all__ = ["JAVA_MYSQL_2010", "PRICES_OF", "MachinePrices", "repriced"]

Record = Mapping[str, Any]


@dataclass(frozen=True)
class MachinePrices:
    """A machine relative to the disk of 2010 with compiled code.

    Parameters
    ----------
    name, what
        Names for reports: short, and in words.
    processor
        Price of every operation, as a multiple of compiled code's.
    seek
        Time of a seek, relative to the simulated disk's.
    loads
        Loads that run at the same time in a join that loads several buffers in parallel.
    """

    name: str
    what: str
    processor: float = 1.0
    seek: float = 1.0
    loads: int = 1


JAVA_MYSQL_2010 = MachinePrices(
    "java-mysql-2010", "Java with MySQL on a machine of 2010", processor=21.0, seek=6.5 / 8.5, loads=2
)


PRICES_OF = dict.fromkeys(("CMESHJOIN", "P- and OP-CACHEJOIN", "HYBRIDJOIN", "X-HYBRIDJOIN"), JAVA_MYSQL_2010)
"""The machine of each paper. SSIJ and its MESHJOIN are compiled code that reads a raw disk: as simulated."""


def repriced(record: Record, point: Point, prices: MachinePrices) -> float:
    """Return the rate that a measurement would have had on another machine, in stream tuples per second."""
    constants = _constants(record, prices)
    counts = dict(record["counts"])
    # use the iterations of the last window for every window: runs of earlier versions recorded only these
    counts.setdefault("steps", record["steps"] * len(record["windows"]))
    io_seconds = counts["io_seconds"] - counts["reads"] * point.seek_seconds * (1.0 - prices.seek)
    overlap = find(point.algorithm).overlap
    if overlap is Overlap.PHASES_AND_READS:
        io_seconds /= prices.loads
    seconds = simulated_seconds(overlap, cast(Counts, SimpleNamespace(**counts)), io_seconds, constants)
    return float(counts["rows_done"] / seconds)


def _constants(record: Record, prices: MachinePrices) -> Constants:
    known = record.get("environment", {}).get("constants")
    own = Constants(**{**known, "processor": ()}) if known else load_constants(DEFAULT)
    return slower(own, prices.processor)
