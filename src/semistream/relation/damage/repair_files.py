"""Repairs one file of a relation from what remains of it, from the shard's other files, or from a copy.

Nothing is written that is not verified: a page or file must match its checksum, which binds it to its name and place.
A single flipped bit is found by trying all bits. All other damage needs the same file of a copy. An index and leaves
can also be rebuilt from their pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import NotARelationError
from semistream.relation.damage.repair_pages import MixedUpError, Repaired, RepairError
from semistream.relation.damage.repair_sizes import page_seed
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.leaves import EMPTY_KEY, leaf_entries, pack_leaves
from semistream.relation.pages.page_index import ScatteredIndex
from semistream.relation.pages.page_layout import FIRST, HEADER, page_keys, page_rows
from semistream.relation.pages.stored_rows import codec_of
from semistream.relation.rows.row_gather import RowGather
from semistream.relation.storage import files, manifest_check, sealed_file
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.checksum import flipped_bit, seal, verify
from semistream.relation.storage.index_file import index_to_bytes, load_index, load_timed_index
from semistream.relation.storage.manifest import Manifest, ShardFiles
from semistream.relation.storage.map_file import MixedUpMapError, load_map
from semistream.relation.storage.page_map import PageMap

__all__ = ["repair_index", "repair_leaves", "repair_manifest", "repair_map", "repair_pages", "write_page"]


_CHUNK_BYTES = 8 << 20  # bytes of pages read at a time
_TRIED_BYTES = 1 << 16  # largest page, in bytes, for which every bit is tried
_VAIN_TRIES = 16
"""Pages of a file with more than one wrong bit after which no further page is tried for a flipped bit: it is slow."""


def repair_manifest(path: Path, number: int, copy: Path | None) -> Iterator[Repaired]:
    """Repair the manifest of a version, or raise `RepairError`."""
    try:
        manifests.load(path, number)
        return
    except NotARelationError as error:
        damage = error
    file = path / manifests.name_of(number)
    content, proof = manifest_check.mended(file.read_bytes()) if file.is_file() else None, "checksum"
    if content is None and copy is not None:
        content, proof = _copied_manifest(path, number, copy), "copy"
    if content is None:
        why = str(damage).split("; run semistream repair")[0]
        raise RepairError(
            f"{why}, and more than one bit is wrong; give a copy of the relation, or open another version"
        )
    manifest = manifests.Manifest.from_json(content, file, number)
    _replace(file, content)
    yield Repaired(str(file), -1, manifest.rows, proof)


def _copied_manifest(path: Path, number: int, copy: Path) -> bytes | None:
    """Return a copy's manifest if it belongs to this relation, which the random part of file names shows."""
    try:
        manifest = manifests.load(copy, number)
    except NotARelationError:
        return None
    if not any((path / shard.pages_file).exists() for shard in manifest.shards):
        return None
    return (copy / manifests.name_of(number)).read_bytes()


def repair_pages(
    path: Path, name: str, pages: int, width: int, seed: int, copy: Path | None, left: list[int]
) -> Iterator[Repaired]:
    """Check a file of pages, repair what is possible, and append the numbers of the other bad pages to ``left``."""
    step = max(1, _CHUNK_BYTES // width)
    vain = 0
    with open(path / name, "rb") as file:
        for begin in range(0, pages, step):
            file.seek(begin * width)
            content = file.read(min(step, pages - begin) * width)
            frames = np.frombuffer(content, np.uint8).reshape(-1, width)
            at = 0
            while (bad := verify(frames[at:], np.arange(begin + at, begin + len(frames)), seed)) >= 0:
                at += bad
                page, frame, proof = begin + at, _page_of(copy, name, begin + at, width, seed), "copy"
                if frame is None and vain < _VAIN_TRIES and width <= _TRIED_BYTES and frames[at].any():
                    frame, proof = _unflipped(frames[at], page, seed), "checksum"
                    vain = vain + 1 if frame is None else 0
                if frame is None:
                    left.append(page)
                else:
                    write_page(path / name, page, frame)
                    yield Repaired(str(path / name), page, int(page_rows(frame)[0]), proof)
                at += 1


def _unflipped(page: Bytes, number: int, seed: int) -> Bytes | None:
    bit = flipped_bit(page, number, seed)
    if bit < 0:
        return None
    frame = page.copy().reshape(1, -1)
    frame[0, bit // 8] ^= np.uint8(1 << bit % 8)
    return frame


def _page_of(copy: Path | None, name: str, page: int, width: int, seed: int) -> Bytes | None:
    """Return a page of the copy's file of the same name, if it is intact."""
    if copy is None:
        return None
    try:
        with open(copy / name, "rb") as file:
            file.seek(page * width)
            frame = np.frombuffer(file.read(width), np.uint8).reshape(1, width).copy()
    except (OSError, ValueError):
        return None
    return frame if verify(frame, np.array([page]), seed) < 0 else None


def repair_map(path: Path, shard: ShardFiles, copy: Path | None) -> Iterator[Repaired]:
    """Repair a shard's page map, or raise `RepairError`."""
    if shard.map_file is None:
        return
    try:
        load_map(path, shard)
        return
    except NotARelationError as error:
        damage = error
    file = path / shard.map_file
    content, proof = None if shard.map_file in shard.unbound else sealed_file.mended(file), "checksum"
    if content is None and copy is not None:
        try:
            load_map(copy, shard)
            content, proof = (copy / shard.map_file).read_bytes(), "copy"
        except NotARelationError:
            pass
    if content is None:
        kind = MixedUpError if isinstance(damage, MixedUpMapError) else RepairError
        raise kind(f"{damage}; no other file records where updates moved the pages: give a copy of it")
    _replace(file, content)
    yield Repaired(str(file), -1, shard.rows, proof)


def repair_index(
    path: Path, shard: ShardFiles, manifest: Manifest, copy: Path | None, *, pages_are_sound: bool
) -> Iterator[Repaired]:
    """Repair a shard's index, or raise `RepairError`."""
    file, bound = path / shard.index_file, shard.index_file not in shard.unbound
    load = load_index if manifest.times is None else load_timed_index
    try:
        load(file, shard.index_entries, bound=bound)
        return
    except NotARelationError as error:
        damage = error
    content, proof = sealed_file.mended(file) if bound else None, "checksum"
    if content is None and copy is not None:
        try:
            load(copy / shard.index_file, shard.index_entries, bound=bound)
            content, proof = (copy / shard.index_file).read_bytes(), "copy"
        except NotARelationError:
            pass
    if content is None:
        if not pages_are_sound:
            raise RepairError(f"{damage}; pages are damaged, and so is the index, which has their keys: give a "
                              "copy of the relation that has the files")  # fmt: skip
        content, proof = index_to_bytes(shard.index_file, *_fences(path, shard, manifest), bound=bound), "pages"
    _replace(file, content)
    yield Repaired(str(file), -1, shard.rows, proof)


def _fences(path: Path, shard: ShardFiles, manifest: Manifest) -> tuple[Ints, NDArray[np.bool_], Ints | None]:
    """Return the first keys of intact pages, which of them continue from the previous page, and a history's times."""
    page_bytes, times = manifest.page_bytes, None
    if shard.leaves_file is not None:
        keys, pages = _keys_of_pages(path, shard, page_bytes)
        _, first, continues = pack_leaves(keys, pages, page_bytes)
    else:
        order, page_map = np.arange(shard.pages), PageMap.plain(shard.pages)
        if shard.map_file is not None:
            order, page_map = load_map(path, shard)
        mapped = [_mapped(path / name, pages, page_bytes) for name, pages in shard.page_files]
        starts = np.cumsum([0, *(len(frames) for frames in mapped)])
        place = np.arange(page_map.page_count)
        place[page_map.changed] = shard.pages + page_map.places
        first, continues = np.empty(order.size, np.int64), np.zeros(order.size, bool)
        time_of = None if manifest.times is None else _FirstTimes(manifest, manifest.times)
        times = None if time_of is None else np.zeros(order.size, np.int64)
        for at, page in enumerate(place[order]):
            number = int(np.searchsorted(starts, page, side="right")) - 1
            frame = mapped[number][page - starts[number]]
            rows = int(page_rows(frame[None])[0])
            first[at] = frame[HEADER : HEADER + 8].view(np.int64)[0] if rows else EMPTY_KEY
            continues[at] = rows > 0 and not frame[HEADER + 8 * rows] & FIRST
            if rows and times is not None and time_of is not None:
                times[at] = time_of(frame)
    if first.size != shard.index_entries or np.any(first[1:] < first[:-1]):
        raise RepairError(f"the pages of {path / shard.pages_file} are intact, but do not match the manifest")
    return first, continues, times


class _FirstTimes:
    """Reads when the first row of a page of a history begins to be valid."""

    def __init__(self, manifest: Manifest, times: ValidTimes) -> None:
        codec = codec_of(manifest)
        self._stride = 0 if codec.variable else codec.stride
        self._gather, self._times = RowGather(codec, [times.valid_from]), times

    def __call__(self, frame: Bytes) -> int:
        frames = np.array(frame[None])
        starts = page_keys(frames, self._stride)[2]
        return int(self._times.numbers(self._gather(frames.reshape(-1), starts[:1])[0])[0][0])


def repair_leaves(
    path: Path, shard: ShardFiles, page_bytes: int, left: list[int], *, pages_are_sound: bool
) -> Iterator[Repaired]:
    """Rebuild damaged leaves from intact pages. They must match all intact leaves and the index."""
    assert shard.leaves_file is not None
    file = path / shard.leaves_file
    if not pages_are_sound:
        raise RepairError(f"{len(left)} leaves of {file} are damaged, and pages too; give a copy of the relation")
    keys, pages = _keys_of_pages(path, shard, page_bytes)
    frames, first, continues = pack_leaves(keys, pages, page_bytes)
    seal(frames, 0, page_seed(shard, shard.leaves_file))
    there = _mapped(file, shard.leaves, page_bytes)
    sound = np.setdiff1d(np.arange(shard.leaves), left)
    agree = len(frames) == shard.leaves and np.array_equal(frames[sound], there[sound])
    if agree:
        bound = shard.index_file not in shard.unbound
        old_first, old_continues = load_index(path / shard.index_file, shard.index_entries, bound=bound)
        agree = np.array_equal(first, old_first) and np.array_equal(continues, old_continues)
    if not agree:
        raise RepairError(f"leaves built from the pages differ from {file}; give a copy of the relation")
    for page in left:
        write_page(file, page, frames[page : page + 1])
        yield Repaired(str(file), page, int(page_rows(frames[page : page + 1])[0]), "pages")


def _keys_of_pages(path: Path, shard: ShardFiles, page_bytes: int) -> tuple[Ints, Ints]:
    """Return the keys and pages that the leaves of a scattered shard list, in key order."""
    frames = _mapped(path / shard.pages_file, shard.pages, page_bytes)
    step = max(1, _CHUNK_BYTES // page_bytes)
    keys, pages = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for begin in range(0, shard.pages, step):
        chunk = np.array(frames[begin : begin + step])
        keys.append(page_keys(chunk, ScatteredIndex.STRIDE)[0])
        pages.append(np.repeat(np.arange(begin, begin + len(chunk)), page_rows(chunk)))
    key, page = np.concatenate(keys), np.concatenate(pages)
    if key.size != shard.rows:
        raise RepairError(f"the pages of {path / shard.pages_file} have {key.size:,} rows instead of {shard.rows:,}")
    order = np.argsort(key, kind="stable")
    key, page = key[order], page[order]
    entries = leaf_entries(key, page)
    return key[entries], page[entries]


def _mapped(file: Path, pages: int, page_bytes: int) -> Bytes:
    return np.memmap(file, np.uint8, "r", shape=(pages, page_bytes)).view(np.ndarray)


def write_page(file: Path, page: int, frame: Bytes) -> None:
    """Overwrite a page."""
    with files.edit(file) as opened:
        opened.seek(page * frame.shape[1])
        opened.write(frame.tobytes())
        opened.sync()


def _replace(file: Path, content: bytes) -> None:
    temporary = file.parent / f".repair-{os.urandom(8).hex()}"
    try:
        files.write_file(temporary, content)
        files.rename(temporary, file)
    finally:
        files.remove(temporary)
    files.sync_directory(file.parent)
