"""Small files that are read completely and are bound to their name and kind: indexes, page maps, added keys.

::

     0  u64 checksum of bytes 8.., seeded with the file's name      (relation/storage/checksum.py)
     8  8 bytes that identify the kind, such as "SSindex2"
    16  u64 bytes of the content
    24  zeros
    64  the content, and zeros to a multiple of 8

Damage to such a file, or another file in its place, would lead joins to wrong pages: rows would silently be missing.
So the checksum covers everything that identifies the file.
"""

from __future__ import annotations

import stat
import zlib
from typing import Literal

import numpy as np

from semistream.core.errors import NotARelationError, StorageError
from semistream.relation.storage.checksum import file_seed, flipped_bit, page_checksum
from semistream.relation.stores.store_path import Place

__all__ = ["Kind", "mended", "sealed", "unsealed"]

Kind = Literal["index", "page map", "added keys"]
_MAGIC: dict[str, bytes] = {"index": b"SSindex2", "page map": b"SSpgmap2", "added keys": b"SSadded1"}
_HEADER = 64
_MENDED_BYTES = 1 << 16
"""Bytes. To repair a file up to this size, every bit is tried, which takes a few seconds at most."""


def sealed(name: str, kind: Kind, content: bytes, *, bound: bool = True) -> bytes:
    """Return the bytes of the file of that name. `unsealed` describes ``bound``."""
    if not bound:
        return content + zlib.crc32(content).to_bytes(4, "little")
    head = bytes(8) + _MAGIC[kind] + len(content).to_bytes(8, "little")
    whole = bytearray(head.ljust(_HEADER, b"\0") + content + bytes(-len(content) % 8))
    whole[:8] = page_checksum(np.frombuffer(whole, np.uint8), 0, file_seed(name)).to_bytes(8, "little")
    return bytes(whole)


def unsealed(path: Place, kind: Kind, least: int, most: int, *, bound: bool) -> bytes:
    """Return the content of a file, or raise `NotARelationError`.

    ``least`` and ``most`` bound the length of the content; a file of any other size is not read. A file that is not
    ``bound`` was written by an earlier release: it consists of the content and its CRC-32.
    """
    more = _HEADER if bound else 4
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise damaged(path, kind, "is not a file")
        if not least + more <= status.st_size <= most + more + 7:
            expected = f"{least + more:,}" + (f" to {most + more:,}" if most > least else "")
            raise damaged(path, kind, f"has {status.st_size:,} bytes instead of {expected}")
        whole = path.read_bytes()
    except StorageError:
        raise  # the store failed or refused, and nothing is known of the file
    except OSError as error:
        raise damaged(path, kind, f"cannot be read ({error.strerror})") from error
    if not bound:
        content, checksum = whole[:-4], int.from_bytes(whole[-4:], "little")
        if zlib.crc32(content) != checksum:
            raise damaged(path, kind, "is not what was written: its checksum differs")
        return content
    size = int.from_bytes(whole[16:24], "little")
    if len(whole) != _HEADER + size + -size % 8 or whole[8:16] != _MAGIC[kind] or not _is_whole(path.name, whole):
        raise damaged(path, kind, "is not what was written: its checksum differs, or it is another file")
    return whole[_HEADER : _HEADER + size]


def mended(path: Place) -> bytes | None:
    """Return the corrected content of a bound file with one flipped bit; None if its damage is different."""
    try:
        if not _HEADER <= path.stat().st_size <= _MENDED_BYTES or path.stat().st_size % 8:
            return None
        whole = bytearray(path.read_bytes())
    except OSError:
        return None
    bit = flipped_bit(np.frombuffer(whole, np.uint8), 0, file_seed(path.name))
    if bit < 0:
        return None
    whole[bit // 8] ^= 1 << bit % 8
    return bytes(whole)


def damaged(path: Place, kind: Kind, why: str) -> NotARelationError:
    """Return the error to raise for a damaged file."""
    return NotARelationError(f"the {kind} {path} {why}; run semistream repair, or build the relation again")


def _is_whole(name: str, whole: bytes) -> bool:
    return page_checksum(np.frombuffer(whole, np.uint8), 0, file_seed(name)) == int.from_bytes(whole[:8], "little")
