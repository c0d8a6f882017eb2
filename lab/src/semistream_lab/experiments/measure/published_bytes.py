"""Budgets in which our joins hold as many tuples as the papers' formulas say.

In the papers a waiting tuple takes eight times its bytes and a queue node; ours takes less. A cached tuple takes more
here. With ``M`` the paper's memory, ``d`` its disk buffer and ``s`` the share of the cache, the paper's join holds
``((1 - s)·M - d) / waiting`` waiting tuples and ``s·M / cached`` cached ones. The papers do not count stream buffer,
index and results. The budget in which our join holds the same is found by opening the join.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semistream.costs import Setting
from semistream.costs.basis.model import common_memory
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.join import Join

__all__ = ["PaperBytes", "published_budget", "published_setting"]

Opened = Callable[[int, dict[str, Any]], Join]

_ROUNDS = 12  # limit of iterations
_NEAR = 0.002  # relative distance at which the search ends
_DISK = ("disk buffer", "pinned pages")  # parts of the budget that belong to the paper's disk buffer


@dataclass(frozen=True)
class PaperBytes:
    """Bytes per waiting and per cached tuple in a paper."""

    waiting: float
    cached: float = 128.0

    def as_dict(self) -> dict[str, float]:
        """Return the bytes as settings of a point."""
        return dataclasses.asdict(self)


def published_setting(setting: Setting, memory: int, of: PaperBytes) -> tuple[Setting, int]:
    """Return the setting and the budget with which a cost model splits ``memory`` as a paper does.

    The budget also contains what papers do not count, so pages and tuples have all of the paper's memory.
    """
    bytes_there = dataclasses.replace(setting, waiting_bytes=round(of.waiting), cached_bytes=round(of.cached))
    budget = memory
    for _ in range(_ROUNDS):
        budget += memory - common_memory(bytes_there, budget, index=True).free
    return bytes_there, budget


def published_budget(
    opened: Opened, setting: Setting, memory: int, options: dict[str, Any], of: PaperBytes
) -> tuple[int, dict[str, Any]]:
    """Return the budget and the options with which a join holds as many tuples as a paper's does in ``memory``.

    Parameters
    ----------
    opened
        Opens the join with a budget and options.
    options
        The paper's options. ``cache_share`` and ``buffer_share`` are shares of the paper's memory.
    """
    share = float(options.get("cache_share") or 0.0)
    between = float(options.get("buffer_share") or 0.0)
    budget, chosen = memory, dict(options)
    for _ in range(_ROUNDS):
        join = opened(budget, chosen)
        inner = join.inner if isinstance(join, FrontStage) else join
        parts = inner.budget.parts()
        disk = sum(parts.get(name, 0) for name in _DISK)
        wanted = max(16.0, ((1.0 - share - between) * memory - disk) / of.waiting)
        held = _waiting(inner, setting)
        cached = share * memory / of.cached * setting.cached_bytes
        if isinstance(join, FrontStage):
            room = sum(join.budget.parts()[name] for name in ("front stage", "join behind"))
            more = (wanted - held) * setting.waiting_bytes
            budget = int(budget + more + cached - room * chosen.get("cache_share", 0.0))
            chosen["cache_share"] = round(min(0.95, cached / max(1.0, room + more)), 6)
        else:
            more = (wanted - held) * setting.waiting_bytes
            budget = int(budget + more)
        if between:  # the intermediate buffer has the paper's bytes, whatever the budget
            chosen["buffer_share"] = min(0.5, between * memory / budget)
        del join, inner  # never hold two joins: each may take most of the memory
        if abs(held / wanted - 1.0) < _NEAR and abs(more) < _NEAR * budget:
            break
    return budget, chosen


def _waiting(join: Join, setting: Setting) -> float:
    """Return how many tuples can wait."""
    table = getattr(join, "table", None)
    if table is not None:
        return float(table.capacity)
    return join.budget.parts().get("wait buffer", 0) / setting.waiting_bytes
