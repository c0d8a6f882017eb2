"""The front stage (CMESHJOIN §3): a cache of single tuples before any join.

Every stream tuple probes ``H_R`` first. A hit is returned immediately; only misses are passed to the join behind. If
the join behind matches a row of R with at least ``threshold`` waiting tuples, the row is admitted to ``H_R``. If
``H_R`` is full, it evicts a less frequent row.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_between, listed
from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import UpdateTooLargeError
from semistream.core.statistics import JoinStatistics
from semistream.joins.families.waiting import WaitingJoin
from semistream.joins.interface.conditions import ConditionName, check_condition
from semistream.joins.interface.following import JoinAgreement, Undo
from semistream.joins.interface.join import Join
from semistream.joins.interface.leaving import portions
from semistream.joins.interface.missing_keys import MissingKeys
from semistream.joins.interface.progress import Progress
from semistream.joins.interface.results import Observer
from semistream.joins.interface.stage_behind import Lent
from semistream.joins.interface.stream_buffer import Tuples
from semistream.joins.shares import LEAST_SHARE, Lending, cached_tuples, growth_of_index, least_cache
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.pages.stored_rows import row_format
from semistream.relation.relation import Relation
from semistream.relation.rows.selection import take_rows
from semistream.structures.array_source import ArraySource, coarse, in_memory
from semistream.structures.hot.candidates import find_candidates
from semistream.structures.hot.hot_tuples import HotTuples

__all__ = ["PORTION", "FrontStage"]

_THRESHOLD, _NOTICED, _EVICTED = 0, 1, 2
_ADDED_UP = ("rows_done", "unmatched", "steps", "cache_hits", "probes", "appended", "evicted", "recorded", "buffered")
PORTION = 1 << 14


class FrontStage(Join):
    """``H_R`` before the join `behind`.

    Parameters
    ----------
    cache_share
        Share of the memory for ``H_R``; the join behind gets the rest. The default depends on the join behind. It is
        lower in small budgets, because the join behind needs memory to serve many tuples per iteration.
    threshold
        Waiting tuples that a row of R must be matched with to be cached. This is the initial value: it falls while the
        cache has room, and rises while evictions are frequent.
    aging
        See `HotTuples`.
    arrays
        Where the arrays of ``H_R`` live, if not in this process: a cache that another process left is reused.
    options
        All other options are passed to the join behind.

    Notes
    -----
    The cache never affects the result. A key with several rows is cached with all of them, if they are in one page.
    """

    behind: ClassVar[type[Join]]
    """The join that gets the misses."""
    inner: Join
    """The instance of `behind`."""
    _agreed: JoinAgreement
    """Agreement of the join behind to the update that is being installed."""
    lends: ClassVar[Lending] = Lending.ALL
    """Which parts of this stage's memory the join behind also uses."""
    share: ClassVar[float] = 0.75
    """Default of ``cache_share``."""
    uses_index = False  # the join behind counts it, if it uses it
    keeps_cache = True
    stands_behind = False  # matches of the join behind are not passed to another observer

    def __init__(
        self,
        relation: Relation,
        *,
        cache_share: float | None = None,
        threshold: int = 1,
        aging: float = 24.0,
        arrays: ArraySource | None = None,
        on: Any,
        how: Any = "left",
        memory: Any = "64MB",
        schema: pa.Schema | None = None,
        suffix: str = "_right",
        prefix: str = "",
        condition: ConditionName = "equal",
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        check_condition(condition, self.id, self.conditions)
        check_between(0, 1, cache_share=cache_share)
        self._cache_share = cache_share
        self.threshold = max(1, threshold)
        self._aging = aging
        self._arrays = arrays
        self._portion = PORTION
        on = listed(on)  # both are read twice
        columns = columns if columns is None or isinstance(columns, str) else listed(columns)
        shared: dict[str, Any] = {"on": on, "how": how, "suffix": suffix, "prefix": prefix, "columns": columns}
        self.inner = self.behind(relation, memory=None, **shared, **options)
        super().__init__(relation, memory=memory, schema=schema, **shared)

    def watch_missing(self, missing: MissingKeys) -> None:
        super().watch_missing(missing)
        self.inner.watch_missing(missing)

    def tell_found(self, name: str) -> None:
        super().tell_found(name)
        self.inner.tell_found(name)

    def least_bytes(self) -> int:
        return self._behind_minimum() + least_cache(self._cached_bytes())

    def _behind_minimum(self) -> int:
        return self.inner.least_memory(getattr(self, "stream_codec", None), self.row_bytes, self.lends)

    def _cached_bytes(self) -> int:
        return HotTuples.bytes_per_tuple(self.relation.codec, self._stored_row_bytes())

    def _stored_row_bytes(self) -> float:
        """Return the mean bytes of a row of R, from its pages."""
        return self.relation.layout.mean_row(self.relation.page_bytes, self.relation.rows_per_page)

    def _best_share(self) -> float:
        if self._cache_share is not None:
            return self._cache_share
        # In virtual time an iteration costs nothing.
        long = 0 if self.relation.device.simulated else self.inner.memory_of_long_turns()
        return max(min(self.share, 1.0 - long / max(1, self.budget.free)), min(self.share, LEAST_SHARE))

    def open_parts(self) -> None:
        stored, (rows, row_bytes) = row_format(self.relation.codec, self.relation.packing), self._capacity()
        layout = f"{HotTuples.FORMAT}; {rows} rows of {row_bytes} B; {stored}"
        arrays = in_memory if self._arrays is None else self._arrays(layout)
        self.cache = HotTuples(self.relation.codec, rows, row_bytes, aging=self._aging, arrays=arrays)
        self._learned = arrays("front_stage", 3, np.int64)
        self.threshold = int(self._learned[_THRESHOLD]) or self.threshold
        self._cache_part = self.budget.reserve("front stage", self.cache.nbytes + self._learned.nbytes)
        self._behind_part = self.budget.reserve("join behind", self.budget.free)
        assert self.schema is not None
        self.inner.stand_behind(
            self.schema, memory=self._behind_part.bytes, row_bytes=self.row_bytes,
            observer=_seen_by(weakref.ref(self)), lent=self._lend(),
        )  # fmt: skip
        self.largest_row = self.inner.largest_row

    def _capacity(self) -> tuple[int, float]:
        """Return the capacity of ``H_R`` in tuples, and the bytes of a tuple; rounded if the cache is in files.

        Then small updates of R do not change them; otherwise the next process could not use the files.
        """
        relation, free, share = self.relation, self.budget.free, self._best_share()
        behind, rows, row_bytes = self._behind_minimum(), relation.row_count, self._stored_row_bytes()
        about = float(coarse(math.ceil(row_bytes), up=True))
        each = HotTuples.bytes_per_tuple(relation.codec, about)
        if self._arrays is None or behind + least_cache(each) > free:  # not in files, or memory is at its minimum
            return cached_tuples(free, share, behind, self._cached_bytes(), rows), row_bytes
        behind = min(behind + growth_of_index(relation), free - least_cache(each))
        return coarse(cached_tuples(free, share, behind, each, coarse(rows, up=True))), about

    def _lend(self) -> Lent:
        """Return the parts of this stage's memory that the join behind also uses."""
        results = (self.pairs_at_once, self.result_bytes) if self.lends is Lending.ALL else None
        return Lent(self.stream.room, self._single, results)

    def turn(self) -> Iterator[pa.RecordBatch]:
        self.inner.closing = self.closing
        came = len(self.stream) > 0
        for part in self._arrivals():
            hits, missed = self._probe(part)
            yield from hits
            yield from self._hand_on(missed)
        # Tuples in the stream buffer of the join behind reduce the room for tuples that arrive here.
        crowded = 2 * self.inner.arrived_bytes > self.stream.limit or not came
        if crowded or not (self.more_coming or len(self.stream)):
            yield from self.inner.step()

    def _arrivals(self) -> Iterator[Tuples]:
        """Yield arrived tuples in parts that are expected to make one batch of results each."""
        left = PORTION
        while left > 0 and (part := next(self.stream.take(min(left, self._portion)), None)) is not None:
            left -= len(part.keys)
            yield part

    def _probe(self, part: Tuples) -> tuple[Iterable[pa.RecordBatch], Tuples]:
        """Look stream tuples up in ``H_R``; return the results of the hits, and the misses.

        The cache may change before the results are consumed, so R's rows are copied. They are limited to one batch of
        results, or to the rows of one tuple: tuples that would exceed this are put back.
        """
        held, positions, slots = self.cache.look_up(part.keys)
        stream = self.rows_of(part.batch).at(positions)
        sizes = stream.sizes + self.cache.sizes(slots)
        pairs = next((end for _, end in portions(positions.size, sizes, self.result_bytes)), 0)
        if pairs == positions.size:
            self._portion = min(2 * self._portion, PORTION)
            results: Iterable[pa.RecordBatch] = (
                list(self.joined(part.keys[positions], stream, *self.cache.rows(slots))) if pairs else ()
            )
        else:
            # Keep the tuples all of whose pairs fit, but at least the first hit.
            last = max(int(positions[pairs]), int(positions[0]) + 1)
            self._portion = max(1, last)
            pairs = int(np.searchsorted(positions, last))
            self.stream.put_back(Tuples(part.keys[last:], part.batch.slice(last)))
            held, positions = held[:last], positions[:pairs]
            data, starts, flags = self.cache.rows(slots[:pairs], copied=True)
            part = Tuples(part.keys[:last], part.batch.slice(0, last))
            results = self.joined(part.keys[positions], self.rows_of(part.batch).at(positions), data, starts, flags)
        self.tally.probes += held.size
        hits = int(np.count_nonzero(held))
        self.tally.recorded += hits
        self.tally.cache_hits += hits
        self.tally.rows_done += hits
        if hits == 0:
            return results, part
        missed = np.flatnonzero(~held)
        return results, Tuples(part.keys[missed], take_rows(part.batch, missed))

    def _hand_on(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        """Pass tuples to the join behind, which runs an iteration whenever it is full."""
        progress = Progress(self.inner)
        while len(part.keys):
            taken = self.inner.hand(part)
            if taken == 0 and self.inner.arrived == 0:
                # The tuple is larger than the whole stream buffer of the join behind.
                taken = 1
                yield from self.look_up(Tuples(part.keys[:1], part.batch.slice(0, 1)))
            part = Tuples(part.keys[taken:], part.batch.slice(taken))
            if len(part.keys):
                yield from self.inner.step()
                progress.turned()

    def notice(self, keys: Ints, data: Bytes, starts: Ints, flags: Bytes) -> None:
        """Observe matches of the join behind: admit frequent rows to ``H_R`` (Algorithm 1, lines 16 to 18)."""
        candidates = find_candidates(keys, starts, flags, self.relation.device.frame_bytes, self.threshold)
        evicted = self.cache.evictions
        if candidates.keys.size:
            self.cache.admit(candidates, data)
        self._learned[_NOTICED] += len(keys)
        self._learned[_EVICTED] += self.cache.evictions - evicted
        if self._learned[_NOTICED] >= self.cache.capacity // 4 + 1024:
            self._adapt()

    def _adapt(self) -> None:
        """Lower the threshold while there is room; raise it while evictions are too frequent."""
        noticed, evicted = self._learned[_NOTICED], self._learned[_EVICTED]
        if not self.cache.full or evicted * 8 < noticed:
            self.threshold = max(1, self.threshold - 1)
        elif evicted * 2 > noticed:
            self.threshold += 1
        self._learned[:] = self.threshold, 0, 0

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Prepare the join behind, which counts R's memory; shrink ``H_R`` if it has too little."""
        while True:
            try:
                self._agreed = self.inner.prepare_update(patch)
            except UpdateTooLargeError as refusal:
                undo.append(self.give_up(refusal.lacking, patch))
            else:
                undo.append(self._agreed.cancel)
                return

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Replace ``H_R`` by a smaller, empty one, to give memory to the join behind."""
        cache, each = self.cache, self._cached_bytes()
        size = max(cache.nbytes - lacking - cache.nbytes // 8, least_cache(each))
        rows = min((size - HotTuples.fixed_bytes()) // each, cache.capacity)
        smaller = None if self._arrays is not None else HotTuples(
            self.relation.codec, rows, self._stored_row_bytes(), aging=self._aging
        )  # fmt: skip
        if smaller is None or cache.nbytes - smaller.nbytes < lacking:
            raise self.too_large(lacking - (0 if smaller is None else max(0, cache.nbytes - smaller.nbytes)), patch)
        self._move_memory(smaller)
        return partial(self._move_memory, cache)

    def _move_memory(self, cache: HotTuples) -> None:
        """Replace ``H_R``; the join behind gets the difference in memory."""
        more = self.cache.nbytes - cache.nbytes
        for part, size in sorted(((self._cache_part, -more), (self._behind_part, more)), key=lambda pair: pair[1]):
            part.resize(part.bytes + size)
        self.inner.budget.resize(self.inner.budget.total + more)
        self.cache = cache

    def after_update(self, change: Change) -> None:
        """Forget the changed tuples."""
        try:
            self._agreed.commit(change)
        finally:
            self.cache.remove(change.keys)

    def forget_rows(self, keys: Ints) -> None:
        self.cache.remove(keys)

    def _update_bytes(self, overlay_bytes: int, index_bytes: int) -> int:
        return 0  # the join behind counts it

    def work(self) -> tuple[object, ...]:
        return (*super().work(), *(self.inner.work() if self.bound else ()))

    @property
    def waiting(self) -> int:
        return self.inner.pending if self.bound else 0

    @property
    def stats(self) -> JoinStatistics:
        """Counters of the cache and the join behind together."""
        mine, behind = super().stats, self.inner.stats
        # Results of the join behind leave through this stage; if results are only counted, the join behind counts them.
        names = _ADDED_UP if self.makes_results else (*_ADDED_UP, "rows_out")
        return dataclasses.replace(mine, **{name: getattr(mine, name) + getattr(behind, name) for name in names})

    def let_wait(self, batch: pa.RecordBatch) -> None:
        """Add waiting tuples to the join behind; see `WaitingJoin.let_wait`."""
        assert isinstance(self.inner, WaitingJoin), f"no tuples wait in {self.inner.id} as they are offered"
        self.inner.let_wait(batch)

    def check_parts(self) -> None:
        self.cache.check()
        self.inner.check()


def _seen_by(front: weakref.ref[FrontStage]) -> Observer:
    """Return an observer that does not keep the front stage alive: otherwise the two would reference each other."""

    def notice(keys: Ints, data: Bytes, starts: Ints, flags: Bytes) -> None:
        if (stage := front()) is not None:
            stage.notice(keys, data, starts, flags)

    return notice
