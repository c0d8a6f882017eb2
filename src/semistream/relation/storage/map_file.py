"""The file of a shard's page map, which lists the pages that updates have moved.

::

    0  u64 pages by id | 8  u64 pages in the index n | 16  u64 changed pages m
    24 i64 ids in key order[n]
    .  i64 changed ids[m], ascending | i64 their places[m]

sealed with the file's name (relation/storage/sealed_file.py).
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError
from semistream.relation.storage.manifest import ShardFiles
from semistream.relation.storage.page_map import PageMap
from semistream.relation.storage.sealed_file import damaged, sealed, unsealed
from semistream.relation.stores.store_path import Place

__all__ = ["MixedUpMapError", "load_map", "map_to_bytes"]


class MixedUpMapError(NotARelationError):
    """A map that was written wrongly, rather than damaged later."""


def map_to_bytes(name: str, order: Ints, page_map: PageMap, *, bound: bool = True) -> bytes:
    """Return the content of the map file of that name.

    ``order`` is the page ids in key order; `unsealed` describes ``bound``.
    """
    header = np.array([page_map.page_count, order.size, page_map.changed.size], "<i8")
    arrays = (header, order, page_map.changed, page_map.places)
    return sealed(name, "page map", b"".join(array.astype("<i8").tobytes() for array in arrays), bound=bound)


def load_map(path: Place, shard: ShardFiles) -> tuple[Ints, PageMap]:
    """Read the map of a shard whose files are in ``path``, or raise `NotARelationError`."""
    assert shard.map_file is not None
    file, bound = path / shard.map_file, shard.map_file not in shard.unbound
    deltas = sum(pages for _, pages in shard.deltas)
    indexed = shard.pages if shard.indexed is None else shard.indexed
    content = unsealed(file, "page map", 24 + 8 * indexed, 24 + 8 * indexed + 16 * deltas, bound=bound)
    if len(content) % 8:
        raise damaged(file, "page map", "is cut")
    values = np.frombuffer(content, "<i8").astype(np.int64)
    page_count, ordered, changed = (int(value) for value in values[:3])
    if ordered != indexed or changed < 0 or values.size != 3 + ordered + 2 * changed:
        raise damaged(file, "page map", f"is not that of {indexed:,} pages in the index")
    order, ids, places = np.split(values[3:], [ordered, ordered + changed])
    if (why := _what_is_wrong(order, ids, places, page_count, shard.pages, deltas)) is not None:
        if bound:
            raise damaged(file, "page map", why)
        raise MixedUpMapError(
            f"the page map {file} {why}: updates of several shards by earlier releases could write such a map, and "
            "rows of that version are lost; open the version before the update, or give the data to semistream repair "
            "--from, or build the relation again"
        )
    return order, PageMap(page_count, shard.pages, ids, places)


def _what_is_wrong(order: Ints, ids: Ints, places: Ints, page_count: int, file_pages: int, deltas: int) -> str | None:
    """Return what is impossible about a map, or None."""
    if not file_pages <= page_count <= file_pages + deltas:
        return f"has {page_count:,} pages where {file_pages:,} to {file_pages + deltas:,} can be"
    if order.size and not (order.min() >= 0 and order.max() < page_count):
        return "names pages that do not exist"
    if np.unique(order).size != order.size:
        return "names a page twice"
    if np.any(ids[1:] <= ids[:-1]) or (ids.size and not (ids[0] >= 0 and ids[-1] < page_count)):
        return "moves pages that do not exist, or one twice"
    if places.size and not (places.min() >= 0 and places.max() < deltas):
        return "moves pages to places that do not exist"
    if np.unique(places).size != places.size:
        return "moves two pages to one place"
    if np.count_nonzero(ids >= file_pages) != page_count - file_pages:
        return "has pages that are nowhere"
    return None
