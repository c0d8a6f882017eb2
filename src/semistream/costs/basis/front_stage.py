"""The front stage before any join: CMESHJOIN, CACHEJOIN and the others (CMESHJOIN §3; P-/OP-CACHEJOIN §2).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``M``          the budget
``u``          bytes of a cached tuple
``h_R``        tuples of R that ``H_R`` holds
``p(h_R)``     share of the stream that they answer
``w_N, w_S``   tuples matched in ``H_R`` and, after waiting, in ``H_S``: ``w_N / w_S = p / (1 - p)``
=============  =============================================================================================

Every tuple costs ``c_S + c_H``. A hit costs another ``c_F + K·c_O``; a miss costs the work of the join behind, with the
memory that the cache leaves. So ``μ(h_R) = 1 / (c_S + c_H + p·(c_F + K·c_O) + (1 - p)·(seconds behind))``, which
without the CPU is the paper's ``μ_m(h_R) / (1 - p(h_R))``. `best_cache` is where the derivative of the latter is zero
for a join behind whose rate is proportional to its memory (CMESHJOIN Eq. 3 to 6): ``(M - u·h)·p'(h) = u·(1 - p(h))``.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from semistream.costs.basis.cache_steady_state import Counts, cached_shares, ideal
from semistream.costs.basis.model import Costs, Memory, Prediction, common_memory
from semistream.costs.basis.popularity import KeyClasses, key_classes
from semistream.costs.basis.pricing import Operations
from semistream.costs.basis.queue_steady_state import root
from semistream.costs.basis.served import DiskCosts, Served
from semistream.costs.basis.setting import LentParts, Setting
from semistream.joins import find
from semistream.joins.families.front_stage import PORTION, FrontStage
from semistream.joins.shares import LEAST_SHARE, Lending, cache_share_for_zipf, cached_tuples, least_cache
from semistream.structures.hot.hot_tuples import HotTuples
from semistream.workloads.keys.zipf import harmonic

__all__ = ["FrontCosts", "SteadyCache", "best_cache", "cached_share", "cached_share_slope"]

_ROUNDS = 4
_PORTION = 1 << 14
_AGING = float(inspect.signature(HotTuples).parameters["aging"].default)
"""The cache's default of ``aging``."""


def cached_share(setting: Setting, held: float) -> float:
    """Return ``p(h_R)``: the share of the stream that the ``held`` most frequent tuples of R answer (Eq. 1)."""
    keys = held / setting.rows_per_key
    below = int(keys)
    within = (keys - below) * math.pow(below + 1.0, -setting.exponent)
    return min(1.0, (_sum(below, setting.exponent) + within) / _sum(setting.keys, setting.exponent))


def cached_share_slope(setting: Setting, held: float) -> float:
    """Return ``p'(h_R)``: what one more tuple answers (Eq. 2 is ``1 / (h_R·H(R_t))``, for exponent 1)."""
    keys = max(held / setting.rows_per_key, 1.0)
    return float(keys**-setting.exponent / _sum(setting.keys, setting.exponent) / setting.rows_per_key)


def best_cache(setting: Setting, memory: float) -> float:
    """Return ``h_R``, in tuples, at which a rate of ``(M - u·h) / (1 - p(h))`` is highest.

    There the derivative is zero: ``(M - u·h)·p'(h) = u·(1 - p(h))``. Both sides fall with ``h``. For an exponent above
    0 the left side falls faster, so there is one root, and it is a maximum. For a uniform stream there is no root: the
    rate is highest without a cache, and 0 is returned.

    >>> from semistream.costs.basis.constants import load_constants
    >>> setting = Setting.planned(100_000_000, exponent=1.0, constants=load_constants("disk-2010"))
    >>> round(best_cache(setting, 1.2e9) * setting.cached_bytes / 1.2e9, 2)
    0.2
    """
    u = setting.cached_bytes

    def loss(held: float) -> float:
        """Return the net loss by one more cached tuple: negative as long as it gains more than it costs."""
        lost = u * (1.0 - cached_share(setting, held))
        return lost - (memory - u * held) * cached_share_slope(setting, held)

    most = min(memory / u, float(setting.rows))
    if loss(setting.rows_per_key) >= 0:
        return 0.0
    if loss(most) <= 0:
        return most
    return root(loss, setting.rows_per_key, most)


def _sum(count: int, exponent: float) -> float:
    return harmonic(count, exponent) if count else 0.0


@dataclass(frozen=True)
class SteadyCache:
    """The content of the front stage's cache in its steady state."""

    keys: KeyClasses
    """For each class, the average share of its keys that is not cached."""
    counts: Counts
    """For each class, the share of its keys that is cached with a count of 0, 1, 2, …, just after a halving."""
    threshold: int
    """Number of tuples that a key must be matched with to be admitted."""


class FrontCosts(Costs):
    """A cache before a join on the disk.

    Parameters
    ----------
    algorithm
        Id of the join with its front stage.
    behind
        The model of the join behind.
    share
        The join's default of ``cache_share``, None for CMESHJOIN's own rule.
    """

    id = "front"
    index = False

    def __init__(self, algorithm: str, behind: DiskCosts, share: float | None = 0.75) -> None:
        self.id = algorithm  # type: ignore[misc]
        self.behind = behind
        self.share = share

    @property
    def lends(self) -> Lending:
        """What the stage lends to the join behind."""
        join = find(self.id)
        return join.lends if issubclass(join, FrontStage) else Lending.NOTHING

    def memory(self, setting: Setting, memory: int, **options: Any) -> dict[str, int]:
        parts, _, _ = self._split(setting, memory, key_classes(setting), **options)
        return parts.parts

    def predict(self, setting: Setting, memory: int, *, aging: float = _AGING, **options: Any) -> Prediction:
        parts, held, served, cache = self._steady(setting, memory, aging, **options)
        missed = cache.keys.miss_share
        return self._combined(setting, parts, held, missed, served, options)

    def steady_cache(self, setting: Setting, memory: int, *, aging: float = _AGING, **options: Any) -> SteadyCache:
        """Return the content of the cache in its steady state."""
        return self._steady(setting, memory, aging, **options)[3]

    def _steady(
        self, setting: Setting, memory: int, aging: float, **options: Any
    ) -> tuple[Memory, int, Served, SteadyCache]:
        """Return the parts, the tuples in the cache, the work of the join behind, and the content of the cache."""
        keys = key_classes(setting)
        parts, held, served = self._split(setting, memory, keys, **options)
        room = held / setting.rows_per_key
        # counts are halved after the first portion of the stream that reaches the limit
        portion = min(_PORTION, max(1.0, parts.inbox / setting.buffered_bytes))
        period = math.ceil(max(1.0, aging * held) / portion) * portion
        state = ideal(keys, room, period)
        missing, threshold = keys.top(room).missing, 1
        for _ in range(_ROUNDS):
            shares, threshold, came = cached_shares(keys, served.events, room, period, state, threshold)
            missing = 1.0 - shares
            served = self._behind(setting, parts, keys.without(missing, shares / np.maximum(came, 1e-300)), **options)
        return parts, held, served, SteadyCache(keys.without(missing), state, threshold)

    def quick(self, setting: Setting, memory: int, *, aging: float = _AGING, **options: Any) -> Prediction:
        """Return the prediction for an ideal cache of the most frequent tuples: a few percent too high, but fast."""
        parts, held, served = self._split(setting, memory, key_classes(setting), **options)
        missed = 1.0 - cached_share(setting, held)
        return self._combined(setting, parts, held, max(missed, 1e-9), served, options)

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return shares of the memory for the cache, and the choices of the join behind with half of the memory."""
        return {
            "cache_share": [0.001, 0.005, 0.02, *(round(share / 20, 2) for share in range(1, 20))],
            **self.behind.choices(setting, memory // 2),
        }

    def _combined(
        self, setting: Setting, parts: Memory, held: float, missed: float, served: Served, options: dict[str, Any]
    ) -> Prediction:
        hits = 1.0 - missed
        entering = missed * served.entering
        operations = Operations(
            rows_out=setting.rows_per_key,
            cache_hits=hits + missed * served.cache_hits,
            probes=1.0 + missed * served.probes,
            appended=entering,
            evicted=entering,
            recorded=hits + missed * served.recorded,
            steps=missed * served.turns + 1.0 / self._portion(setting, parts, missed),
            buffered=missed * served.buffered + (missed if "intermediate buffer" in parts.parts else 0.0),
        )
        return self._result(
            setting, parts, {**served.options, **options}, operations,
            reads=missed * served.reads, pages=missed * served.pages, seek=served.seek,
            details={**served.details, "h_R": held, "p": hits},
        )  # fmt: skip

    def _split(
        self, setting: Setting, total: int, keys: KeyClasses, *, cache_share: float | None = None, **options: Any
    ) -> tuple[Memory, int, Served]:
        """Return the parts, the tuples in the cache, and the work of the join behind with the rest."""
        parts = common_memory(setting, total, index=False)
        self._before(setting, parts, **options)
        room, u = parts.free, setting.cached_bytes
        wished = self._default_share(setting, room) if cache_share is None else cache_share
        held = cached_tuples(room, wished, self._least_behind(setting, **options), u, setting.rows)
        if held * u + HotTuples.fixed_bytes() >= room:
            raise self.too_small(setting, parts, self._least(setting, **options))
        parts.give("front stage", held * u + HotTuples.fixed_bytes())
        parts.give("join behind", parts.free)
        served = self._behind(setting, parts, keys.top(held / setting.rows_per_key), **options)
        return parts, held, served

    def _least(self, setting: Setting, **options: Any) -> int:
        """Return the bytes that the smallest cache and the join behind need."""
        return self._least_behind(setting, **options) + least_cache(setting.cached_bytes)

    def _least_behind(self, setting: Setting, **options: Any) -> int:
        return self.behind.least_memory(setting.replace(lent=LentParts(self.lends)), **options)

    def _lent(self, setting: Setting, parts: Memory, missed: float) -> LentParts:
        """Return what this stage lends to the join behind."""
        pairs = parts.pairs if self.lends is Lending.ALL else 0
        return LentParts(self.lends, parts.inbox, pairs, self._portion(setting, parts, missed))

    @staticmethod
    def _portion(setting: Setting, parts: Memory, missed: float) -> float:
        """Return the tuples that are looked up together: as many as fit, and whose hits fit into a batch of results."""
        row = setting.buffered_bytes + setting.page_bytes / setting.rows_per_page
        results = parts.parts["results"] / row / max(1.0 - missed, 1e-9)
        return max(1.0, min(PORTION, parts.inbox / setting.buffered_bytes, results))

    def _before(self, setting: Setting, parts: Memory, **options: Any) -> None:
        """Reserve memory for parts before the cache."""

    def _behind(self, setting: Setting, parts: Memory, keys: KeyClasses, **options: Any) -> Served:
        options = {name: value for name, value in options.items() if name not in ("threshold", "cache_share")}
        setting = setting.replace(lent=self._lent(setting, parts, keys.miss_share))
        return self.behind.serve(setting, parts.parts["join behind"], keys, **options)

    def _default_share(self, setting: Setting, room: int) -> float:
        if self.share is not None:
            long = self.behind.memory_of_long_turns(setting) if setting.constants.turn else 0
            return max(min(self.share, 1.0 - long / max(1, room)), min(self.share, LEAST_SHARE))
        return cache_share_for_zipf(room, setting.cached_bytes, setting.rows)
