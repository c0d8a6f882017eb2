"""An LRU cache of rows in front of LMDB: sorted keys through one cursor per thread, one buffer per look-up.

LMDB has no cache except the page cache, so the LRU gets all of the memory.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from semistream.core.arrays import Ints
from semistream_lab.benchmarks.peers.cached_store import CachedStore
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import Dataset

__all__ = ["CONTESTANTS", "LmdbPeer"]

FOLDER = "lmdb"
TABLE = b"r"
LONGEST = 511
"""Maximum bytes of a value that LMDB stores next to its key, contiguously."""


class LmdbPeer(CachedStore):
    """Integer keys, loaded in order, and values of one size, which LMDB can return many at a time."""

    id = "lmdb"
    title = "LRU before LMDB"
    needs = ("lmdb",)
    threads = 16
    chunk = 256

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        import lmdb

        def load(path: Path) -> None:
            width = data.format.width
            if width - 8 > LONGEST:
                raise ValueError(f"rows have {width} bytes, and LMDB stores at most {LONGEST + 8} here; leave LMDB out")
            size = (4 * data.nbytes + (64 << 20)) & -mmap.PAGESIZE
            with lmdb.open(str(path), map_size=size, max_dbs=1, sync=False, writemap=True, readahead=False) as env:
                table = env.open_db(TABLE, integerkey=True, dupsort=True, dupfixed=True)
                for keys, rows in data.parts():
                    held, names = rows.tobytes(), keys.tobytes()
                    pairs = [
                        (names[8 * i : 8 * i + 8], held[width * i + 8 : width * (i + 1)]) for i in range(keys.size)
                    ]
                    with env.begin(db=table, write=True) as transaction:
                        transaction.cursor().putmulti(pairs, append=True)
                env.sync(True)

        data.made(FOLDER, load)

    def __init__(self, task: Task) -> None:
        self._cursors: list[Any] = []
        super().__init__(task)

    def open(self, cache_bytes: int) -> None:
        import lmdb

        path = str(self.files()[0].parent)
        self._env = lmdb.open(path, readonly=True, lock=False, readahead=False, max_dbs=1, max_readers=self.threads + 1)
        self._table = self._env.open_db(TABLE, create=False, integerkey=True, dupsort=True, dupfixed=True)
        for _ in range(self.threads):
            transaction = self._env.begin(db=self._table, buffers=True)
            self._cursors.append((transaction, transaction.cursor()))

    def look_up(self, keys: Ints, thread: int) -> bytes:
        names = keys.astype(np.int64).tobytes()
        wanted = [names[at : at + 8] for at in range(0, len(names), 8)]
        _, cursor = self._cursors[thread]
        return bytes(cursor.getmulti(wanted, dupdata=True, dupfixed_bytes=self.format.width - 8, keyfixed=True))

    def files(self) -> list[Path]:
        return [self.task.data.place / FOLDER / "data.mdb"]

    def drop_pages(self) -> None:
        """Unmap what was read.

        Mapped pages stay in the page cache even if they are dropped.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_text().splitlines():
            if line.endswith(str(self.files()[0].resolve())):
                begin, end = (int(part, 16) for part in line.split(maxsplit=1)[0].split("-"))
                libc.madvise(begin, end - begin, mmap.MADV_DONTNEED)

    def close(self) -> None:
        super().close()
        for transaction, cursor in self._cursors:
            cursor.close()
            transaction.abort()
        self._env.close()


CONTESTANTS: list[type[Contestant]] = [LmdbPeer]
