"""Rebuilds one damaged page from the rows that belong to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import SemistreamError
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import FIRST, FORMAT, HEADER, LAST, WHOLE, pack_pages, page_keys
from semistream.relation.pages.stored_rows import roomy_codec
from semistream.relation.rows.selection import keep_rows
from semistream.relation.storage.manifest import Manifest, ShardFiles

__all__ = ["DamagedShard", "MixedUpError", "RepairError", "Repaired", "check_layout", "packed_page"]


@dataclass(frozen=True)
class Repaired:
    """A page that was repaired, or (page -1) a whole file."""

    file: str
    page: int
    rows: int
    proof: str
    """What verifies it: ``checksum``, ``copy``, ``pages``, ``keys and counts``; for a new version ``data``,
    or ``rows`` if only a secondary index was sorted again."""


class RepairError(SemistreamError):
    """Damage that cannot be repaired with what was given."""

    repaired: Sequence[Repaired] = ()
    """What was repaired."""


class MixedUpError(RepairError):
    """A version that was written wrongly: no file can restore what it has lost."""


@dataclass
class DamagedShard:
    """A shard with damaged pages."""

    number: int
    files: ShardFiles
    relation: OpenRelation
    bad: list[int]
    """Ids of the damaged pages."""
    good_rows: int
    keys: list[Ints] = field(default_factory=list)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    """The source's rows for these pages."""

    @property
    def index(self) -> ClusteredIndex:
        index = self.relation.indexes[0]
        assert isinstance(index, ClusteredIndex)
        return index

    @property
    def order(self) -> Ints:
        """Page ids in key order."""
        index = self.index
        return np.arange(index.first.size) if index.ids is None else index.ids


def check_layout(manifest: Manifest, shard: ShardFiles, file: Path, local: int) -> None:
    """Raise if a file's rows are in an earlier layout: the data may no longer have its columns."""
    names = [shard.pages_file, *(name for name, _ in shard.deltas)]
    layouts = manifest.row_layouts
    if not layouts.layouts[shard.page_layouts[names.index(file.name)]].equals(layouts.current):
        raise RepairError(
            f"page {local} of {file} was written before columns changed, so the present data cannot rebuild it; give "
            "a copy of the relation, or build it again"
        )


def packed_page(
    shard: DamagedShard, at: int | None, keys: Ints, batch: pa.RecordBatch, file: Path, local: int
) -> Bytes:
    """Return the page at a position of the index, with the rows that belong to it."""
    relation, index = shard.relation, shard.index
    layout = replace(relation.layout, frame_bytes=relation.layout.room)
    if at is None:  # a page that an update emptied
        frame = np.zeros((1, layout.frame_bytes), np.uint8)
        frame[:, 20:24] = np.array([FORMAT], np.uint32).view(np.uint8)
        return frame
    low, goes_on = int(index.first[at]), at + 1 < index.first.size
    high = int(index.first[at + 1]) if goes_on else None
    begins_before, ends_after = bool(index.continues[at]), goes_on and bool(index.continues[at + 1])
    begin = int(np.searchsorted(keys, low, "left"))
    end = keys.size if high is None else int(np.searchsorted(keys, high, "right" if ends_after else "left"))
    keys, batch = keys[begin:end], batch.slice(begin, end - begin)
    codec = roomy_codec(relation.codec)  # encodes rows to the same bytes
    encoded = codec.encode(batch.select(codec.schema.names))
    shared = [key for key, is_shared in ((low, begins_before), (high, ends_after)) if is_shared]
    if shared:
        kept = _without_neighbours(shard, at, keys, encoded.data, encoded.starts, encoded.lengths, shared)
        keys, batch = keys[kept], keep_rows(batch, kept)
        encoded = codec.encode(batch.select(codec.schema.names))
    used = HEADER + 7 + (keys.size * (9 + layout.stride) if layout.stride else int((encoded.lengths + 13).sum()))
    if keys.size == 0 and shard.files.rows == 0:
        return pack_pages(layout, keys, np.empty(0, np.uint8), encoded, np.zeros(2, np.int64))
    if keys.size == 0 or int(keys[0]) != low or used > layout.frame_bytes:
        raise RepairError(
            f"page {local} of {file}: the source's keys differ from those of the index; give the data as it was in "
            f"version {relation.version}, or a copy of the relation"
        )
    starts = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=starts[1:])
    ends = np.append(starts[1:], True)
    starts[0], ends[-1] = not begins_before, not (ends_after and int(keys[-1]) == high)
    run = np.cumsum(np.append(True, keys[1:] != keys[:-1])) - 1
    whole = np.bincount(run, starts) * np.bincount(run, ends) > 0
    flags = np.where(starts, FIRST, 0) | np.where(ends, LAST, 0) | np.where(whole[run], WHOLE, 0)
    return pack_pages(layout, keys, flags.astype(np.uint8), encoded, np.array([0, keys.size], np.int64))


def _without_neighbours(
    shard: DamagedShard, at: int, keys: Ints, data: Bytes, starts: Ints, lengths: Ints, shared: list[int | None]
) -> NDArray[np.bool_]:
    """Return which rows belong to this page: of a key that spans pages, the rows that no other page has."""
    index, relation, order = shard.index, shard.relation, shard.order
    there: Counter[tuple[int, bytes]] = Counter()
    frames = relation.frames(1)
    for key in shared:
        assert key is not None
        first = max(int(np.searchsorted(index.first, key, "left")) - 1, 0)
        for other in range(first, int(np.searchsorted(index.first, key, "right"))):
            if other == at:
                continue
            if int(order[other]) in shard.bad:
                raise RepairError(
                    f"two damaged pages of {relation.path} share the rows of one key, and their division is lost; "
                    "give a copy of the relation, or build it again"
                )
            relation.read(order[other : other + 1], frames)
            found, _, begins = page_keys(frames, relation.layout.stride)
            flat = frames.reshape(-1)
            for begin in begins[found == key]:
                size = relation.layout.stride or int(flat[begin : begin + 4].view(np.uint32)[0])
                there[key, flat[begin : begin + size].tobytes()] += 1
    kept = np.ones(keys.size, bool)
    for row in np.flatnonzero(np.isin(keys, [key for key in shared if key is not None])):
        what = int(keys[row]), data[starts[row] : starts[row] + lengths[row]].tobytes()
        if there[what]:
            there[what] -= 1
            kept[row] = False
    return kept
