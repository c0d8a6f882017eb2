"""Repair damaged pages of a relation in their place, from a copy of it or from the data it was built of.

A page is found by its place in the index, so what keys it holds is known even if nothing of it is left. Its rows are
taken from the source, packed as they were, and compared: the checksum that the damaged page still carries proves the
new one right to the last bit; where that is damaged too, the rows of the shard must come to the number that the
manifest has. A source that is not the data of that version is so refused rather than written.

Files keep their names, so all versions that share the page have it back, those that a query is pinned to among them,
and only bytes that could not be read anyway are written over: a crash leaves nothing worse than it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.errors import CorruptPageError, NotARelationError
from semistream.core.paths import local_path
from semistream.relation import manifest as manifests
from semistream.relation.checksum import seal, verify
from semistream.relation.index_file import index_to_bytes, load_index
from semistream.relation.manifest import Manifest, ShardFiles
from semistream.relation.pages import FIRST, HEADER, page_rows
from semistream.relation.relation import Relation
from semistream.relation.repair_pages import DamagedShard, RepairError, packed_page
from semistream.relation.selection import keep_rows, take_rows

__all__ = ["RepairError", "RepairedPage", "repair"]

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Source = Callable[[], pa.RecordBatchReader]

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class RepairedPage:
    """A page that is whole again, or (page -1) a whole file."""

    file: str
    page: int
    rows: int
    proof: str
    """What shows that it is as it was: ``checksum``, ``copy``, or ``keys and counts``."""


def repair(
    path: str | os.PathLike[str],
    source: Source | None = None,
    *,
    copy: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> list[RepairedPage]:
    """Make all versions of a relation readable again; return what was repaired.

    Parameters
    ----------
    path
        The relation. Queries may go on reading it.
    source
        Returns R's rows as they are in the newest version, such as a reader of the table it was built from. Called if
        needed, and once for each version that shares no damaged page with a newer one.
    copy
        Another relation with files of the same names, such as a backup: its pages are taken first.
    trust
        Take the source's rows also for a page whose checksum they do not match, if only keys and counts are right: the
        checksum itself may be what was damaged, or a value may have changed since. A page of zeros has no
        checksum left, and is taken so anyway.

    Raises
    ------
    RepairError
        Something is still damaged; what could be repaired has been.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     products = pa.table({"id": range(1000)})
    ...     with Relation.build(products, f"{folder}/products", key="id", page_size=512) as relation:
    ...         with open(next(relation.path.glob("*.pages")), "r+b") as file:
    ...             _ = file.seek(3 * 512 + 100), file.write(b"!")
    ...     [(one.page, one.proof) for one in repair(f"{folder}/products", products.to_reader)]
    [(3, 'checksum')]
    """
    path = local_path(path, "relation")
    copy = None if copy is None else local_path(copy, "relation")
    numbers = manifests.versions(path)
    if not numbers:
        manifests.load(path)  # says why this is not a relation
    repaired: list[RepairedPage] = []
    seen: set[ShardFiles] = set()
    failed: RepairError | None = None
    for number in reversed(numbers):
        manifest = manifests.load(path, number)
        try:
            repaired += _repair_files(path, manifest, copy)
            repaired += _repair_pages(path, manifest, source, copy, seen, trust)
        except RepairError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return repaired


def _repair_files(path: Path, manifest: Manifest, copy: Path | None) -> Iterator[RepairedPage]:
    """Give all files their size, so that a relation can be opened and its pages looked at; make indexes anew."""
    for shard in manifest.shards:
        for name, pages in ((shard.pages_file, shard.pages), (shard.leaves_file, shard.leaves), *shard.deltas):
            if name is None:
                continue
            file, size = path / name, pages * manifest.page_bytes
            if not file.exists() or file.stat().st_size != size:
                with open(file, "ab") as opened:
                    opened.truncate(size)  # pages of zeros, which are damaged pages like others
        yield from _repair_index(path, manifest, shard, copy)


def _repair_index(path: Path, manifest: Manifest, shard: ShardFiles, copy: Path | None) -> Iterator[RepairedPage]:
    pages = shard.pages if shard.leaves_file is None else shard.leaves
    pages = pages if shard.indexed is None else shard.indexed
    try:
        load_index(path / shard.index_file, pages)
        return
    except NotARelationError as error:
        damage = error
    content = None
    if copy is not None and (copy / shard.index_file).exists():
        load_index(copy / shard.index_file, pages)
        content, proof = (copy / shard.index_file).read_bytes(), "copy"
    elif shard.map_file is None and shard.leaves_file is None:
        content, proof = _index_of_pages(path, manifest, shard), "checksum"
    if content is None:
        raise RepairError(f"{damage}; give a copy of the relation that has the file")
    temporary = path / f".{os.urandom(8).hex()}"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / shard.index_file)
    manifests.sync_directory(path)
    yield RepairedPage(str(path / shard.index_file), -1, shard.rows, proof)


def _index_of_pages(path: Path, manifest: Manifest, shard: ShardFiles) -> bytes:
    """Return the index that the first keys of a shard's pages make; all of them must be whole."""
    frames = np.fromfile(path / shard.pages_file, np.uint8).reshape(shard.pages, manifest.page_bytes)
    bad = verify(frames, np.arange(shard.pages))
    if bad >= 0:
        raise RepairError(
            f"page {bad} of {path / shard.pages_file} is damaged, and so is the index that says what keys it had; "
            "give a copy of the relation that has the files"
        )
    first = np.ascontiguousarray(frames[:, HEADER : HEADER + 8]).view(np.int64)[:, 0].copy()
    rows = page_rows(frames)
    first[rows == 0] = np.iinfo(np.int64).min
    flags = frames[np.arange(shard.pages), HEADER + 8 * rows]
    return index_to_bytes(first, (rows > 0) & ((flags & FIRST) == 0))


def _repair_pages(
    path: Path, manifest: Manifest, source: Source | None, copy: Path | None, seen: set[ShardFiles], trust: bool
) -> list[RepairedPage]:
    repaired: list[RepairedPage] = []
    shards: list[DamagedShard] = []
    try:
        for number, files in enumerate(manifest.shards):
            if files in seen:  # unchanged since the version that was looked at before
                continue
            seen.add(files)
            relation = Relation.open(path, version=manifest.version, shards=[number])
            shard = DamagedShard(number, files, relation, [], 0)
            shards.append(shard)
            _look_through(shard)
            if copy is not None:
                repaired += _copied(shard, path, copy)
        damaged = [shard for shard in shards if shard.bad]
        if damaged:
            if source is None or not manifest.clustered:
                raise _still_damaged(path, damaged, source is None)
            _gather(manifest, source(), damaged)
            for shard in damaged:
                repaired += _rebuilt(path, manifest, shard, trust)
    finally:
        for shard in shards:
            shard.relation.close()
    return repaired


def _look_through(shard: DamagedShard) -> None:
    """Read all pages; note which are damaged, and how many rows the others have."""
    device = shard.relation.device
    frames = device.allocate(max(1, min(device.page_count, _CHUNK_BYTES // device.frame_bytes)))
    for begin in range(0, device.page_count, len(frames)):
        pages = np.arange(begin, min(begin + len(frames), device.page_count))
        try:
            device.read(pages, frames[: pages.size])
            shard.good_rows += int(page_rows(frames[: pages.size]).sum())
        except CorruptPageError:
            for page in pages:  # rare, so one at a time
                try:
                    device.read(np.array([page]), frames[:1])
                    shard.good_rows += int(page_rows(frames[:1])[0])
                except CorruptPageError:
                    shard.bad.append(int(page))


def _place(shard: DamagedShard, path: Path, page: int) -> tuple[Path, int]:
    """Return the file of a page, and its number there."""
    try:
        shard.relation.device.read(np.array([page]), shard.relation.frames(1))
    except CorruptPageError as error:
        return path / Path(error.file).name, error.page
    raise AssertionError("not damaged")


def _copied(shard: DamagedShard, path: Path, copy: Path) -> Iterator[RepairedPage]:
    """Take damaged pages from files of the same name, which are never changed once they are there."""
    width = shard.relation.page_bytes
    for page in list(shard.bad):
        file, local = _place(shard, path, page)
        try:
            with open(copy / file.name, "rb") as other:
                other.seek(local * width)
                frame = np.frombuffer(other.read(width), np.uint8).reshape(-1, width)
        except (OSError, ValueError):
            continue
        if len(frame) == 1 and verify(frame.copy(), np.array([local])) < 0:
            _write_page(file, local, frame)
            rows = int(page_rows(frame.copy())[0])
            shard.bad.remove(page)
            shard.good_rows += rows
            yield RepairedPage(str(file), local, rows, "copy")


def _gather(manifest: Manifest, reader: pa.RecordBatchReader, damaged: list[DamagedShard]) -> None:
    """Pick the rows of damaged pages out of the source, in one pass."""
    missing = [name for name in manifest.schema.names if name not in reader.schema.names]
    if missing:
        raise RepairError(f"the source lacks R's column {missing[0]!r}; it has {', '.join(reader.schema.names)}")
    sums = []
    for shard in damaged:
        bad = np.isin(shard.order, shard.bad)
        sums.append(np.concatenate([[0], np.cumsum(bad)]))
    codec = damaged[0].relation.key
    for part in reader:
        batch = part.select(manifest.schema.names).cast(manifest.schema)
        keys, valid = codec.encode(batch)
        home = codec.shards(keys, len(manifest.shards))
        for shard, before in zip(damaged, sums, strict=True):
            first = shard.index.first
            # pages from the last that begins below the key to the last that begins with it may have it
            low = np.maximum(np.searchsorted(first, keys, "left") - 1, 0)
            high = np.maximum(np.searchsorted(first, keys, "right"), 1)
            mine = valid & (home == shard.number) & (before[high] > before[low])
            if mine.any():
                shard.keys.append(keys[mine])
                shard.rows.append(keep_rows(batch, mine))


def _rebuilt(path: Path, manifest: Manifest, shard: DamagedShard, trust: bool) -> list[RepairedPage]:
    """Pack the pages of a shard anew, prove them right, and write them."""
    keys = np.concatenate([*shard.keys, np.empty(0, np.int64)])
    rows = pa.Table.from_batches(shard.rows, manifest.schema).combine_chunks().to_batches()
    batch = rows[0] if rows else pa.RecordBatch.from_pylist([], schema=manifest.schema)
    order = np.argsort(keys, kind="stable")
    keys, batch = keys[order], take_rows(batch, order)
    positions = {int(page): at for at, page in enumerate(shard.order)}
    pages: list[tuple[RepairedPage, Bytes]] = []
    doubtful: list[str] = []
    for page in shard.bad:
        file, local = _place(shard, path, page)
        frame = packed_page(shard, positions.get(page), keys, batch, file, local)
        seal(frame, local)
        with open(file, "rb") as damaged:
            damaged.seek(local * frame.shape[1])
            checksum = damaged.read(8)
        proved = checksum == frame[0, :8].tobytes()
        if not (proved or trust or checksum == bytes(8)):
            doubtful.append(f"page {local} of {file}: the source's rows do not have its checksum")
        proof = "checksum" if proved else "keys and counts"
        pages.append((RepairedPage(str(file), local, int(page_rows(frame)[0]), proof), frame))
    count = shard.good_rows + sum(one.rows for one, _ in pages)
    if count != shard.files.rows:
        unproved = [one for one, _ in pages if one.proof != "checksum"]
        doubtful += [
            f"page {one.page} of {one.file}: with the source's rows the shard would have {count:,} rows, and had "
            f"{shard.files.rows:,}" for one in unproved
        ]  # fmt: skip
    if doubtful:
        raise RepairError(
            f"{doubtful[0]}; give the data as it was in version {manifest.version}, or a copy of the relation, or if "
            "the data is right trust it"
        )
    for one, frame in pages:
        _write_page(Path(one.file), one.page, frame)
    return [one for one, _ in pages]


def _write_page(file: Path, local: int, frame: Bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(local * frame.shape[1])
        opened.write(frame.tobytes())
        opened.flush()
        os.fsync(opened.fileno())


def _still_damaged(path: Path, damaged: list[DamagedShard], no_source: bool) -> RepairError:
    places = [_place(shard, path, page) for shard in damaged for page in shard.bad[:3]]
    count = sum(len(shard.bad) for shard in damaged)
    listed = ", ".join(f"page {local} of {file}" for file, local in places[:3]) + (", …" if count > 3 else "")
    remedy = (
        "give the data it was built from, or a copy of it" if no_source else "give a copy of it: it is not clustered"
    )
    return RepairError(f"{count} pages are damaged ({listed}); {remedy}")
