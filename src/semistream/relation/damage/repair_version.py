"""Builds a new version from the data, if the newest version is mixed up and its files cannot correct it.

Updates of several shards by earlier releases could lose rows and misplace others. The files of such a version are
intact but wrong, so nothing can be verified against them, and only the data can help. The data becomes the next
version. Nothing is overwritten, and versions from before the damage are unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.core.errors import CorruptPageError, NotARelationError
from semistream.relation import builder
from semistream.relation.damage.key_order import KeyOrder
from semistream.relation.damage.repair_pages import Repaired, RepairError
from semistream.relation.damage.repair_source import Source
from semistream.relation.open_relation import OpenRelation
from semistream.relation.rows.fitting import fit
from semistream.relation.secondary.keeping_in_step import built_index
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import properties_of_equal_rows
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.map_file import MixedUpMapError
from semistream.relation.versions.holds import hold_manifest
from semistream.relation.versions.leases import Writer
from semistream.relation.versions.retrying import until_first

__all__ = ["index_from_rows", "mixed_up", "version_from_data"]

_CALL_BYTES = 8 << 20  # bytes of pages read at a time


def mixed_up(path: Path, manifest: Manifest) -> str | None:
    """Return what is wrong with the keys of a version; None if nothing is, or if its pages cannot be read."""
    try:
        with OpenRelation.open(path, version=manifest.version) as relation:
            order, device = KeyOrder(relation), relation.device
            frames = device.allocate(max(1, min(device.page_count, _CALL_BYTES // device.frame_bytes)))
            for begin in range(0, device.page_count, len(frames)):
                pages = np.arange(begin, min(begin + len(frames), device.page_count))
                device.read(pages, frames[: pages.size])
                order.see(pages, frames[: pages.size])
            return next(order.faults(), None)
    except MixedUpMapError as error:
        return str(error)
    except (CorruptPageError, NotARelationError):
        return None  # damage of another kind, which is reported elsewhere


def version_from_data(path: Path, manifest: Manifest, source: Source) -> Repaired:
    """Build the version after ``manifest`` from the data."""
    reader = source()
    missing = [name for name in manifest.schema.names if name not in reader.schema.names]
    if missing:
        raise RepairError(f"the source lacks R's column {missing[0]!r}; it has {', '.join(reader.schema.names)}")

    def rows() -> Iterator[pa.RecordBatch]:
        for part in reader:
            yield fit(part.select(manifest.schema.names), manifest.schema)

    made = builder.build(
        pa.RecordBatchReader.from_batches(manifest.schema, rows()), path, manifest.key,
        page_size=manifest.page_bytes, fill=manifest.fill, clustered=manifest.clustered,
        shards=len(manifest.shards), properties={**manifest.properties, manifests.OPERATION: "repair"},
        follows=manifest.version, indexes=[index.key for index in manifest.indexes],
        valid_from=manifest.valid_from, valid_to=manifest.valid_to,
    )  # fmt: skip
    return Repaired(str(path / manifests.name_of(made.version)), -1, made.rows, "data")


def index_from_rows(path: Path, key: tuple[str, ...]) -> Repaired:
    """Sort a damaged secondary index again from R's rows, which are intact; commit it as the next version."""

    def work() -> Repaired:
        manifest, held = hold_manifest(path)
        with held, Writer(path) as writer:
            writer.check_follows(manifest.version)
            version = manifest.version + 1
            properties = properties_of_equal_rows(manifest.properties, manifest.version, version)
            following = dataclasses.replace(
                manifest, version=version, properties={**properties, manifests.OPERATION: "repair"}
            )
            indexes = [
                built_index(writer, following, key, number)
                if index.key == key
                else dataclasses.replace(index, version=version)
                for number, index in enumerate(manifest.indexes)
            ]
            writer.commit(dataclasses.replace(following, indexes=tuple(indexes)))
            rows = sum(shard.rows for index in indexes if index.key == key for shard in index.shards)
            return Repaired(str(path / manifests.name_of(version)), -1, rows, "rows")

    return until_first(path, work)
