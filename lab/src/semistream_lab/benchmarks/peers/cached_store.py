"""A key-value store of rows behind an LRU cache.

The distinct keys of a batch that miss the LRU are looked up in order. Stores differ in how they load R, and in how many
keys one look-up has.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY
from semistream_lab.benchmarks.peers.row_cache import RowCache

__all__ = ["CachedStore"]

PIECE_ROWS = 1 << 16
"""Rows per piece of the result: they stay in the processor's cache while they are converted to columns."""


class CachedStore(Contestant):
    """An LRU cache of rows in front of a store.

    The columns of R are gathered from the rows of distinct keys, in the order of the stream.
    """

    fixed_rows = True
    store_share: ClassVar[float] = 0.0
    """Share of the memory for the store's own cache. The LRU gets the rest."""
    threads: ClassVar[int] = 1
    """Parallel look-ups: a device answers several as fast as one."""
    chunk: ClassVar[int] = 512
    """Keys per look-up."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.format = task.data.format
        self.cache = RowCache(int(task.memory * (1 - self.store_share)), self.format.dtype)
        self._tuples = 0
        self._hits = 0
        self._looked_up = 0
        self._pool = ThreadPoolExecutor(self.threads)
        self.open(int(task.memory * self.store_share))

    @abstractmethod
    def open(self, cache_bytes: int) -> None:
        """Open the store with its own cache of ``cache_bytes``."""

    @abstractmethod
    def look_up(self, keys: Ints, thread: int) -> bytes:
        """Return the concatenated rows of sorted keys, without keys that are not in R."""

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys, number = np.unique(batch[KEY].to_numpy(), return_inverse=True)
        now = np.empty(keys.size, np.int64)
        now[number] = np.arange(self._tuples, self._tuples + number.size)
        self._tuples += number.size
        places = self.cache.find(keys, now)
        away = np.flatnonzero(places < 0)
        self._hits += int((places >= 0)[number].sum())
        self._looked_up += away.size
        rows = self.cache.rows[places]
        fetched = self._fetch(keys[away])
        known = np.ones(keys.size, bool)
        if fetched.size < away.size:
            there = np.searchsorted(keys[away], fetched[KEY])
            known[away] = False
            away = away[there]
            known[away] = True
        rows[away] = fetched
        self.cache.keep(keys[away], fetched, now[away])
        del fetched
        yield from self._pieces(batch, rows, number, None if known.all() else known)

    def _pieces(
        self, batch: pa.RecordBatch, rows: NDArray[Any], number: Ints, known: NDArray[np.bool_] | None
    ) -> Iterator[pa.RecordBatch]:
        names = batch.schema.names + [name for name in self.format.schema.names if name != KEY]
        for begin in range(0, number.size, PIECE_ROWS):
            piece, numbers = batch.slice(begin, PIECE_ROWS), number[begin : begin + PIECE_ROWS]
            if known is not None:
                piece, numbers = piece.filter(pa.array(known[numbers])), numbers[known[numbers]]
            columns = self.format.columns(rows[numbers])
            del columns[self.format.schema.names.index(KEY)]
            yield pa.RecordBatch.from_arrays(piece.columns + columns, names)

    def _fetch(self, keys: Ints) -> NDArray[Any]:
        """Look up keys in parallel.

        Each thread has its own range of R, whose inner pages it then caches.
        """
        bounds = np.linspace(0, keys.size, self.threads + 1).astype(np.int64).tolist()
        found: list[bytes] = [b""] * self.threads

        def work(thread: int) -> None:
            ranges = range(bounds[thread], bounds[thread + 1], self.chunk)
            parts = (keys[begin : min(begin + self.chunk, bounds[thread + 1])] for begin in ranges)
            found[thread] = b"".join([self.look_up(part, thread) for part in parts])

        each(self._pool, work, self.threads)
        return np.frombuffer(b"".join(found), self.format.dtype)

    def counts(self) -> dict[str, Any]:
        return {"tuples": self._tuples, "hits": self._hits, "looked_up": self._looked_up}

    def close(self) -> None:
        self._pool.shutdown()


def each(pool: ThreadPoolExecutor, work: Callable[[int], None], threads: int) -> None:
    """Run ``work`` with the number of each thread; in the calling thread if there is only one."""
    if threads == 1:
        work(0)
        return
    for done in [pool.submit(work, thread) for thread in range(threads)]:
        done.result()
