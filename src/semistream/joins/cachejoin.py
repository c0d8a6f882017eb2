"""CACHEJOIN (P-/OP-CACHEJOIN §2): the front stage before HYBRIDJOIN."""

from __future__ import annotations

from semistream.joins.families.front_stage import FrontStage
from semistream.joins.hybridjoin import HybridJoin

__all__ = ["CacheJoin"]


class CacheJoin(FrontStage):
    """Stream probing against ``H_R``, then disk probing as HYBRIDJOIN does, one after the other.

    The disk-probing phase starts when ``H_S`` is full or the stream buffer is empty.
    """

    id = "cachejoin"
    title = "CACHEJOIN: front stage + HYBRIDJOIN"
    place = 80
    behind = HybridJoin
