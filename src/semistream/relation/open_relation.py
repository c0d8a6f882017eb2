"""An open version of R, as the joins see it: keys to pages, pages to frames, rows out of frames."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.core.units import format_bytes, format_count
from semistream.relation.changes.overlay import Change, Overlay
from semistream.relation.changes.patch import Patch
from semistream.relation.changes.preparing import prepare
from semistream.relation.changes.updatable import State
from semistream.relation.changes.update_agreement import Listener, ask_all, cancelled_unless_done, tell_all
from semistream.relation.devices.device import Device, DeviceCounters
from semistream.relation.devices.mapped_device import MappedDevice
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import Index, Located, ScatteredIndex, locate_in_shards
from semistream.relation.pages.page_layout import PageLayout, page_keys
from semistream.relation.pages.shard_writer import stored_schema, whole_rows
from semistream.relation.relation_files import RelationFiles
from semistream.relation.rows.arrow_input import read_whole
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.local_tier import local_tier
from semistream.relation.stores.store_path import Place, StorePath, place_of
from semistream.relation.versions.holds import Hold, hold_manifest

__all__ = ["OpenRelation"]


class OpenRelation:
    """One version of R, open for reading, with the changes that `apply` makes in memory.

    Pages are numbered through all shards: ``locate`` says which pages hold a key, ``read`` brings pages into frames,
    and `rows` decodes single rows straight out of them. Properties read nothing. `Relation` adds what writes versions.
    """

    def __init__(
        self, schema: pa.Schema, key: KeyCodec, device: Device, indexes: Sequence[Index], shard_pages: Sequence[int], *,
        rows: int, unique: bool, clustered: bool, path: Place | None = None, manifest: Manifest | None = None,
        open_shards: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.schema, self.key, self.device = schema, key, device
        self.row_count, self.unique, self.clustered = rows, unique, clustered
        self.path = path
        """The directory, or None if R is not made of files."""
        self.manifest = manifest
        """The manifest of `version`, immutable; None if R is not made of files."""
        self.revision = 0
        """How often R changed in this process since it was opened; each `apply` adds one."""
        self.codec = RowCodec(stored_schema(schema, key))
        self.layout = PageLayout(device.frame_bytes, 0 if self.codec.variable else self.codec.stride)
        self.indexes = list(indexes)
        self.open_shards = tuple(range(len(self.indexes)) if open_shards is None else open_shards)
        """Numbers of the shards that are open, in the order of `indexes`."""
        self.shard_count = len(self.indexes) if manifest is None else len(manifest.shards)
        """Shards of R, of which not all need be open."""
        self._place = np.full(self.shard_count, -1, np.int32)
        self._place[list(self.open_shards)] = np.arange(len(self.indexes))
        self.overlay = Overlay.empty(device, len(self.indexes))
        """Pages changed by `apply`."""
        self.page_order: Ints = np.empty(0, np.int64)
        """Page ids in key order, or nothing while that is their own order."""
        self.shard_bases = np.concatenate([[0], np.cumsum(shard_pages)]).astype(np.int64)
        self._held: Hold | None = None
        self._shown: Hold | None = None
        """Keep the version whose files are read, and `version` if that is another one."""
        self._uncommitted = 0
        """Updates that are in memory only."""
        self._options: dict[str, Any] = {}
        self._listeners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._installing, self._changing = threading.RLock(), threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        version: int | None = None,
        shards: Sequence[int] | Callable[[int], Sequence[int]] | None = None,
        direct: bool = True,
        depth: int = 64,
        local: int | float | str | None = None,
    ) -> Self:
        """Open a relation for reading: the manifest and the indexes are read whole, and no pages.

        Parameters
        ----------
        path
            What `build` wrote.
        version
            Which version; by default the newest.
        shards
            Only these shards, or a function that is given the number of shards and returns these; keys of the others
            are then absent.
        direct
            Read past the operating system's page cache, so that the budget is all the memory there is. Where
            the file system refuses, reads are buffered.
        depth
            Reads in flight at once.
        local
            Of a relation in a store: bytes, such as ``"20GB"``, or a share of R, of what was read to keep on this
            machine's disk; see `semistream.relation.stores.local_tier`. By default ``$SEMISTREAM_LOCAL``, or none.
        """
        place = place_of(path)
        manifest, held = hold_manifest(place, version)
        with contextlib.ExitStack() as undo:
            undo.callback(held.close)
            count = len(manifest.shards)
            numbers = tuple(range(count) if shards is None else shards(count) if callable(shards) else shards)
            tier = local_tier(local, manifest.nbytes) if isinstance(place, StorePath) else None
            files = RelationFiles(place, manifest, numbers, direct=direct, depth=depth, tier=tier)
            relation = cls(
                manifest.schema, manifest.codec, files.device, files.indexes, files.shard_pages, rows=files.rows,
                unique=files.unique, clustered=manifest.clustered, path=place, manifest=manifest, open_shards=numbers,
            )  # fmt: skip
            undo.pop_all()
        relation.page_order, relation._held = files.page_order, held
        relation._options = {"direct": direct, "depth": depth, "local": local}
        return relation

    @property
    def version(self) -> int:
        """Number of the committed version whose rows R has, without what `apply` changed; 0 if R has no files."""
        return 0 if self.manifest is None else self.manifest.version

    @property
    def place(self) -> Place:
        """The path of a relation that is known to be made of files."""
        assert self.path is not None
        return self.path

    @property
    def stored(self) -> Manifest:
        """The manifest of a relation that is known to be made of files."""
        assert self.manifest is not None
        return self.manifest

    @property
    def value_schema(self) -> pa.Schema:
        """R's columns without the key: what a join adds to the stream."""
        return pa.schema([field for field in self.schema if field.name not in self.key.names])

    @property
    def page_count(self) -> int:
        """Pages of all shards (``N_R``)."""
        return self.overlay.page_count

    @property
    def page_bytes(self) -> int:
        """Bytes of a page (``v_P``)."""
        return self.device.page_bytes

    @property
    def rows_per_page(self) -> float:
        """Rows of a page, on average."""
        return self.row_count / max(1, self.page_count)

    @property
    def nbytes(self) -> int:
        """Bytes on disk, of which a budget of ``"5%"`` is a share."""
        return self.page_count * self.page_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the index held in memory."""
        return self.map_bytes + self.page_order.nbytes + sum(index.nbytes for index in self.indexes)

    @property
    def map_bytes(self) -> int:
        """Bytes that tell where pages are which older versions of the files have moved; part of `index_bytes`."""
        return self.device.nbytes if isinstance(self.device, MappedDevice) else 0

    @property
    def counters(self) -> DeviceCounters:
        """What was read so far, leaves of a scattered index included."""
        return sum((leaves.counters for leaves in self._leaves), self.device.counters.snapshot())

    @property
    def _leaves(self) -> list[Device]:
        return [index.device for index in self.indexes if isinstance(index, ScatteredIndex)]

    def home(self, keys: Ints) -> NDArray[np.int32]:
        """Return the position in `indexes` of each key's shard, or -1 if that shard is not open."""
        return self._place[self.key.shards(keys, self.shard_count)]

    def locate(self, keys: Ints) -> Located:
        """Return the pages that may hold each key; none means that R cannot hold it.

        A binary search a key in memory, without reads; if R is not clustered, a read of each leaf that keys are in.
        """
        if len(self.indexes) == 1:
            return self.indexes[0].locate(keys)
        return locate_in_shards(self.indexes, self.shard_bases, self.home(keys), keys)

    def read(self, pages: Ints, frames: Bytes) -> None:
        """Bring page ``pages[i]`` into ``frames[i]``, a changed one from memory, others from the device, verified."""
        if self.overlay.ids.size:
            self.overlay.read(self.device, pages, frames)
        else:
            self.device.read(pages, frames)

    def ring(self, frames: Bytes) -> contextlib.AbstractContextManager[RingReader | None]:
        """Have a ring over frames to read pages through; None where they are read otherwise (`Device.ring`)."""
        return contextlib.nullcontext() if self.overlay.ids.size else self.device.ring(frames)

    def frames(self, count: int) -> Bytes:
        """Return room for ``count`` pages, aligned as the device needs it; memory is taken as pages come in."""
        return self.device.allocate(count)

    def rows(self, data: Bytes, starts: Ints) -> pa.RecordBatch:
        """Decode the rows that start at ``starts`` of ``data``, in the schema they are stored in; without reads."""
        return self.codec.decode(data, starts)

    def to_batches(self, pages_at_once: int = 512) -> Iterator[pa.RecordBatch]:
        """Yield all of R, page after page: one scan, in the memory of ``pages_at_once`` pages and their rows."""
        frames = self.frames(min(pages_at_once, max(1, self.page_count)))
        for begin in range(0, self.page_count, len(frames)):
            pages = np.arange(begin, min(begin + len(frames), self.page_count))
            yield self.decode(pages, frames[: pages.size])[1]

    def decode(self, pages: Ints, frames: Bytes) -> tuple[Ints, pa.RecordBatch]:
        """Read pages into ``frames``; return key64 and all columns of their rows."""
        self.read(pages, frames)
        keys, _, starts = page_keys(frames, self.layout.stride)
        return keys, whole_rows(self.schema, self.key, keys, self.rows(frames.reshape(-1), starts))

    def to_table(self) -> pa.Table:
        """Return all of R in memory, in one scan; for tests and small relations."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def apply(self, upserts: Any = None, deletes: Any = None) -> Change:
        """Change R in memory: changed pages take the place of those on disk, which stay as they are.

        Costs a read of each page with a changed key, and holds those pages, and a new index, until R is closed.

        Parameters
        ----------
        upserts
            Rows of R, as `build` takes them. A key that occurs here has these rows from now on, and no others.
        deletes
            Keys to remove: an Arrow array, or anything with the key columns. Deleted first, then upserted.

        Examples
        --------
        >>> import pyarrow as pa, tempfile
        >>> from semistream import Relation
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     relation = Relation.build(pa.table({"id": [1, 2], "name": ["apple", "fig"]}), f"{folder}/r", key="id")
        ...     change = relation.apply(pa.table({"id": [2, 3], "name": ["date", "pear"]}), deletes=pa.array([1]))
        ...     relation.revision, relation.to_table().to_pydict()
        (1, {'id': [2, 3], 'name': ['date', 'pear']})
        """
        given = read_whole(upserts), read_whole(deletes)
        while True:
            patch = self.prepare(*given)
            with self._installing:
                if patch.of_revision == self.revision:  # or another thread was faster
                    return self.install(patch)

    def prepare(self, upserts: Any = None, deletes: Any = None) -> Patch:
        """Work an update out, with all its reads, without installing it; the patch says how much memory it takes."""
        with self._changing:
            now = State(self.revision, list(self.indexes), self.overlay, self.row_count, self.unique)
        return prepare(self, now, upserts, deletes)

    def install(self, patch: Patch, commit: Callable[[], tuple[Manifest, Hold]] | None = None) -> Change:
        """Make a prepared update visible, between reads, once all who hold copies of pages or rows have agreed.

        No reads. Raises what any of them refuses it with; then R and all of them are as they were.

        Parameters
        ----------
        patch
            What `prepare` returned.
        commit
            Called when all have agreed: writes the update as a version, and returns and holds it. If it raises, R and
            all who were asked are as they were. Without it the update is in memory only.
        """
        with self._installing:
            patch.check_applies_to(self.revision)
            agreements = ask_all(list(self._listeners), patch)
            if commit is None:
                self._uncommitted += 1
            else:
                with cancelled_unless_done(agreements):
                    self._show(*commit())
            with self._changing:
                self.overlay, self.page_order, self.indexes = patch.overlay, patch.page_order, list(patch.indexes)
                self.row_count, self.unique = patch.row_count, patch.unique
                self.revision += 1
            change = Change(self.revision, patch.keys, patch.pages)
            tell_all(agreements, change)
            return change

    def subscribe(self, listener: Listener) -> None:
        """Ask ``listener`` before updates, and tell it of them, for as long as it lives."""
        self._listeners.add(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Tell ``listener`` no more."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Close the files."""
        for device in (self.device, *self._leaves):
            device.close()
        for held in (self._held, self._shown):
            if held is not None:
                held.close()

    def _show(self, manifest: Manifest, held: Hold) -> None:
        """Be at another version, whose rows R has already: from now on, or once an update is installed."""
        if self._shown is not None:
            self._shown.close()
        self.manifest, self._shown = manifest, held

    def _become(self, fresh: OpenRelation) -> None:
        """Take over all that another object has open, which is not used any more."""
        self.close()
        own = {"revision": self.revision + 1}
        own |= {name: vars(self)[name] for name in ("_listeners", "_installing", "_changing")}
        vars(self).update(vars(fresh) | own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        order = "by key" if self.clustered else "in its own order"
        return (
            f"Relation({self.path}, version {self.version}: {format_count(self.row_count)} rows {order}, "
            f"{format_count(self.page_count)} pages of {format_bytes(self.page_bytes)}, "
            f"{len(self.indexes)} shards, key {', '.join(self.key.names)})"
        )
