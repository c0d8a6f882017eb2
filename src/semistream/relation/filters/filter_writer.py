"""Writes the filter of a shard while its pages are written: a file of blocks, each of a few segments of keys.

A block::

     0  u64 checksum of bytes 8.., seeded with the block's number and the file's name   (relation/storage/checksum.py)
     8  u64 keys n
    16  u64 words of high parts  | 24  u64 words of low bits
    32  zeros
    64  i64 first key of each segment
     .  u64 its keys, kind, low bits and words of high parts   (`pack_segments`)
     .  high parts, then low bits, of each segment

All blocks but the last have the same number of keys. A block is written when its keys are known, so the writer holds
few keys, whatever the size of the shard.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.compiled import frozen
from semistream.relation.filters.segments import (
    HASHES,
    MOST_LOWER,
    MOST_UPPER,
    PLANES,
    SEGMENT_KEYS,
    Words,
    pack_segments,
)
from semistream.relation.storage import files
from semistream.relation.storage.checksum import file_seed, page_checksum
from semistream.relation.storage.shard_files import ShardFilter

__all__ = ["BLOCK_KEYS", "HEADER_WORDS", "MOST_BLOCK_BYTES", "FilterWriter", "checksum_of_block", "segments_for"]

LEAST_KEYS = 1 << 16
"""Keys: a shard with fewer has no filter, because all of its pages are soon in a cache."""
BLOCK_KEYS = 8 * SEGMENT_KEYS
HEADER_WORDS = 8
MOST_BLOCK_BYTES = 8 * (HEADER_WORDS + BLOCK_KEYS // SEGMENT_KEYS * (2 + MOST_UPPER + MOST_LOWER))


def segments_for(keys: int) -> int:
    """Return how many segments hold ``keys`` keys."""
    return -(-keys // SEGMENT_KEYS)


def checksum_of_block(block: Words, number: int, seed: int) -> int:
    """Return the checksum of a block, whose first word is ignored."""
    return page_checksum(block.view(np.uint8), number, seed)


class FilterWriter:
    """Takes the keys of a shard in ascending order.

    Parameters
    ----------
    path
        The file. It is not created if there are few keys.
    index
        Name of the shard's index; see `ShardFilter`.
    """

    def __init__(self, path: Path, index: str) -> None:
        self._path, self._index, self._seed = path, index, file_seed(path.name)
        self._file: files.WrittenFile | None = None
        self._waiting: list[Ints] = []
        self._waiting_keys = self._keys = self._blocks = self._bytes = self._upper = self._hashed = 0
        self._last: int | None = None
        self._planes = np.zeros(PLANES, np.int64)

    def add(self, keys: Ints) -> None:
        """Add keys that are not below those before; a key may occur repeatedly."""
        if keys.size == 0:
            return
        new = np.empty(keys.size, np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=new[1:])
        new[0] = self._last is None or keys[0] != self._last
        self._last = int(keys[-1])
        distinct = keys[new]
        self._waiting.append(distinct)
        self._waiting_keys += distinct.size
        if self._keys or self._waiting_keys >= LEAST_KEYS:
            self._write(last=False)

    def close(self) -> ShardFilter | None:
        """Write the remaining keys; return the manifest's entry, or None if there are too few keys."""
        if self._file is None and self._waiting_keys < LEAST_KEYS:
            return None
        self._write(last=True)
        if self._file is None:
            return None
        self._file.sync()
        self._file.close()
        return ShardFilter(
            file=self._path.name, of=self._index, nbytes=self._bytes, keys=self._keys, upper=self._upper,
            planes=tuple(map(int, self._planes)), hashed=self._hashed,
        )  # fmt: skip

    def abandon(self) -> None:
        """Close the file, if it is open."""
        if self._file is not None:
            self._file.close()

    def _write(self, *, last: bool) -> None:
        if self._waiting_keys < BLOCK_KEYS and not last:
            return
        keys = np.concatenate([np.empty(0, np.int64), *self._waiting])
        end = keys.size if last else keys.size // BLOCK_KEYS * BLOCK_KEYS
        for begin in range(0, end, BLOCK_KEYS):
            self._write_block(keys[begin : min(begin + BLOCK_KEYS, end)])
        self._waiting, self._waiting_keys = [keys[end:]], keys.size - end

    def _write_block(self, keys: Ints) -> None:
        segments = segments_for(keys.size)
        shapes = np.empty(segments, np.uint64)
        upper, lower = np.zeros(segments * MOST_UPPER, np.uint64), np.zeros(segments * MOST_LOWER, np.uint64)
        uppers, lowers = map(int, pack_segments(frozen(keys), shapes, upper, lower))
        head = np.zeros(HEADER_WORDS, np.uint64)
        head[1:4] = keys.size, uppers, lowers
        first = keys[::SEGMENT_KEYS].view(np.uint64)
        block = np.concatenate([head, first, shapes, upper[:uppers], lower[:lowers]])
        block[0] = checksum_of_block(block, self._blocks, self._seed)
        if self._file is None:
            self._file = files.create(self._path)
        self._bytes += self._file.write(block.view(np.uint8).data)
        self._blocks += 1
        self._keys += keys.size
        self._upper += uppers
        counts = np.minimum(SEGMENT_KEYS, keys.size - np.arange(segments) * SEGMENT_KEYS)
        low = (shapes >> np.uint64(24) & np.uint64(0xFF)).astype(np.int64)
        self._planes += ((counts + 63) // 64 * (low > np.arange(PLANES)[:, None])).sum(axis=1)
        self._hashed += int(counts[(shapes >> np.uint64(16) & np.uint64(0xFF)) == HASHES].sum())
