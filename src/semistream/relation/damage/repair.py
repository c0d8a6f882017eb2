"""Repairs a relation in place: from what remains of it, from a copy, or from the data it was built from.

Manifests are repaired first, because they list what should exist. Then, for each shard, the files of pages, the map,
the index and the leaves are repaired. Last are pages that only the data can restore. Everything is verified before it
is written, by a checksum or by all that is known of it. Nothing intact is overwritten or truncated. Damage that cannot
be repaired is left unchanged and reported. If the files of the newest version are intact but its keys are mixed up, a
new version is built from the data. A secondary index that cannot be repaired is sorted again from R's rows, as a new
version; older versions can then be joined on their key only.

Files keep their names, so a repaired page is restored in all versions that share it, including versions that a query
is pinned to. Only unreadable bytes are overwritten, so a crash never makes the damage worse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from semistream.core.errors import NotARelationError
from semistream.relation.damage.repair_files import (
    repair_index,
    repair_leaves,
    repair_manifest,
    repair_map,
    repair_pages,
)
from semistream.relation.damage.repair_pages import MixedUpError, Repaired, RepairError
from semistream.relation.damage.repair_sizes import Grown, cut_back, page_seed, repair_size
from semistream.relation.damage.repair_source import Source, rebuild_pages
from semistream.relation.damage.repair_store import brought_down
from semistream.relation.damage.repair_version import index_from_rows, mixed_up, version_from_data
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest, ShardFiles
from semistream.relation.stores.store_path import Place, place_of

__all__ = ["RepairError", "Repaired", "repair"]


def repair(
    path: str | os.PathLike[str],
    source: Source | None = None,
    *,
    copy: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> list[Repaired]:
    """Make all versions of a relation readable again; return what was repaired.

    Parameters
    ----------
    path
        The relation. Queries may continue to read it.
    source
        Returns R's rows as in the newest version, such as a reader of the table it was built from. It is called only
        if needed, once for each version with damaged pages that no newer version shares.
    copy
        Another relation with files of the same names, such as a backup. Its pages are used first.
    trust
        Use the source's rows for a page even if they do not match its checksum, as long as keys and counts match. The
        checksum itself may be damaged, or a value may have changed since. A page of zeros has no checksum, and is
        restored this way in any case.

    Raises
    ------
    RepairError
        Something is still damaged, as the message says. The rest was repaired and is listed in its ``repaired``.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from semistream import Relation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     products = pa.table({"id": range(1000)})
    ...     with Relation.build(products, f"{folder}/products", key="id", page_size=512) as relation:
    ...         with open(next(relation.path.glob("*.pages")), "r+b") as file:
    ...             _ = file.seek(3 * 512 + 100), file.write(b"!!")
    ...     [(one.page, one.proof) for one in repair(f"{folder}/products", products.to_reader)]
    [(3, 'checksum')]
    """
    place = place_of(path)
    source_copy = None if copy is None else place_of(copy)
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(brought_down(place))
        beside = None if source_copy is None else stack.enter_context(brought_down(source_copy, back=False))
        if here is place:
            return _repaired(here, source, beside, trust)
        try:
            return [_at(place, here, one) for one in _repaired(here, source, beside, trust)]
        except RepairError as error:
            told = RepairError(str(error).replace(str(here), str(place)))
            told.repaired = [_at(place, here, one) for one in error.repaired]
            raise told from None


def _at(place: Place, here: Path, one: Repaired) -> Repaired:
    """Return the repair with the file's place in the relation, not in the directory in which it was repaired."""
    return dataclasses.replace(one, file=one.file.replace(str(here), str(place)))


def _repaired(path: Path, source: Source | None, copy: Path | None, trust: bool) -> list[Repaired]:
    """Repair a relation in a directory."""
    numbers = manifests.versions(path) or (manifests.versions(copy) if copy is not None else [])
    if not numbers:
        manifests.load(path)  # raises the reason why this is not a relation
    repaired: list[Repaired] = []
    failures: list[RepairError] = []
    seen: set[ShardFiles] = set()
    newest: Manifest | None = None
    grown: dict[Path, Grown] = {}
    lost: dict[tuple[str, ...], list[RepairError]] = {}  # secondary indexes, which R's rows can restore
    try:
        for number in reversed(numbers):
            try:
                repaired += repair_manifest(path, number, copy)
            except RepairError as error:
                failures.append(error)
                continue
            manifest = manifests.load(path, number)
            newest = manifest if number == numbers[-1] else newest
            # Skip shards that are unchanged in a newer version, which was checked before.
            shards = [at for at, shard in enumerate(manifest.shards) if shard not in seen]
            seen.update(manifest.shards)
            wanting = [
                at
                for at in shards
                if _repair_shard(path, manifest, at, copy, source is not None, repaired, failures, grown)
            ]
            if wanting and source is not None:
                try:
                    repaired += rebuild_pages(path, manifest, wanting, source, trust, failures)
                except RepairError as error:
                    failures.append(error)
            for index in manifest.indexes:
                of_index: list[RepairError] = []
                ordered = manifest.in_order_of(index.key)
                for at, shard in enumerate(ordered.shards):
                    if shard not in seen:
                        _repair_shard(path, ordered, at, copy, False, repaired, of_index, grown)
                seen.update(ordered.shards)
                if of_index and manifest is newest:
                    lost[index.key] = of_index
                elif of_index and index.key not in lost:
                    failures.append(
                        RepairError(
                            f"the index on {', '.join(index.key)} of version {number} of {path} is damaged, and newer "
                            "versions have another; join that version on its key, give a copy, or remove it with vacuum"
                        )
                    )
    finally:
        for file, what in grown.items():
            cut_back(file, what)
    for key, of_index in lost.items():
        if failures:
            failures += of_index
        else:
            repaired.append(index_from_rows(path, key))
    if source is not None and newest is not None and mixed_up(path, newest) is not None:
        repaired.append(version_from_data(path, newest, source))
        # Rows that such versions lost cannot be restored, but none of them is the newest version any longer.
        failures = [failure for failure in failures if not isinstance(failure, MixedUpError)]
    if failures:
        raise _summary(failures, repaired)
    return repaired


def _repair_shard(
    path: Path,
    manifest: Manifest,
    number: int,
    copy: Path | None,
    has_source: bool,
    repaired: list[Repaired],
    failures: list[RepairError],
    grown: dict[Path, Grown],
) -> bool:
    """Repair one shard as far as possible; return whether the data can still restore some of its pages."""
    shard, width = manifest.shards[number], manifest.page_bytes
    failed = len(failures)

    def attempt(work: Iterator[Repaired]) -> bool:
        try:
            repaired.extend(work)
        except (RepairError, NotARelationError) as error:  # the latter if another file is needed and is damaged too
            failures.append(error if isinstance(error, MixedUpError) else RepairError(str(error)))
            return False
        return True

    left: dict[str, list[int]] = {name: [] for name, _ in shard.page_files}
    sized = set()
    for name, pages in shard.page_files:
        # Leaves can be rebuilt from pages; pages come from the copy or the data.
        may_grow = copy is not None or (has_source and manifest.clustered) or name == shard.leaves_file
        if attempt(repair_size(path, manifest, shard, name, pages, may_grow=may_grow, grown=grown)):
            sized.add(name)
            attempt(repair_pages(path, name, pages, width, page_seed(shard, name), copy, left[name]))
    attempt(repair_map(path, shard, copy))
    damaged = {name: bad for name, bad in left.items() if bad and name != shard.leaves_file}
    sound = not damaged and len(sized) == len(left)
    attempt(repair_index(path, shard, manifest, copy, pages_are_sound=sound))
    leaves = shard.leaves_file
    if leaves is not None and left[leaves]:
        attempt(repair_leaves(path, shard, width, left[leaves], pages_are_sound=sound))
    if damaged and not (has_source and manifest.clustered):
        failures.append(_still_damaged(path, damaged, has_source))
    return bool(damaged) and len(failures) == failed


def _still_damaged(path: Path, left: dict[str, list[int]], has_source: bool) -> RepairError:
    places = [f"page {page} of {path / name}" for name, pages in left.items() for page in pages]
    listed = ", ".join(places[:3]) + (", …" if len(places) > 3 else "")
    remedy = "give a copy of it: it is not clustered" if has_source else "give the data it was built from, or a copy"
    return RepairError(f"{len(places)} pages are damaged ({listed}); {remedy}")


def _summary(failures: list[RepairError], repaired: list[Repaired]) -> RepairError:
    said = list(dict.fromkeys(str(failure) for failure in failures))
    summary = RepairError("\n".join(said))
    summary.repaired = repaired
    return summary
