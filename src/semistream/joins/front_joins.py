"""Combinations of the front stage and a join that have no name in the papers."""

from __future__ import annotations

from typing import Any

from semistream.joins.families.front_stage import FrontStage
from semistream.joins.inlj import Inlj
from semistream.joins.shares import Lending
from semistream.joins.ssij.ssij import Ssij
from semistream.joins.x_hybridjoin import XHybridJoin
from semistream.relation.relation import Relation

__all__ = ["FrontInlj", "FrontSsij", "FrontXHybridJoin"]


class FrontInlj(FrontStage):
    """The front stage before the index nested loop join."""

    id = "front+inlj"
    title = "front stage + INLJ"
    when = "Strong skew and a disk with fast random reads."
    place = 90
    behind = Inlj
    share = 0.9


class FrontXHybridJoin(FrontStage):
    """The front stage before X-HYBRIDJOIN: it caches frequent tuples of any page.

    X-HYBRIDJOIN then pins the pages that have many other frequent tuples.
    """

    id = "front+x_hybridjoin"
    title = "front stage + X-HYBRIDJOIN"
    when = "Frequent keys anywhere, and pages with many of them."
    place = 100
    behind = XHybridJoin


class FrontSsij(FrontStage):
    """The front stage before SSIJ: frequent tuples are cached without the rest of their pages.

    SSIJ's own cache keeps whole pages, which pays off if frequent keys are close together in R. If they are scattered,
    a page is kept for one of its tuples, and the front stage holds dozens of tuples in the same memory.
    """

    id = "front+ssij"
    title = "front stage + SSIJ"
    when = "As SSIJ, with frequent keys scattered over R."
    place = 140
    behind = Ssij
    lends = Lending.ARRIVALS  # SSIJ keeps its own arrays for pairs, and results that an update forces it to make

    def __init__(self, relation: Relation, *, deadline: float | str | None = None, **options: Any) -> None:
        if deadline is not None:
            raise ValueError(f"front+ssij does not support deadline={deadline!r}; leave it out, or use 'ssij'")
        super().__init__(relation, **options)
