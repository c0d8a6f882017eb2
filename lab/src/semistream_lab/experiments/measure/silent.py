"""Joins that count their results instead of making them: for simulated runs, which do not use the rows.

Everything else is the algorithm's own code: what is read, probed, cached and evicted, and when. Only the copying of
rows into result batches is left out; the clock adds its price per result.
"""

from __future__ import annotations

import functools
from typing import Any

from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.join import Join

__all__ = ["silent"]


@functools.cache
def silent(algorithm: type[Join]) -> type[Join]:
    """Return the algorithm as a class that counts its results and makes none.

    >>> from semistream.joins import find
    >>> silent(find("meshjoin")).id
    'meshjoin'
    """
    own: dict[str, Any] = {"__doc__": algorithm.__doc__, "makes_results": False}
    if issubclass(algorithm, FrontStage):
        own["behind"] = silent(algorithm.behind)
    return type(f"Silent{algorithm.__name__}", (algorithm,), own)
