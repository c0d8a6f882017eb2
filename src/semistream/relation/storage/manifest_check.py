"""Checks that a manifest is intact and plausible before it is used.

The text of a manifest ends with a checksum of everything before it, so a flipped bit anywhere is found. The values are
checked as well, before any file is opened or resized, because manifests of the first format have no checksum.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from semistream.relation.rows.packed.packing import Packing
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage.row_layouts import RowLayouts
from semistream.relation.storage.shard_files import ShardFiles

__all__ = ["check", "check_packing", "is_sealed", "mended", "sealed"]

_MARK = ',\n "checksum": "'
_END = '"\n}'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INT64 = range(-(2**63), 2**63)
_MOST_PAGES = 1 << 32
_TRIED_BYTES, _TRIED_TOGETHER = 1 << 16, 512
"""Bytes. To repair a text up to this size, every bit is tried: two seconds for 16 KiB, half a minute for 64 KiB."""
_WRITTEN = frozenset((*range(0x20, 0x80), 0x0A))
"""The bytes that a manifest consists of."""
_DIGEST_BYTES = 16


def sealed(text: str) -> str:
    """Return a JSON object (indented by one) with a checksum as its last entry."""
    body = text.removesuffix("\n}")
    return f"{body}{_MARK}{_digest(body.encode())}{_END}"


def is_sealed(text: bytes | bytearray) -> bool:
    """Whether the checksum at the end matches the text before it."""
    body, mark, end = text.rpartition(_MARK.encode())
    return bool(mark) and end == (_digest(body) + _END).encode()


def mended(text: bytes) -> bytes | None:
    """Return the text with one flipped bit corrected, or None if one flipped bit is not the damage."""
    if len(text) > _TRIED_BYTES:
        return None
    changed, tail = bytearray(text), len(_MARK) + 2 * _DIGEST_BYTES + len(_END)
    for bit in range(8 * max(0, len(text) - tail), 8 * len(text)):
        changed[bit // 8] ^= 1 << bit % 8
        if is_sealed(changed):
            return bytes(changed)
        changed[bit // 8] ^= 1 << bit % 8
    body, mark, end = text.rpartition(_MARK.encode())
    if not mark:
        return None
    # What precedes a bit is hashed only once for all bits of a block.
    before = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for begin in range(0, len(body), _TRIED_TOGETHER):
        block, after = bytearray(body[begin : begin + _TRIED_TOGETHER]), body[begin + _TRIED_TOGETHER :]
        for at, byte in enumerate(bytes(block)):
            for bit in range(8):
                block[at] = byte ^ 1 << bit
                if block[at] not in _WRITTEN:
                    continue
                tried = before.copy()
                tried.update(block)
                tried.update(after)
                if (tried.hexdigest() + _END).encode() == end:
                    return body[:begin] + block + after + mark + end
            block[at] = byte
        before.update(block)
    return None


def check(
    shards: Sequence[ShardFiles],
    columns: Sequence[str],
    key: Sequence[str],
    version: int,
    page_bytes: int,
    fill: float,
    clustered: bool,
) -> None:
    """Raise ValueError unless all values are plausible."""
    _require(bool(shards), "it has no shards")
    _require(_is_count(version) and version >= 1, f"its version is {version!r}")
    _require(
        _is_count(page_bytes) and 512 <= page_bytes <= 1 << 26 and page_bytes % 512 == 0,
        f"its pages have {page_bytes!r} bytes",
    )
    _require(0.1 <= fill <= 1.0, f"its fill is {fill!r}")
    _require(isinstance(clustered, bool), f"clustered is {clustered!r}")
    absent = [name for name in key if name not in columns]
    _require(bool(key) and not absent, f"its key {list(key)} is not among the columns {columns}")
    names = [name for shard in shards for name in shard.files]
    _require(len(set(names)) == len(names), "it names a file twice")
    for number, shard in enumerate(shards):
        try:
            _check_shard(shard, clustered)
        except ValueError as error:
            raise ValueError(f"shard {number}: {error}") from None


def check_packing(packing: Packing | None, layouts: RowLayouts, time_columns: Sequence[str]) -> None:
    """Raise ValueError unless rows of every layout can be packed like this."""
    if packing is None:
        return
    for layout in layouts.layouts.values():
        packed = packing.by_name(layout.schema.names, layout.numbers)
        dated = sorted({*packed} & {*time_columns})
        _require(not dated, f"it packs {dated}, which say when rows of a history are valid")
        RowCodec(layout.schema, packed)


def _check_shard(shard: ShardFiles, clustered: bool) -> None:
    named = [(shard.pages_file, "pages"), (shard.index_file, "index"), *((name, "delta") for name, _ in shard.deltas)]
    if shard.leaves_file is not None:
        named.append((shard.leaves_file, "leaves"))
    if shard.map_file is not None:
        named.append((shard.map_file, "map"))
    for name, kind in named:
        # Letters, digits, dots and dashes, but no separators: a name cannot lead to another directory.
        ok = isinstance(name, str) and _NAME.fullmatch(name) and name.endswith(f".{kind}")
        _require(bool(ok), f"{name!r} cannot be the name of a file of {kind}")
    _require(clustered == (shard.leaves_file is None), "only a relation in another order than its key's has leaves")
    _require(bool(shard.deltas) == (shard.map_file is not None), "files with changed pages need a map, and only those")
    counts = {"pages": shard.pages, "rows": shard.rows, "leaves": shard.leaves, "indexed": shard.indexed or 0}
    counts |= {f"pages of {name}": pages for name, pages in shard.deltas}
    for what, count in counts.items():
        _require(_is_count(count), f"{what} is {count!r}")
        _require(what == "rows" or count <= _MOST_PAGES, f"{what} is {count:,}, more than {_MOST_PAGES:,}")
    _require(shard.pages > 0 and (shard.leaves > 0) == (shard.leaves_file is not None), "there is always a page")
    held = shard.pages + sum(pages for _, pages in shard.deltas)
    _require((shard.indexed or 0) <= held, f"{shard.indexed} pages are in the index, and {held} in the files")
    _require((shard.indexed is None) or bool(shard.deltas), "only updates take pages out of the index")
    _require(type(shard.last_key) is int and shard.last_key in _INT64, f"its last key is {shard.last_key!r}")
    _require(isinstance(shard.unique, bool), f"unique is {shard.unique!r}")
    _require(all(isinstance(name, str) for name in shard.unbound), "its unbound files are not names")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _digest(body: bytes | bytearray) -> str:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()
