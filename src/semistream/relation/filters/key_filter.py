"""A filter in memory: of one shard, read from its file, or of all open shards of R."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Ints
from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.filters.added_keys import load_added
from semistream.relation.filters.filter_writer import (
    BLOCK_KEYS,
    HEADER_WORDS,
    MOST_BLOCK_BYTES,
    checksum_of_block,
    segments_for,
)
from semistream.relation.filters.segments import SEGMENT_KEYS, Segments, find_keys, keep_planes
from semistream.relation.storage.checksum import file_seed
from semistream.relation.storage.shard_files import ShardFilter
from semistream.relation.stores.store_path import Place, StorePath

__all__ = ["LOADING_BYTES", "FilterSize", "KeyFilter", "absent_keys", "filter_sizes", "load_filters"]

LOADING_BYTES = 3 * MOST_BLOCK_BYTES
"""Bytes in addition to a filter's own while it is read."""
_SEGMENT_BYTES = 8 + 1 + 4 + 4


class FilterSize(NamedTuple):
    """The size and the accuracy of a filter that is read with ``planes`` planes."""

    planes: int
    nbytes: int
    mistaken: float
    """Approximate share of absent keys that are mistaken for present ones."""


class KeyFilter:
    """The keys of one shard.

    Parameters
    ----------
    segments, last_count, planes
        See `find_keys`.
    added
        Ascending keys that are not in the segments.
    """

    def __init__(self, segments: Segments, last_count: int, planes: int, added: Ints) -> None:
        s = segments
        self._segments = Segments(
            frozen(s.first), frozen(s.kind), frozen(s.upper_at), frozen(s.lower_at), frozen(s.upper), frozen(s.lower)
        )
        self._last_count, self._planes = last_count, planes
        self.added = added

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._segments.nbytes + self.added.nbytes

    def may_have(self, keys: Ints) -> Bools:
        """Return which keys may be in the shard; all others are not in it."""
        found = np.empty(keys.size, np.bool_)
        find_keys(self._segments, self._last_count, self._planes, frozen(keys), found)
        if self.added.size:
            at = np.searchsorted(self.added, keys)
            at[at == self.added.size] = 0
            found |= self.added[at] == keys
        return found


def filter_sizes(filters: Sequence[ShardFilter | None]) -> list[FilterSize]:
    """Return the possible sizes of the filters of some shards, ascending; none if no shard has a filter."""
    there = [one for one in filters if one is not None]
    sizes: list[FilterSize] = []
    keys = sum(one.keys for one in there)
    for planes in range(len(there[0].planes) + 1 if there else 0):
        nbytes, mistaken = 0, 0.0
        for one in there:
            nbytes += segments_for(one.keys) * _SEGMENT_BYTES + 8 * (3 + one.upper + sum(one.planes[:planes]))
            nbytes += 8 * one.added
            # Only these keys can be mistaken: those whose next low bit is left out, and hashed keys.
            left = 64 * one.planes[planes] if planes < len(one.planes) else one.hashed
            mistaken += min(one.keys, left) / keys / (1.625 * 2**planes)
        if not sizes or nbytes > sizes[-1].nbytes:
            sizes.append(FilterSize(planes, nbytes, float(-np.expm1(-mistaken))))
    return sizes


def load_filters(place: Place, filters: Sequence[ShardFilter | None], planes: int) -> list[KeyFilter | None] | None:
    """Read the filters of some shards with ``planes`` planes of low bits.

    None if one of them cannot be used, for any reason: a key must never be reported absent because of damage.
    """
    found: list[KeyFilter | None] = []
    for one in filters:
        if one is None:
            found.append(None)
            continue
        loaded = None
        with suppress(SemistreamError, OSError, ValueError, IndexError, OverflowError):
            loaded = _load(place, one, planes)
        if loaded is None:
            return None
        found.append(loaded)
    return found


def absent_keys(filters: Sequence[KeyFilter | None], home: Callable[[Ints], NDArray[np.int32]], keys: Ints) -> Bools:
    """Return which keys no shard has; ``home`` returns the position of each key's shard, or -1."""
    if len(filters) == 1 and (alone := filters[0]) is not None:
        return ~alone.may_have(keys)
    absent, at = np.zeros(keys.size, np.bool_), home(keys)
    for number, one in enumerate(filters):
        if one is not None:
            mine = np.flatnonzero(at == number)
            absent[mine] = ~one.may_have(keys[mine])
    return absent


def _load(place: Place, entry: ShardFilter, planes: int) -> KeyFilter | None:
    path = place / entry.file
    added = load_added(place, entry)
    if isinstance(path, StorePath):
        return _read(io.BytesIO(path.read_bytes()), entry, planes, added)
    if path.stat().st_size != entry.nbytes:
        return None
    with open(path, "rb", buffering=0) as file:
        return _read(file, entry, planes, added)


def _read(file: BinaryIO | io.RawIOBase, entry: ShardFilter, planes: int, added: Ints) -> KeyFilter | None:
    """Read a filter block by block; return None if anything differs from what the manifest says."""
    segments, seed, total = segments_for(entry.keys), file_seed(entry.file), 0
    lowers = sum(entry.planes[:planes])
    made = Segments(
        np.empty(segments, np.int64), np.empty(segments, np.uint8),
        np.zeros(segments + 1, np.uint32), np.zeros(segments + 1, np.uint32),
        np.empty(entry.upper + 1, np.uint64), np.empty(lowers + 1, np.uint64),
    )  # fmt: skip
    at, upper_at, lower_at = 0, 0, 0
    for number in range(-(-entry.keys // BLOCK_KEYS)):
        count = min(BLOCK_KEYS, entry.keys - number * BLOCK_KEYS)
        here, head = segments_for(count), _words(file, HEADER_WORDS)
        keys, upper, lower = map(int, head[1:4])
        if keys != count or 8 * (HEADER_WORDS + 2 * here + upper + lower) > MOST_BLOCK_BYTES:
            return None
        block = np.concatenate([head, _words(file, 2 * here + upper + lower)])
        if checksum_of_block(block, number, seed) != int(block[0]):
            return None
        total += block.nbytes
        first, shapes = block[HEADER_WORDS:][:here], block[HEADER_WORDS + here :][:here]
        words, low = block[HEADER_WORDS + 2 * here :][:upper], block[HEADER_WORDS + 2 * here + upper :]
        low_bits = shapes >> np.uint64(24) & np.uint64(0xFF)
        each = np.minimum(SEGMENT_KEYS, count - np.arange(here) * SEGMENT_KEYS) + 63 >> 6
        kept = int((np.minimum(low_bits.astype(np.int64), planes) * each).sum())
        if upper_at + upper > entry.upper or lower_at + kept > lowers:
            return None
        made.first[at : at + here] = first.view(np.int64)
        made.kind[at : at + here] = shapes >> np.uint64(16) & np.uint64(0xFF) | low_bits << np.uint64(2)
        made.upper_at[at + 1 : at + here + 1] = upper_at + np.cumsum(shapes >> np.uint64(32))
        made.upper[upper_at : upper_at + upper] = words
        ends = made.lower_at[at + 1 : at + here + 1]
        keep_planes(frozen(low), frozen(shapes), planes, made.lower[lower_at : lower_at + kept], ends)
        ends += np.uint32(lower_at)
        at, upper_at, lower_at = at + here, upper_at + upper, lower_at + kept
    if (total, upper_at, lower_at, int(made.upper_at[-1])) != (entry.nbytes, entry.upper, lowers, upper_at):
        return None
    return KeyFilter(made, entry.keys - (segments - 1) * SEGMENT_KEYS, planes, added)


def _words(file: BinaryIO | io.RawIOBase, count: int) -> NDArray[np.uint64]:
    content = file.read(8 * count) or b""
    return np.frombuffer(content, np.uint64, count)  # ValueError if the file ends too early
