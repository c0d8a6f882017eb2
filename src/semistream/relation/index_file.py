"""The file of an index.

::

    0  u64 pages n
    8  i64 first key of each page[n]
    .  u8  whether the page before ends with that key too[n]
    .  u32 CRC-32 of all before

An index is read whole, once. Damage to it would lead joins to the wrong pages, and rows would silently be missing;
hence the checksum.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semistream.core.errors import NotARelationError

__all__ = ["index_to_bytes", "load_index"]

Ints = NDArray[np.int64]
_COUNT_BYTES, _PAGE_BYTES, _CHECKSUM_BYTES = 8, 9, 4


def index_to_bytes(first: Ints, continues: NDArray[np.bool_]) -> bytes:
    """Return what the file of an index holds."""
    content = first.size.to_bytes(_COUNT_BYTES, "little") + first.astype("<i8").tobytes() + continues.tobytes()
    return content + zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")


def load_index(path: Path, pages: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Read the index of so many pages, or raise `NotARelationError`.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(index_to_bytes(np.array([-5, 70]), np.array([False, True])))
    ...     _ = file.flush()
    ...     load_index(Path(file.name), 2)
    (array([-5, 70]), array([False,  True]))
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error})") from error
    size = _COUNT_BYTES + _PAGE_BYTES * pages + _CHECKSUM_BYTES
    if len(content) != size:
        raise _damaged(path, f"has {len(content):,} bytes instead of the {size:,} of {pages:,} pages")
    body, checksum = content[:-_CHECKSUM_BYTES], int.from_bytes(content[-_CHECKSUM_BYTES:], "little")
    if zlib.crc32(body) != checksum:
        raise _damaged(path, "is not what was written: its checksum differs")
    first = np.frombuffer(body, "<i8", pages, _COUNT_BYTES)
    return first.astype(np.int64), np.frombuffer(body, np.bool_, pages, _COUNT_BYTES + 8 * pages).copy()


def _damaged(path: Path, why: str) -> NotARelationError:
    return NotARelationError(f"the index {path} {why}; run semistream repair, or build the relation again")
