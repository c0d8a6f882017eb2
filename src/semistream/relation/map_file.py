"""The file of a shard's page map: what updates have moved.

::

    0  u64 pages by id | 8  u64 pages in the index n | 16  u64 changed pages m
    24 i64 ids in key order[n]
    .  i64 changed ids[m], ascending | i64 their places[m]
    .  u32 CRC-32 of all before
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semistream.core.errors import NotARelationError
from semistream.relation.mapped_device import PageMap

__all__ = ["load_map", "map_to_bytes"]

Ints = NDArray[np.int64]


def map_to_bytes(order: Ints, page_map: PageMap) -> bytes:
    """Return what the file of a map holds; ``order`` is the page ids in key order."""
    header = np.array([page_map.page_count, order.size, page_map.changed.size], "<i8")
    arrays = (header, order, page_map.changed, page_map.places)
    content = b"".join(array.astype("<i8").tobytes() for array in arrays)
    return content + zlib.crc32(content).to_bytes(4, "little")


def load_map(path: Path, file_pages: int) -> tuple[Ints, PageMap]:
    """Read a map, or raise `NotARelationError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error})") from error
    body = content[:-4]
    if len(content) < 28 or zlib.crc32(body) != int.from_bytes(content[-4:], "little"):
        raise _damaged(path, "is not what was written: its checksum differs")
    values = np.frombuffer(body, "<i8").astype(np.int64)
    page_count, ordered, changed = (int(value) for value in values[:3])
    order, ids, places = np.split(values[3:], [ordered, ordered + changed])
    return order, PageMap(page_count, file_pages, ids, places)


def _damaged(path: Path, why: str) -> NotARelationError:
    return NotARelationError(f"the page map {path} {why}; restore the file, or open the version before")
