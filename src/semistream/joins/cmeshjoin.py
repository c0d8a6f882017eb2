"""CMESHJOIN (Algorithm 1): the front stage before MESHJOIN."""

from __future__ import annotations

from semistream.joins.families.front_stage import FrontStage
from semistream.joins.meshjoin import MeshJoin
from semistream.joins.shares import cache_share_for_zipf

__all__ = ["CMeshJoin"]


class CMeshJoin(FrontStage):
    """Cached frequent tuples of R answer immediately; other stream tuples wait for MESHJOIN's scan of R.

    The front stage runs until ``w`` tuples have missed (lines 2 to 11), then MESHJOIN runs an iteration (lines 12 to
    22).

    Parameters
    ----------
    cache_share
        By default the optimum of the paper's model for a stream of Zipf exponent 1 (§3.2): the root of
        ``(M - u·h)·p'(h) = u·(1 - p(h))``.
    """

    id = "cmeshjoin"
    title = "CMESHJOIN: front stage + MESHJOIN"
    when = "Skew and a disk with fast sequential reads only."
    place = 70
    behind = MeshJoin
    scans = True

    def _best_share(self) -> float:
        if self._cache_share is not None:
            return self._cache_share
        return cache_share_for_zipf(self.budget.free, self._cached_bytes(), self.relation.row_count)
