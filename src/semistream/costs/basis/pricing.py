"""Converts counts of operations to seconds, for models and for simulated runs.

The models predict counts of operations per stream tuple, and the joins count them as they run. Both are converted here.
So a model and a simulated run differ only in their counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from semistream.costs.basis.constants import Constants
from semistream.joins.interface.contract import Overlap

__all__ = ["Counts", "Operations", "simulated_seconds"]


class Counts(Protocol):
    """The counters that have a price, as in `semistream.core.statistics.JoinStatistics` and `Operations`."""

    @property
    def rows_in(self) -> float: ...
    @property
    def rows_out(self) -> float: ...
    @property
    def steps(self) -> float: ...
    @property
    def cache_hits(self) -> float: ...
    @property
    def probes(self) -> float: ...
    @property
    def appended(self) -> float: ...
    @property
    def evicted(self) -> float: ...
    @property
    def recorded(self) -> float: ...
    @property
    def buffered(self) -> float: ...


@dataclass(frozen=True)
class Operations:
    """Expected counts, for each stream tuple."""

    rows_in: float = 1.0
    rows_out: float = 1.0
    cache_hits: float = 0.0
    probes: float = 0.0
    appended: float = 0.0
    evicted: float = 0.0
    recorded: float = 0.0
    buffered: float = 0.0
    steps: float = 0.0


def simulated_seconds(
    overlap: Overlap, stats: Counts, io_seconds: float, constants: Constants, factor: float = 1.0
) -> float:
    """Return the time of a join for the counts in ``stats`` and ``io_seconds`` of its device.

    Without overlap it is ``io + c_S·in + c_H·probes + c_O·out + c_A·appended + c_E·evicted + c_F·recorded +
    c_AI·buffered + c_T·steps``. P-CACHEJOIN's two phases overlap, so the longer one counts; with OP-CACHEJOIN the
    device is a third that overlaps.

    Parameters
    ----------
    overlap
        Which parts of the join run in parallel.
    stats
        The counts; for a part of a run, the difference of two.
    io_seconds
        Device time of these operations, ``stats.io_seconds`` for a simulated device.
    factor
        Measured cost of this join's operations, relative to the constants (`Constants.factor`).

    Examples
    --------
    >>> from semistream.core.statistics import JoinStatistics
    >>> from semistream.costs.basis.constants import load_constants
    >>> done = JoinStatistics(rows_in=1000, rows_out=1000, cache_hits=700, probes=5000, appended=300, evicted=300)
    >>> constants = load_constants("disk-2010")
    >>> seconds = [simulated_seconds(overlap, done, 0.0001, constants) for overlap in Overlap]
    >>> seconds == sorted(seconds, reverse=True)
    True
    """
    c = constants
    # A cached key answers all its rows, so the share of tuples is the share of rows.
    from_cache = stats.rows_out * stats.cache_hits / stats.rows_in if stats.rows_in else 0.0
    looked_up = min(stats.rows_in, stats.probes)
    stream = (
        c.admit * stats.rows_in
        + c.probe * looked_up
        + c.emit * from_cache
        + c.record * stats.recorded
        + c.buffer * stats.buffered
    ) * (factor * 1e-9)
    disk = (
        c.probe * (stats.probes - looked_up)
        + c.emit * (stats.rows_out - from_cache)
        + c.append * stats.appended
        + c.evict * stats.evicted
        + c.turn * stats.steps
    ) * (factor * 1e-9)
    if overlap is Overlap.PHASES:
        return max(stream, disk + io_seconds)
    if overlap is Overlap.PHASES_AND_READS:
        return max(stream, disk, io_seconds)
    return stream + disk + io_seconds
