"""Keys that updates have added to R since the filter of a shard was built, in a sealed file.

An update does not write the filter again. The new version names the same filter, and a file with all keys that updates
have added since the filter was built. Deleted keys stay in the filter. When many keys have been added, the next version
has no filter; compaction builds a new one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.errors import SemistreamError
from semistream.relation.storage.files import write_file
from semistream.relation.storage.sealed_file import sealed, unsealed
from semistream.relation.storage.shard_files import ShardFilter
from semistream.relation.stores.store_path import Place

__all__ = ["filter_after_update", "load_added"]

_PART = 32
"""Maximum added keys, as a part of the filter's keys: 1/32, which takes 2 bits per key of the filter in memory."""
_FEW = 4096
"""This number of added keys is always allowed."""


def load_added(place: Place, entry: ShardFilter) -> Ints:
    """Return the added keys, ascending, or raise `NotARelationError`."""
    if entry.added_file is None:
        return np.empty(0, np.int64)
    size = 8 * entry.added
    content = unsealed(place / entry.added_file, "added keys", size, size, bound=True)
    return np.frombuffer(content, "<i8").astype(np.int64)


def filter_after_update(
    place: Place, before: ShardFilter | None, new: Ints | None, stem: str, index: str
) -> ShardFilter | None:
    """Return the filter that a shard has after an update, or None; names of new files begin with ``stem``.

    Parameters
    ----------
    before
        The filter of the version that is updated.
    new
        All keys that the update adds; None if they are not known.
    index
        Name of the shard's new index.
    """
    if before is None or new is None:
        return None
    if new.size == 0:
        return replace(before, of=index)
    if before.added + new.size > max(_FEW, before.keys // _PART):
        return None
    with suppress(SemistreamError, OSError):
        keys = np.union1d(load_added(place, before), new)
        name = f"{stem}.added"
        write_file(place / name, sealed(name, "added keys", keys.astype("<i8").tobytes()))
        return replace(before, of=index, added_file=name, added=keys.size)
    return None
