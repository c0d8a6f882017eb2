"""CACHEJOIN (P-/OP-CACHEJOIN §2): the front stage before HYBRIDJOIN."""

from __future__ import annotations

from types import MappingProxyType

from semistream.joins.families.front_stage import FrontStage
from semistream.joins.hybridjoin import HybridJoin

__all__ = ["CacheJoin"]


class CacheJoin(FrontStage):
    """Looks stream tuples up in ``H_R``, and joins tuples that miss as HYBRIDJOIN does; the two phases alternate.

    The disk-probing phase starts when ``H_S`` is full or the stream buffer is empty.
    """

    id = "cachejoin"
    title = "CACHEJOIN: front stage + HYBRIDJOIN"
    when = "Skew with frequent keys anywhere in R."
    place = 80
    calibrated = True
    # Few tuples wait behind the cache if the join is drained often: cache and pages make better use of the memory.
    for_batches = MappingProxyType({"cache_share": 0.8, "disk_share": 0.7, "in_flight": 1024})
    behind = HybridJoin
