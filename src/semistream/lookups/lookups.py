"""Look-ups: the rows of given keys, in the order of the keys, through a cache with a budget in bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.budget import MemoryBudget
from semistream.core.errors import ColumnClashError, SemistreamError, UnsupportedJoinError
from semistream.core.statistics import JoinStatistics
from semistream.lookups.given_keys import key_batch
from semistream.lookups.key_join import Answer, KeyJoin
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.update_agreement import Agreement
from semistream.relation.relation import Relation
from semistream.relation.row_lookups import RowLookups
from semistream.relation.rows.selection import keep_rows
from semistream.relation.storage.manifest import Manifest
from semistream.relation.version_changes import changed_between

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch
    from semistream.relation.pages.page_layout import PageLayout
    from semistream.relation.rows.packed.packing import Packing

__all__ = ["Lookups"]

_AT_ONCE = 1024
"""Keys: `aget` answers up to this many from the cache without a thread, in less time than a thread costs."""
_PAGES_COMPARED, _MOST_COMPARED = 256, 1 << 14
"""Pages that `changed_between` holds; and the maximum that it reads before an empty cache is the better choice."""


class Lookups(RowLookups):
    """Look-ups in one relation.

    Create them with `Relation.lookups`. The cache is the arena of ADAPTIVEJOIN. It holds rows, and also keys that R
    does not have; the most frequent keys stay. Keys that are not cached are sorted and read together, with several
    requests in flight. So one call with many keys is much faster than many calls.

    **Threads.** Any thread may call. Calls run one after the other, as they share the cache and the device.

    **Versions.** Look-ups show the version that the relation object shows. `Relation.upsert`, `refresh` and the other
    methods that change the version wait for running calls. Afterwards the changed keys are read again; other rows stay
    cached, unless R was rebuilt or compacted. `Relation.apply` keeps changed pages in memory, inside this budget, and
    is refused if they do not fit.

    **Memory.** The budget covers the cache, the index of R, the pages being read and one batch of results. The returned
    batch belongs to the caller. If it is larger than 1/32 of the budget, it exists twice for a moment.

    Parameters
    ----------
    relation
        R, which must stay open.
    memory
        All memory: bytes, text such as ``"64MB"``, or a share of R such as ``"5%"``.
    """

    def __init__(self, relation: Relation, *, memory: int | float | str = "64MB") -> None:
        self.relation = relation
        self._memory = memory
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._join: KeyJoin | None = KeyJoin(relation, memory)
        relation.subscribe(self)

    # -- look-ups -----------------------------------------------------------------------------------------

    def get(
        self, keys: Any, columns: Sequence[str] | None = None, *, found: str | None = None, many: bool = False
    ) -> pa.RecordBatch:
        """Return R's columns for each key, in the order of the keys.

        A key that R does not have, or that contains a NULL, gets NULLs. Types are compared as in a join: integers of
        any width, strings of any kind. A value that R's type cannot hold is a key that R does not have.

        Parameters
        ----------
        keys
            Of one column: a list, a NumPy or Arrow array, a Series. Of several columns: a list of tuples. Of either: a
            table or a mapping with R's key columns; other columns are ignored. A key may occur repeatedly.
        columns
            R's columns to return, without the key; by default all. Other columns are not decoded.
        found
            Name of an additional last column that says whether R has the key: R's own columns may contain NULLs.
        many
            Return lists, which hold the values of all rows of a key: for an R with several rows per key. A key that R
            does not have gets an empty list.

        Examples
        --------
        >>> import pyarrow as pa, tempfile
        >>> prices = pa.table({"id": [1, 2, 2], "price": [5, 6, 7]})
        >>> with tempfile.TemporaryDirectory() as folder, Relation.build(prices, f"{folder}/r", key="id") as relation:
        ...     with relation.lookups(memory="1MB") as lookups:
        ...         lookups.get([2, 9, 1], many=True).to_pydict()
        {'price': [[6, 7], [], [5]]}
        """
        self._check(many)
        batch = key_batch(keys, self.relation.key)
        with self._lock:
            return self._answer(batch, columns, found, many)

    async def aget(
        self, keys: Any, columns: Sequence[str] | None = None, *, found: str | None = None, many: bool = False
    ) -> pa.RecordBatch:
        """Do the same as `get`.

        Pages are read in a thread, while the event loop goes on. A cancelled call still finishes in its thread, and
        leaves its rows in the cache.
        """
        self._check(many)
        batch = key_batch(keys, self.relation.key)
        if batch.num_rows <= _AT_ONCE and self._lock.acquire(blocking=False):
            try:
                known = self._known(batch, columns, found, many)
            finally:
                self._lock.release()
            if known is not None:
                return known
        pool = self._pool
        if pool is None:
            self._pool = pool = ThreadPoolExecutor(1, "semistream-lookup")
        call = partial(self.get, batch, columns, found=found, many=many)
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    @property
    def stats(self) -> JoinStatistics:
        """Counters since the cache was last empty: keys (``rows_in``), ``cache_hits``, ``pages_read`` and others."""
        with self._lock:
            return JoinStatistics() if self._join is None else self._join.stats

    @property
    def budget(self) -> MemoryBudget:
        """The memory: its total, what is reserved now, and the peak."""
        with self._lock:
            return self._opened().budget

    def check(self) -> None:
        """Assert all invariants."""
        with self._lock:
            if self._join is not None:
                self._join.check()
                assert self._join.pending == 0

    def close(self) -> None:
        """Release the memory, after running calls; R stays open."""
        with self._lock:
            self._closed, self._join = True, None
            self.relation.unsubscribe(self)
        self._pool = None  # not shut down: calls that use it now must get the error of a closed cache

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- R changes ----------------------------------------------------------------------------------------

    def prepare_update(self, patch: Patch) -> Agreement:
        """Agree to an update of R in memory, after running calls, or raise; see `Listener`."""
        self._lock.acquire()
        try:
            agreement = None if self._join is None else self._join.prepare_update(patch)
        except BaseException:
            self._lock.release()
            raise
        return _Consent(agreement, self._lock, self.forget_all)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Wait for running calls, and hold back new ones while R moves to another version; then follow it."""
        with self._lock:
            before, pages = self.relation.manifest, self._pages()
            try:
                yield
            finally:
                if not self.relation.closed and self.relation.manifest is not before:
                    if self._pages() != pages:  # R was compacted while joins were attached, and showed the old pages
                        self.forget_all()
                    self._follow(before)

    def forget_all(self) -> None:
        """Start with an empty cache, in the next call."""
        self._join = None

    def _follow(self, before: Manifest | None) -> None:
        """Forget the keys whose rows differ from those of version ``before``; all keys if the changes are not known."""
        join, self._join = self._join, None
        if join is None or before is None:
            return
        changed = self._changed(before, join)
        if changed is None:
            return
        join.forget_rows(changed)
        if join.move():
            self._join = join

    def _changed(self, before: Manifest, join: KeyJoin) -> Ints | None:
        """Return the changed keys; the pages that are compared use the memory of a batch of results."""
        path, after = self.relation.path, self.relation.manifest
        room = join.result_bytes // self.relation.page_bytes
        if path is None or after is None or before.schema != after.schema:
            return None
        most = _MOST_COMPARED if room >= _PAGES_COMPARED else room
        changed: list[Ints] = []
        for shard in range(len(after.shards)):
            found = changed_between(path, before, after, shard, most)
            if found is None:
                return None
            changed.append(found)
        return np.sort(np.concatenate(changed))

    # -- inside -------------------------------------------------------------------------------------------

    def _pages(self) -> tuple[Packing | None, PageLayout]:
        """Return what the cache knows about the bytes of the pages that are open, whichever version they show."""
        return self.relation.packing, self.relation.layout

    def _answer(
        self, keys: pa.RecordBatch, columns: Sequence[str] | None, found: str | None, many: bool
    ) -> pa.RecordBatch:
        known = self._known(keys, columns, found, many)
        if known is not None:
            return known
        join, wide = self._opened(), self.relation.key.widen(keys)
        try:
            answer = join.answer(pa.RecordBatch.from_arrays(wide, names=list(keys.schema.names)), columns)
        except BaseException:
            self._join = None  # a join whose iteration has failed cannot be used again
            raise
        return self._shaped(answer, columns, keys.num_rows, found, many)

    def _known(
        self, keys: pa.RecordBatch, columns: Sequence[str] | None, found: str | None, many: bool
    ) -> pa.RecordBatch | None:
        """Answer from the cache, with the lock; None if R must be read."""
        join = self._opened()
        self._check(many)  # again: R may have moved before this call got the lock
        answer = join.known(keys, columns)
        return None if answer is None else self._shaped(answer, columns, keys.num_rows, found, many)

    def _opened(self) -> KeyJoin:
        if self.relation.closed or self._closed:
            what = "the relation" if self.relation.closed else "this look-up cache"
            raise SemistreamError(f"{what} is closed; open it again with Relation.open and Relation.lookups")
        if self._join is None:
            self._join = KeyJoin(self.relation, self._memory)
        return self._join

    def _shaped(
        self, answer: Answer, columns: Sequence[str] | None, count: int, found: str | None, many: bool
    ) -> pa.RecordBatch:
        names = list(self.relation.value_schema.names if columns is None else columns)
        return _result(answer, names, count, found, many)

    def _check(self, many: bool) -> None:
        if not many and not self.relation.unique:
            raise UnsupportedJoinError(
                f"the relation {self.relation.path} may have several rows for a key {list(self.relation.key.names)}, "
                "and a look-up returns one; look up with many=True, which returns lists, or build R with unique=True"
            )


class _Consent:
    """Agreement to an update of R; calls are held back until it is committed or cancelled."""

    def __init__(self, agreement: Agreement | None, held: threading.Lock, forget_all: Callable[[], None]) -> None:
        self._agreement, self._held, self._forget_all = agreement, held, forget_all

    def commit(self, change: Change) -> None:
        if self._agreement is not None:
            self._agreement.commit(change)
        self._held.release()

    def cancel(self) -> None:
        if self._agreement is not None:
            self._agreement.cancel()
        self._held.release()

    def failed(self, error: BaseException) -> None:
        self._forget_all()
        self._held.release()


def _result(answer: Answer, names: list[str], count: int, found: str | None, many: bool) -> pa.RecordBatch:
    """Return one row per key: a row of R, or lists with its rows."""
    columns, there = answer.columns, answer.found
    if many:
        positions = np.arange(count) if answer.positions is None else answer.positions
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(positions[there], minlength=count), out=offsets[1:])
        if columns and not there.all():
            columns = keep_rows(pa.RecordBatch.from_arrays(columns, names=names), there).columns
        columns = [pa.ListArray.from_arrays(pa.array(offsets), column) for column in columns]
        there = np.diff(offsets) > 0
    if found is not None:
        if found in names:
            raise ColumnClashError(f"found={found!r} is a column of the result as well; give another name")
        columns, names = [*columns, pa.array(there)], [*names, found]
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, names=names)
