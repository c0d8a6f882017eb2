"""The manifest: one immutable JSON file that lists the files of a version of R.

A directory becomes a relation when its first manifest is linked into place. The highest number is the current version.
A build that stops half-way leaves files that no manifest lists.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import NotARelationError, StorageError, UnknownIndexError
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.rows.packed.packing import Packing
from semistream.relation.storage import manifest_check
from semistream.relation.storage.files import sync_directory
from semistream.relation.storage.manifest_links import latest, link_manifest, name_of, versions
from semistream.relation.storage.no_relation import why_not
from semistream.relation.storage.row_layouts import RowLayouts
from semistream.relation.storage.secondary_index import Columns, SecondaryIndex
from semistream.relation.storage.shard_files import ShardFiles, filters_of, shards_with
from semistream.relation.stores.store_path import Place

__all__ = [
    "ENCODING",
    "MOST_SHARDS",
    "OPERATION",
    "PLAIN_ROW_BYTES",
    "SPARK_SCHEMA",
    "Manifest",
    "ShardFiles",
    "commit",
    "latest",
    "load",
    "name_of",
    "sync_directory",
    "versions",
    "why_not",
]

_FORMAT = 2
_UNSEALED = 1
"""The first format, whose manifests have no checksum and whose files are not bound to their names."""
_INDEXED = 3
"""The format of a version with secondary indexes, which earlier releases would not keep in step."""
_HISTORY = 4
"""The format of a history: earlier releases know neither the order of its rows nor its index."""
_EVOLVED = 5
"""The format of a version whose files have row layouts, because R's columns were changed; also of a history, or with
indexes."""
_PACKED = 6
"""The format of a version whose rows are packed, and which may have any of the above."""


MOST_SHARDS = "most_shards"
"""Property: the maximum number of shards of any earlier version, if greater than that of this version."""
OPERATION = "operation"
"""Property: what created a version: build, upsert, delete, follow, evolve, compact or repair."""
SPARK_SCHEMA = "spark_schema"
"""Property: Spark's schema of the rows from which R was built, which has types that Arrow does not have."""
ENCODING = "encoding"
"""Property: ``plain`` if R was built with ``encoding="plain"``, so that compaction does not pack it."""
PLAIN_ROW_BYTES = "plain_row_bytes"
"""Property: if R is packed, the mean bytes of its rows without that, with key and flags, in a sample of the build."""


@dataclass(frozen=True)
class Manifest:
    """Everything a reader must know before it opens the shard files. Readers may share one."""

    schema: pa.Schema
    key: tuple[str, ...]
    page_bytes: int
    fill: float
    clustered: bool
    shards: tuple[ShardFiles, ...]
    version: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)
    valid_from: str | None = None
    valid_to: str | None = None
    """In a history, the columns that say when a row is valid; without ``valid_to`` the key's next row ends a row."""
    evolution: RowLayouts | None = None
    """The row layouts of the files, if columns were ever changed."""
    packing: Packing | None = None
    """How columns are packed, by their numbers, in all files of this version; None if all rows are plain."""
    sealed: bool = field(default=True, compare=False)
    """Whether the manifest was read with a checksum. Manifests are always written with one."""
    indexes: tuple[SecondaryIndex, ...] = ()
    """Secondary indexes that have the rows of this version; see `in_order_of`."""
    by: tuple[str, ...] | None = None
    """If this is R in the order of one of its indexes: the columns of that index."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        # A version never has the indexes of another one: a writer that does not renew them leaves R without them.
        object.__setattr__(self, "indexes", tuple(one for one in self.indexes if one.version == self.version))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "properties": dict(self.properties)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @property
    def rows(self) -> int:
        """Rows of R."""
        return sum(shard.rows for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages as R was built. A budget such as ``"5%"`` refers to this if R is not opened completely."""
        return max(1, sum(shard.pages for shard in self.shards) * self.page_bytes)

    @property
    def most_shards(self) -> int:
        """Return the maximum number of shards of this and earlier versions: queries may still partition rows by it."""
        return max(len(self.shards), int(self.properties.get(MOST_SHARDS, "0")))

    @property
    def codec(self) -> KeyCodec:
        """The codec of R's keys."""
        return KeyCodec.for_schema(self.schema, self.key)

    @property
    def times(self) -> ValidTimes | None:
        """The times of the rows of a history; None if R is not one."""
        return None if self.valid_from is None else ValidTimes.of(self.schema, self.valid_from, self.valid_to, self.key)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns of a history's times."""
        return tuple(name for name in (self.valid_from, self.valid_to) if name is not None)

    @property
    def row_layouts(self) -> RowLayouts:
        """The row layouts of the files: only one if columns were never changed."""
        return self.evolution or RowLayouts.unchanged(self.schema)

    @property
    def all_shards(self) -> list[ShardFiles]:
        """The shards of this version, and those of its indexes."""
        return [*self.shards, *(shard for index in self.indexes for shard in index.shards)]

    @property
    def unique(self) -> bool:
        """Whether no key occurs twice."""
        return all(shard.unique for shard in self.shards)

    @property
    def files(self) -> list[str]:
        """Names of all files of this version, including those of its indexes and filters."""
        return [name for shard in self.all_shards for name in shard.all_files]

    def in_order_of(self, columns: Columns, place: Place | str = "this relation") -> Manifest:
        """Return the manifest of R with the columns of a secondary index as its key. It is read, and never committed.

        The key's own columns are accepted as well, and return this manifest.
        """
        names = listed(columns)
        if names == self.key:
            return self
        for index in self.indexes:
            if index.key == names:
                return replace(self, key=names, shards=index.shards, clustered=True, indexes=(), by=names)
        known = [", ".join(index.key) for index in self.indexes]
        raise UnknownIndexError(
            f"version {self.version} of {place} has no index on {', '.join(names)}; it can be joined on its key, "
            f"{', '.join(self.key)}{''.join(f', and on {one}' for one in known)}. Add the index with "
            "Relation.add_index or semistream index, or build another relation with these columns as its key"
        )

    def written_after(self, before: RowLayouts, numbers: Sequence[int] | None = None) -> Manifest:
        """Return this manifest of newly written files, with the column numbers of the version before.

        ``numbers`` are those with which the rows were packed; they stay, even if the version before has others by now.
        """
        layouts = before.rebuilt(self.schema)
        if numbers is not None and layouts.current.numbers != tuple(numbers):
            layouts = RowLayouts.apart(self.schema, numbers)
        if not layouts.lineage:
            return self
        shards = tuple(shard.with_layout(layouts.number) for shard in self.shards)
        indexes = tuple(
            replace(index, shards=tuple(shard.with_layout(layouts.number) for shard in index.shards))
            for index in self.indexes
        )
        return replace(self, shards=shards, indexes=indexes, evolution=layouts.used_by(shards))

    @property
    def _format(self) -> int:
        if self.packing is not None:
            return _PACKED
        if self.evolution is not None:
            return _EVOLVED
        return _HISTORY if self.valid_from else _INDEXED if self.indexes else _FORMAT

    def to_json(self) -> str:
        """Return the text of the manifest file."""
        assert self.by is None, "R in the order of an index is not a version of R"
        document: dict[str, Any] = {
            "format": "semistream relation",
            "format_version": self._format,
            "version": self.version,
            "rows": self.rows,
            "key": list(self.key),
            "columns": _columns(self.schema),
            "arrow_schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "page_bytes": self.page_bytes,
            "fill": self.fill,
            "clustered": self.clustered,
            "shard_hash": "xxhash64 seed 42, modulo the number of shards",
            "shards": [shard.to_json() for shard in self.shards],
            "properties": dict(self.properties),
        }
        if self.indexes:
            document["indexes"] = [
                {"key": list(index.key), "shards": [shard.to_json() for shard in index.shards]}
                for index in self.indexes
            ]
        if filters := filters_of(self.all_shards):
            document["filters"] = filters
        if self.valid_from is not None:
            document |= {"valid_from": self.valid_from, "valid_to": self.valid_to}
        if self.evolution is not None:
            document["row_layouts"] = self.evolution.to_json()
        if self.packing is not None:
            document["packing"] = self.packing.to_json()
        return manifest_check.sealed(json.dumps(document, indent=1))

    @classmethod
    def from_json(cls, text: str | bytes, origin: Place | str, version: int | None = None) -> Manifest:
        """Read a manifest. Errors name ``origin``. If ``version`` is given, the manifest must be of that version."""
        text = text.encode() if isinstance(text, str) else text
        try:
            document = json.loads(text)
            found = document["format"], document["format_version"]
            if found not in [("semistream relation", number) for number in range(_UNSEALED, _PACKED + 1)]:
                raise NotARelationError(
                    f"{origin} has format {found[0]!r} version {found[1]!r}; this release reads 'semistream relation' "
                    f"version {_UNSEALED} to version {_PACKED}: rebuild it, or use a newer release"
                )
            is_sealed = found[1] != _UNSEALED or "checksum" in document
            if is_sealed and not manifest_check.is_sealed(text):
                raise ValueError("its checksum differs")
            evolved = found[1] == _EVOLVED or (found[1] == _PACKED and "row_layouts" in document)
            shards = shards_with(document["shards"], filters := document.get("filters", {}))
            if not is_sealed:
                shards = tuple(replace(shard, unbound=tuple(shard.files)) for shard in shards)
            manifest = cls(
                schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["arrow_schema"]))),
                key=tuple(document["key"]),
                page_bytes=document["page_bytes"],
                fill=float(document["fill"]),
                clustered=document["clustered"],
                shards=shards,
                version=document["version"],
                properties=dict(document["properties"]),
                valid_from=document.get("valid_from") if found[1] >= _HISTORY else None,
                valid_to=document.get("valid_to") if found[1] >= _HISTORY else None,
                evolution=RowLayouts.from_json(document["row_layouts"]) if evolved else None,
                packing=Packing.from_json(document["packing"]) if found[1] == _PACKED else None,
                sealed=is_sealed,
                indexes=tuple(
                    SecondaryIndex(index["key"], shards_with(index["shards"], filters), document["version"])
                    for index in document.get("indexes", ())
                ),
            )
            _check_consistent(manifest, document)
            if version is not None and manifest.version != version:
                raise ValueError(f"it is the manifest of version {manifest.version}")
            return manifest
        except NotARelationError:
            raise
        except (
            AttributeError, LookupError, TypeError, ValueError, RecursionError, OSError, pa.ArrowException,
        ) as error:  # fmt: skip
            raise NotARelationError(
                f"the manifest {origin} is damaged ({type(error).__name__}: {error}); run semistream repair, best with "
                "a copy of the relation, open another version, or build the relation again"
            ) from error


def _check_consistent(manifest: Manifest, document: dict[str, Any]) -> None:
    """Raise `ValueError` if parts of a manifest contradict each other, or the document that it was read from."""
    for part in (manifest, *(manifest.in_order_of(index.key) for index in manifest.indexes)):
        manifest_check.check(
            part.shards, part.schema.names, part.key, part.version, part.page_bytes, part.fill, part.clustered
        )
    if len(set(manifest.files)) != len(manifest.files):
        raise ValueError("it names a file twice")
    dated = document["format_version"] == _HISTORY or "valid_from" in document
    if dated and (manifest.times is None or not manifest.clustered):
        raise ValueError("it is that of a history without times, or without order")
    if document["columns"] != _columns(manifest.schema):
        raise ValueError(f"its columns {document['columns']} are not those of its schema")
    manifest.row_layouts.check(manifest.all_shards, manifest.schema)
    manifest_check.check_packing(manifest.packing, manifest.row_layouts, manifest.time_columns)
    if document["rows"] != manifest.rows:
        raise ValueError(f"it says {document['rows']!r} rows, but its shards have {manifest.rows:,}")


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}


def load(path: Place, version: int | None = None) -> Manifest:
    """Read one version's manifest, by default the newest."""
    while True:
        number = latest(path) if version is None else version
        if number is None:
            raise NotARelationError(why_not(path))
        file = path / name_of(number)
        try:
            return _understood(file.read_bytes(), str(file), number)
        except FileNotFoundError:
            newest = latest(path)
            if version is None and newest != number:
                continue  # superseded, and removed after it was listed
            raise NotARelationError(
                f"{path} has no version {number}; the newest is {newest}: open that, or leave the version out"
            ) from None
        except (NotARelationError, StorageError):
            raise  # damaged; or the store failed or refused, and nothing is known of the manifest
        except OSError as error:
            raise NotARelationError(f"the manifest {file} cannot be read ({error.strerror}); restore it") from error


@lru_cache(maxsize=4)
def _understood(text: bytes, origin: str, version: int) -> Manifest:
    """Parse a manifest once per process: consecutive tasks of a join in one process open the same version."""
    return Manifest.from_json(text, origin, version)


def commit(path: Place, manifest: Manifest, run: str | None = None) -> None:
    """Make ``manifest`` the current version, atomically; see `link_manifest`."""
    link_manifest(path, manifest.version, manifest.to_json().encode(), run)
