"""SSIJ: batched look-ups, pages cached by utility, planned reads (SSIJ §IV).

The paper has no cost model; this is one.

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``F``          frames of the block that cached pages and tuples share
``IB``, ``SB`` tuples of the input buffer and of the stream buffer when a join phase begins
``C``          cached pages: the frames that tuples do not use
``q``          share of the stream that needs a page
``n``          tuples of the stream between two join phases: ``SB / (1 - p)``
``π``          probability that a page is cached; ``p = Σ q·π`` is the hit ratio
``P_u``        pages that a join phase needs: ``Σ (1 - π)·(1 - e^{-q·n})``
``L``          leaders: waiting tuples that are the first of their key; followers store only their row
=============  =============================================================================================

**Cached pages.** At each join phase the ``C`` pages with the highest utility are kept. A page's utility is its number
of tuples since the last phase, plus ``utility_kept`` times its previous utility if it was cached. Let ``θ`` be the
utility of the last page that is kept. An uncached page is admitted with probability ``P(Poisson(q·n) ≥ θ)``. A cached
page is kept if a count with mean ``q·n / (1 - kept)`` reaches ``θ``. ``θ`` follows from ``Σ π = C``.

**Waiting tuples.** If R has many rows per key, all tuples of a key follow one leader, unless its page has too many
leaders to find it. If R has one row per key, only tuples that are looked up together follow each other.

**Reads.** Requested pages are spread over R at random, or by rank, with a density that ``P_u`` gives. The cost of
reading such a set is found by generating one and planning it with the join's own planner, including gaps and
``max_scan``.

Every tuple costs ``c_S + c_AI + c_H + K·c_O``; a tuple that waits costs another ``c_A + c_E``; a phase costs
``S·runs + T·pages``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from semistream.core.arrays import Floats
from semistream.costs.basis.model import Memory, Prediction, common_memory
from semistream.costs.basis.page_utility import PageClasses, kept_pages
from semistream.costs.basis.planned_reads import planned_reads
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins.ssij.inverted_layout import ENTRY_BYTES, LINK_BYTES, NODE_BYTES
from semistream.joins.ssij.page_cache import PageCache
from semistream.joins.ssij.ssij_layout import MemoryOptions, SsijLayout, Thresholds, least_parts
from semistream.joins.ssij.tuple_log import TupleShape
from semistream.structures.directory import ENTRY_BYTES as DIRECTORY_BYTES

__all__ = ["COSTS", "SsijCosts"]


_ROUNDS = 16
_VARIES = 0.05
_FEW = 30
_SLOT_BYTES = 25 + DIRECTORY_BYTES
"""Bytes of a waiting tuple of `StreamTable` without its row."""


@dataclass(frozen=True)
class _Split:
    memory: Memory
    frames: int
    portion: int
    read: int
    """Frames of the read buffer."""
    scan: int
    record: int
    """Bytes of a tuple in a buffer."""
    follower: int
    """Bytes of a waiting tuple that follows another."""
    thresholds: Thresholds


@dataclass(frozen=True)
class _State:
    cached: float
    shares: Floats
    missed: float
    waiting: float
    leaders: float


class SsijCosts(DiskCosts):
    """Cycles from one join phase to the next."""

    id = "ssij"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *, utility_kept: float = 0.5,
        replacement: str = "utility", cache_share: float | None = None, **options: Any,
    ) -> Served:  # fmt: skip
        split = self._split(setting, memory, cache_share, **options)
        chosen = split.thresholds
        items = PageClasses.of(setting, keys, min(split.portion, chosen.input_tuples))
        state = self._steady(setting, split, items, replacement, utility_kept, cache_share)
        waiting, missed, wanting = state.waiting, state.missed, state.waiting / state.missed
        runs, pages, wanted = planned_reads(
            setting, items, items.density(state.shares, wanting), split.scan, split.read, state.shares, wanting
        )
        # keys on cached pages are matched in each portion, the others in each join phase
        held = items.of_keys(state.shares[0])
        comes = max(keys.miss_share, 1e-12)
        events = held * matched_in_passes(keys, items.together / comes)
        events += (1.0 - held) * matched_in_passes(keys, wanting / comes)
        looked_up = float(np.dot(items.keys, held * -np.expm1(-items.own * items.together))) / items.together
        return Served(
            split.memory,
            {
                **options, "input_tuples": chosen.input_tuples, "buffer_tuples": chosen.buffer_tuples,
                "max_scan": options.get("max_scan"), "utility_kept": utility_kept, "cache_share": cache_share,
            },
            probes=items.pages_a_key * (looked_up + state.leaders / wanting),
            reads=missed * runs / waiting,
            pages=missed * pages / waiting,
            seek=setting.seek_with(max(1.0, split.read * runs / max(pages, 1.0))),
            turns=1.0 / items.together + missed * pages / waiting / split.read,
            events=events,
            cache_hits=1.0 - missed,
            buffered=1.0,
            details={
                "C": state.cached, "n": wanting, "wanted": wanted, "runs": runs, "pages": pages, "SB": waiting,
                "IB": chosen.input_tuples, "F": split.frames, "L": state.leaders,
            },
        )  # fmt: skip

    def _steady(
        self, setting: Setting, split: _Split, items: PageClasses, replacement: str, utility_kept: float,
        cache_share: float | None,
    ) -> _State:  # fmt: skip
        """Return the steady state: the cached pages that waiting tuples leave room for, and the waiting tuples."""
        kept = utility_kept if replacement == "utility" else 0.0
        shares = kept_pages(items, 0.0, 0.0, kept)
        thresholds = split.thresholds
        waiting = leaders = float(thresholds.buffer_tuples)
        missed, cached = 1.0, -1.0
        for turn in range(_ROUNDS):
            wished = missed * _looked_up(thresholds, items.together, missed, float(items.own.max()))
            waiting = self._fitting(setting, split, items, shares, missed, wished, cache_share)
            cycle = waiting / missed
            wanted = items.wanted(shares, cycle)
            leaders = items.leaders(shares, cycle, waiting, wanted)
            inputs = 0 if waiting < wished else thresholds.input_tuples
            held = inputs * split.record + self._held(split, items, waiting, leaders)
            left = 0.0 if replacement == "none" else self._cached(setting, split, held, wanted, cache_share)
            before, cached = cached, left if cached < 0 else cached + (left - cached) / max(2, turn - 4)
            shares = kept_pages(items, cached, cycle, kept)
            hit = float(np.dot(items.count * items.popularity, shares[0]))
            if cache_share is None:
                hit *= self._steadiness(split, cached)
            missed = max(1.0 - hit, 1e-3)
            if abs(cached - before) <= 0.002 * cached:
                break
        return _State(cached, shares, missed, waiting, leaders)

    def quick(self, setting: Setting, memory: int, **options: Any) -> Prediction:
        """Return `predict`, reduced if tuples leave hardly any room for pages: rates then vary by phase.

        Measured with 1 to 2.5 % of R: if pages had less than 1.5 times the room reserved for input, runs were up to
        1/8 below the model, and a split with twice the room was faster.
        """
        found = self.predict(setting, memory, **options)
        room = found.details["C"] / max(3.0, found.details["F"] // 16)
        if (
            room < 1.8
            and found.details["F"] >= 256
            and setting.exponent > 0.0
            and options.get("replacement", "utility") != "none"
        ):
            return dataclasses.replace(found, seconds=found.seconds * (1.0 + 0.15 * min(1.0, (1.8 - room) / 0.5)))
        return found

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return thresholds as shares of the block's capacity, or above it, and lengths of scans."""
        split = self._split(setting, memory, None)
        held = split.frames * setting.frame_bytes
        record = split.record
        inputs = sorted({max(16, int(held * share / record)) for share in (0.01, 0.03, 0.1, 0.2)})
        shares = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2, 1.6)
        buffers = sorted({max(16, int(held * share / (record + NODE_BYTES))) for share in shares})
        return {"input_tuples": inputs, "buffer_tuples": buffers, "max_scan": [50, 200, 800]}

    def least(self, setting: Setting, **options: Any) -> int:
        chosen = MemoryOptions(cache_share=options.get("cache_share"))
        return setting.pages * PageCache.bytes_per_page + least_parts(setting.frame_bytes, chosen)

    def _split(
        self, setting: Setting, total: int, cache_share: float | None, *,
        input_tuples: int | None = None, buffer_tuples: int | None = None, max_scan: int | None = None, **_: Any,
    ) -> _Split:  # fmt: skip
        """Divide the memory as `SsijMemory` does; pages are read into one buffer."""
        frame, parts = setting.frame_bytes, common_memory(setting, total, index=True)
        options = MemoryOptions(
            input_tuples, buffer_tuples, max_scan=max_scan, cache_share=cache_share, read_ahead=False
        )  # fmt: skip
        page_map = parts.give("page map", setting.pages * PageCache.bytes_per_page)
        if parts.free < (least := least_parts(frame, options)):
            raise self.too_small(setting, parts, least + page_map)
        layout = SsijLayout.of(parts.free, frame, setting.pages, options)
        for name, size in layout.parts().items():
            parts.give(name, size)
        row = setting.waiting_bytes - _SLOT_BYTES
        record = TupleShape.size_of(row, ranged=False, timed=False)
        little = total <= 0.015 * setting.pages * setting.page_bytes
        for_tuples = layout.frames - int(layout.frames * (cache_share or 0.0))
        return _Split(
            parts, layout.frames, layout.portion, layout.read, layout.scan, record,
            math.ceil((LINK_BYTES + row) / 4) * 4,
            Thresholds.of(options, for_tuples * frame, record, little=little),
        )  # fmt: skip

    @staticmethod
    def _held(split: _Split, items: PageClasses, waiting: float, leaders: float) -> float:
        """Return the bytes of waiting tuples and of their list entries."""
        return leaders * (split.record + NODE_BYTES * items.pages_a_key) + (waiting - leaders) * split.follower

    def _cached(self, setting: Setting, split: _Split, held: float, wanted: float, cache_share: float | None) -> float:
        """Return the average number of cached pages: the frames without tuples and without half of the input reserve.

        Pages have the other half of the reserve even if tuples use all other frames.
        """
        if cache_share is not None:
            return int(split.frames * cache_share)
        frames = split.frames
        held += wanted * ENTRY_BYTES
        spare = max(3, frames // 16)
        return max(0.0, min(max(frames - held / setting.frame_bytes - spare / 2, spare / 2) - 2, setting.pages))

    @staticmethod
    def _steadiness(split: _Split, cached: float) -> float:
        """Return the share of its hits that a cache keeps if tuples leave less room than the reserve for input.

        Then join phases with and without room for pages alternate. Fitted to runs with 1 to 2.5 % of R.
        """
        return 0.5 + 0.5 * min(1.0, cached / max(3, split.frames // 16))

    def _fitting(
        self, setting: Setting, split: _Split, items: PageClasses, shares: Floats, missed: float, wished: float,
        cache_share: float | None,
    ) -> float:  # fmt: skip
        """Return the tuples that wait when a join phase begins: the requested number, or what fits without pages.

        The lists of the pages that they need use memory too.
        """

        def fits(waiting: float) -> bool:
            wanted = items.wanted(shares, waiting / missed)
            held = self._held(split, items, waiting, items.leaders(shares, waiting / missed, waiting, wanted))
            there = split.frames - int(split.frames * (cache_share or 0.0)) - max(3, split.frames // 16) - 2
            return held + wanted * ENTRY_BYTES <= there * setting.frame_bytes

        low, high = 1.0, wished
        if wished <= 1.0 or fits(wished):
            return max(1.0, wished)
        while high - low > 0.002 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def _looked_up(thresholds: Thresholds, portion: float, missed: float, key: float) -> float:
    """Return the number of tuples looked up until a join phase begins, if a share of them has to wait.

    The join checks after each portion whether a phase begins. The input buffer is looked up portion by portion; the
    last portion is the rest. The number of waiting tuples varies, so near a border both counts occur. If there are few
    hits, they vary by key: all tuples of a cached key, a share ``key`` of the stream, or none.
    """
    gathered = thresholds.input_tuples
    enough = thresholds.buffer_tuples / missed
    hits = enough - thresholds.buffer_tuples

    def seen(count: float) -> float:
        """Return the number of tuples after which the join notices that ``count`` were looked up."""
        before = max(0, math.ceil(count / gathered) - 1)
        return before * gathered + min(max(1, math.ceil((count - before * gathered) / portion)) * portion, gathered)

    if hits < _FEW:
        low, each = seen(thresholds.buffer_tuples), max(1.0, key * enough)
        keys, spare = hits / each, math.floor((low - thresholds.buffer_tuples) / each)
        chance = sum(math.exp(-keys) * keys**count / math.factorial(count) for count in range(min(spare, _FEW) + 1))
        return low + (seen(low + 1.0) - low) * max(0.0, 1.0 - chance)
    spread = min(_VARIES * portion, hits)
    low, high = seen(enough - spread), seen(enough + spread)
    return low + (high - low) * min(1.0, max(0.0, (enough + spread - low) / (2.0 * spread)))


COSTS = (SsijCosts(),)
