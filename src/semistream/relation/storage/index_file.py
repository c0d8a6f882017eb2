"""The file of an index. It is read completely, once.

::

    0  u64 pages n
    8  i64 first key of each page[n]
    .  u8  whether the previous page also ends with that key[n]
    .  i64 when the first row of each page begins to be valid[n], only of a history

sealed with the file's name (relation/storage/sealed_file.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.relation.storage.sealed_file import damaged, sealed, unsealed
from semistream.relation.stores.store_path import Place

__all__ = ["index_to_bytes", "load_index", "load_timed_index"]

_COUNT_BYTES, _PAGE_BYTES, _TIME_BYTES = 8, 9, 8


def index_to_bytes(
    name: str, first: Ints, continues: NDArray[np.bool_], times: Ints | None = None, *, bound: bool = True
) -> bytes:
    """Return the content of the index file of that name. `unsealed` describes ``bound``."""
    content = first.size.to_bytes(_COUNT_BYTES, "little") + first.astype("<i8").tobytes() + continues.tobytes()
    content += b"" if times is None else times.astype("<i8").tobytes()
    return sealed(name, "index", content, bound=bound)


def load_index(path: Place, pages: int, *, bound: bool = True) -> tuple[Ints, NDArray[np.bool_]]:
    """Read the index of ``pages`` pages, or raise `NotARelationError`. `unsealed` describes ``bound``.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "shard.index"
    ...     _ = file.write_bytes(index_to_bytes("shard.index", np.array([-5, 70]), np.array([False, True])))
    ...     load_index(file, 2)
    (array([-5, 70]), array([False,  True]))
    """
    first, continues, _ = _load(path, pages, _PAGE_BYTES, bound)
    return first, continues


def load_timed_index(path: Place, pages: int, *, bound: bool = True) -> tuple[Ints, NDArray[np.bool_], Ints]:
    """Do the same as `load_index` for a history, whose index also has the begin of each page's first row."""
    first, continues, content = _load(path, pages, _PAGE_BYTES + _TIME_BYTES, bound)
    times = np.frombuffer(content, "<i8", pages, _COUNT_BYTES + _PAGE_BYTES * pages).astype(np.int64)
    if np.any((first[1:] == first[:-1]) & (times[1:] <= times[:-1])):
        raise damaged(path, "index", "has times that do not ascend")
    return first, continues, times


def _load(path: Place, pages: int, each: int, bound: bool) -> tuple[Ints, NDArray[np.bool_], bytes]:
    size = _COUNT_BYTES + each * pages
    content = unsealed(path, "index", size, size, bound=bound)
    if len(content) != size or int.from_bytes(content[:_COUNT_BYTES], "little") != pages:
        raise damaged(path, "index", f"is not that of {pages:,} pages")
    first = np.frombuffer(content, "<i8", pages, _COUNT_BYTES).astype(np.int64)
    if np.any(first[1:] < first[:-1]):
        raise damaged(path, "index", "does not ascend")
    return first, np.frombuffer(content, np.uint8, pages, _COUNT_BYTES + 8 * pages) != 0, content
