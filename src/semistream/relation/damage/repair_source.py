"""Rebuilds pages of a clustered shard from the data it was built from.

The index knows the keys of a page, even if nothing of the page is left. The page's rows are taken from the source,
packed as before, and compared. If the checksum of the damaged page matches, the new page is right to the last bit. If
only the checksum is damaged, all other bytes must match. If nothing of the page is left, the number of rows of the
shard must match the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes
from semistream.core.errors import CorruptPageError
from semistream.relation.damage.repair_files import write_page
from semistream.relation.damage.repair_pages import DamagedShard, Repaired, RepairError, check_layout, packed_page
from semistream.relation.damage.repair_sizes import page_seed
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_layout import page_rows
from semistream.relation.rows.dictionaries import roomy, roomy_schema
from semistream.relation.rows.fitting import one_batch
from semistream.relation.rows.selection import keep_rows, take_rows
from semistream.relation.storage.checksum import seal
from semistream.relation.storage.manifest import Manifest

__all__ = ["Source", "rebuild_pages"]

Source = Callable[[], pa.RecordBatchReader]

_CHUNK_BYTES = 8 << 20  # bytes of pages read at a time


def rebuild_pages(
    path: Path, manifest: Manifest, numbers: list[int], source: Source, trust: bool, failures: list[RepairError]
) -> list[Repaired]:
    """Rebuild damaged pages of some shards. Pages that cannot be rebuilt are unchanged and reported in ``failures``."""
    repaired: list[Repaired] = []
    shards: list[DamagedShard] = []
    try:
        for number in numbers:
            relation = OpenRelation.open(path, version=manifest.version, shards=[number])
            shards.append(DamagedShard(number, manifest.shards[number], relation, [], 0))
            _look_through(shards[-1])
        damaged = [shard for shard in shards if shard.bad]
        if damaged:
            _gather(manifest, source(), damaged)
        for shard in damaged:
            try:
                repaired += _rebuilt(path, manifest, shard, trust)
            except RepairError as error:
                failures.append(error)
    finally:
        for shard in shards:
            shard.relation.close()
    return repaired


def _look_through(shard: DamagedShard) -> None:
    """Read all pages; record which are damaged, and the number of rows of the others."""
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


def _gather(manifest: Manifest, reader: pa.RecordBatchReader, damaged: list[DamagedShard]) -> None:
    """Collect the rows of damaged pages from the source, in one pass."""
    missing = [name for name in manifest.schema.names if name not in reader.schema.names]
    if missing:
        raise RepairError(f"the source lacks R's column {missing[0]!r}; it has {', '.join(reader.schema.names)}")
    sums = []
    for shard in damaged:
        bad = np.isin(shard.order, shard.bad)
        sums.append(np.concatenate([[0], np.cumsum(bad)]))
    codec = damaged[0].relation.key
    for part in reader:
        batch = roomy(part.select(manifest.schema.names), roomy_schema(manifest.schema))
        keys, valid = codec.encode(batch)
        home = codec.shards(keys, len(manifest.shards))
        for shard, before in zip(damaged, sums, strict=True):
            first = shard.index.first
            # Pages from the last that begins below the key to the last that begins with the key may hold it.
            low = np.maximum(np.searchsorted(first, keys, "left") - 1, 0)
            high = np.maximum(np.searchsorted(first, keys, "right"), 1)
            mine = valid & (home == shard.number) & (before[high] > before[low])
            if mine.any():
                shard.keys.append(keys[mine])
                shard.rows.append(keep_rows(batch, mine))


def _rebuilt(path: Path, manifest: Manifest, shard: DamagedShard, trust: bool) -> list[Repaired]:
    """Rebuild the damaged pages of a shard, verify them, and write them."""
    keys = np.concatenate([*shard.keys, np.empty(0, np.int64)])
    batch = one_batch(pa.Table.from_batches(shard.rows, roomy_schema(manifest.schema)))
    times = manifest.times
    order = np.argsort(keys, kind="stable") if times is None else np.lexsort((times.begins(batch), keys))
    keys, batch = keys[order], take_rows(batch, order)
    positions = {int(page): at for at, page in enumerate(shard.order)}
    pages: list[tuple[Repaired, Bytes]] = []
    doubtful: list[str] = []
    for page in shard.bad:
        file, local = _place(shard, path, page)
        check_layout(manifest, shard.files, file, local)
        frame = packed_page(shard, positions.get(page), keys, batch, file, local)
        seal(frame, local, page_seed(shard.files, file.name))
        with open(file, "rb") as damaged:
            damaged.seek(local * frame.shape[1])
            left = damaged.read(frame.shape[1])
        proved = left[:8] == frame[0, :8].tobytes() or left[8:] == frame[0, 8:].tobytes()
        if not (proved or trust or not any(left)):
            doubtful.append(f"page {local} of {file}: the source's rows do not match its checksum")
        proof = "checksum" if proved else "keys and counts"
        pages.append((Repaired(str(file), local, int(page_rows(frame)[0]), proof), frame))
    count = shard.good_rows + sum(one.rows for one, _ in pages)
    if count != shard.files.rows:
        unproved = [one for one, _ in pages if one.proof != "checksum"]
        doubtful += [
            f"page {one.page} of {one.file}: with the source's rows the shard would have {count:,} rows, but had "
            f"{shard.files.rows:,}" for one in unproved
        ]  # fmt: skip
    if doubtful:
        raise RepairError(
            f"{doubtful[0]}; give the data as it was in version {manifest.version}, or a copy of the relation; or, if "
            "the data is right, repeat this with trust=True"
        )
    for one, frame in pages:
        write_page(Path(one.file), one.page, frame)
    return [one for one, _ in pages]
