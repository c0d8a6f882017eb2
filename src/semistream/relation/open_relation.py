"""An open version of R, as joins use it: locate the pages of keys, read pages into frames, decode rows from frames."""

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
from semistream.relation.pages.stored_rows import rows_codec, whole_rows
from semistream.relation.relation_files import RelationFiles
from semistream.relation.rows.arrow_input import read_whole
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.row_layouts import RowLayouts
from semistream.relation.storage.secondary_index import Columns
from semistream.relation.stores.local_tier import local_tier
from semistream.relation.stores.store_path import Place, StorePath, place_of
from semistream.relation.versions.holds import Hold, hold_manifest

__all__ = ["OpenRelation"]


class OpenRelation:
    """One version of R, open for reading, with the changes that `apply` makes in memory.

    Page ids continue across shards. `rows` decodes single rows from frames. Properties read nothing.
    """

    def __init__(
        self, schema: pa.Schema, key: KeyCodec, device: Device, indexes: Sequence[Index], shard_pages: Sequence[int], *,
        rows: int, unique: bool, clustered: bool, path: Place | None = None, manifest: Manifest | None = None,
        open_shards: Sequence[int] | None = None, codec: RowCodec | None = None,
    ) -> None:  # fmt: skip
        self.schema, self.key, self.device = schema, key, device
        self.row_count, self.unique, self.clustered = rows, unique, clustered
        self.path, self.closed = path, False  # the directory
        self.manifest = manifest  # of `version`, immutable; it and `path` are None if R has no files
        self.revision = 0  # number of changes to R in this process since it was opened
        self.codec = rows_codec(schema, key) if codec is None else codec  # of rows in pages
        self.packing = None if manifest is None else manifest.packing  # of rows in pages, whatever is committed later
        self.packing_bytes = 0 if self.packing is None else self.packing.nbytes  # of its tables; part of `table_bytes`
        self.times = None if manifest is None else manifest.times  # when the rows of a history are valid
        self.layout = PageLayout(device.frame_bytes, 0 if self.codec.variable else self.codec.stride, device.page_bytes)
        self.indexes = list(indexes)
        self.open_shards = tuple(range(len(indexes)) if open_shards is None else open_shards)
        """Numbers of the shards that are open, in the order of `indexes`."""
        self.shard_count = len(self.indexes) if manifest is None else len(manifest.shards)  # some may not be open
        self._place = np.full(self.shard_count, -1, np.int32)
        self._place[list(self.open_shards)] = np.arange(len(self.indexes))
        self.overlay = Overlay.empty(device, len(self.indexes))  # pages changed by `apply`
        self.page_order: Ints = np.empty(0, np.int64)  # page ids in key order; empty if ids are already in this order
        self.shard_bases = np.concatenate([[0], np.cumsum(shard_pages)]).astype(np.int64)
        # These protect from vacuum: the version whose files are read, and `version` if it is another one.
        self._held, self._shown = (None, None)  # type: tuple[Hold | None, Hold | None]
        self._uncommitted = 0  # updates that are in memory only
        self.options: dict[str, Any] = {}  # how the files were opened
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
        by: Columns | None = None,
        shown_as: RowLayouts | None = None,
    ) -> Self:
        """Open a relation for reading. This reads the manifest and the indexes completely, and no pages.

        Parameters
        ----------
        path
            A relation written by `build`.
        version
            By default the newest.
        shards
            Open only these shards. A function gets the number of shards and returns some. Keys of others are absent.
        direct, depth
            Bypass the page cache, so that reads use no memory outside the budget; and maximum reads in flight.
        local
            For a relation in a store: how much to keep on the local disk, as ``"20GB"`` or a share of R; see
            `semistream.relation.stores.local_tier`. Default: ``$SEMISTREAM_LOCAL``, or none.
        """
        place = place_of(path)
        manifest, held = hold_manifest(place, version)
        try:
            asked = shards(len(manifest.shards)) if callable(shards) else shards
            shown = {"by": by} if shown_as is None else {"by": by, "shown_as": shown_as}
            relation = cls.of_files(place, manifest, asked, direct=direct, depth=depth, local=local, **shown)
        except BaseException:
            held.close()
            raise
        relation._held = held
        return relation

    @classmethod
    def of_files(cls, place: Place, manifest: Manifest, shards: Sequence[int] | None, **options: Any) -> Self:
        """Open files by a manifest, which need not be committed. For the options see `open`."""
        if options.get("by") is not None:
            manifest = manifest.in_order_of(options["by"], place)
        numbers = tuple(range(len(manifest.shards)) if shards is None else shards)
        tier = local_tier(options["local"], manifest.nbytes) if isinstance(place, StorePath) else None
        files = RelationFiles(place, manifest, numbers, local=tier, options=options)
        relation = cls(
            files.schema, manifest.codec, files.device, files.indexes, files.shard_pages, rows=files.rows,
            unique=files.unique, clustered=manifest.clustered, path=place, manifest=manifest, open_shards=numbers,
            codec=files.codec,
        )  # fmt: skip
        relation.page_order, relation.options = files.page_order, options
        return relation

    @property
    def version(self) -> int:
        """Number of the committed version that R shows, ignoring changes by `apply`; 0 if R has no files."""
        return 0 if self.manifest is None else self.manifest.version

    @property
    def place(self) -> Place:
        """The path of a relation that is known to have files."""
        assert self.path is not None
        return self.path

    @property
    def stored(self) -> Manifest:
        """The manifest of a relation that is known to have files."""
        assert self.manifest is not None
        return self.manifest

    @property
    def value_schema(self) -> pa.Schema:
        """R's columns without the key, which a join adds to the stream."""
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
        """Average number of rows per page."""
        return self.row_count / max(1, self.page_count)

    @property
    def nbytes(self) -> int:
        """Bytes on disk. A budget such as ``"5%"`` is a share of this."""
        return self.page_count * self.page_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the index held in memory, and of tables for packed columns."""
        return self.table_bytes + self.page_order.nbytes + sum(index.nbytes for index in self.indexes)

    @property
    def table_bytes(self) -> int:
        """Bytes of tables in `index_bytes`: the map of pages that updates have moved, and how columns are packed."""
        return self.packing_bytes + (self.device.nbytes if isinstance(self.device, MappedDevice) else 0)

    @property
    def counters(self) -> DeviceCounters:
        """What was read so far, including leaves of a scattered index."""
        return sum((leaves.counters for leaves in self._leaves), self.device.counters.snapshot())

    @property
    def _leaves(self) -> list[Device]:
        return [index.device for index in self.indexes if isinstance(index, ScatteredIndex)]

    def home(self, keys: Ints) -> NDArray[np.int32]:
        """Return the position in `indexes` of each key's shard, or -1 if that shard is not open."""
        return self._place[self.key.shards(keys, self.shard_count)]

    def locate(self, keys: Ints) -> Located:
        """Return the pages that may hold each key. No pages means that R does not contain the key.

        If R is clustered, this is a binary search per key in memory. Otherwise it reads each leaf that has the keys.
        """
        if len(self.indexes) == 1:
            return self.indexes[0].locate(keys)
        return locate_in_shards(self.indexes, self.shard_bases, self.home(keys), keys)

    def read(self, pages: Ints, frames: Bytes) -> None:
        """Read page ``pages[i]`` into ``frames[i]``: changed pages from memory, others from the device, verified."""
        if self.overlay.ids.size:
            self.overlay.read(self.device, pages, frames)
        else:
            self.device.read(pages, frames)

    def ring(self, frames: Bytes) -> contextlib.AbstractContextManager[RingReader | None]:
        """Open a ring over frames to read pages through; None if the device has no ring (see `Device.ring`)."""
        return contextlib.nullcontext() if self.overlay.ids.size else self.device.ring(frames)

    def frames(self, count: int) -> Bytes:
        """Return frames for ``count`` pages, aligned as the device requires. Memory is allocated as pages arrive."""
        return self.device.allocate(count)

    def rows(self, data: Bytes, starts: Ints) -> pa.RecordBatch:
        """Decode the rows that start at ``starts`` of ``data``, in their stored schema. Reads nothing."""
        return self.codec.decode(data, starts)

    def to_batches(self, pages_at_once: int = 512) -> Iterator[pa.RecordBatch]:
        """Yield all of R, page after page. Memory: ``pages_at_once`` pages and their rows."""
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
        """Return all of R in memory, in one scan."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def apply(self, upserts: Any = None, deletes: Any = None) -> Change:
        """Change R in memory: changed pages replace those on disk, which do not change.

        This reads each page with a changed key, and holds these pages and a new index until R is closed.

        Parameters
        ----------
        upserts
            Rows of R, in any form that `build` accepts. They replace all rows of the keys that occur here.
        deletes
            Keys to remove: an Arrow array, or anything with the key columns. Deletes are applied before upserts.

        Examples
        --------
        >>> import pyarrow as pa, tempfile; from semistream import Relation
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
                if patch.of_revision == self.revision:  # else another thread was first
                    return self.install(patch)

    def prepare(self, upserts: Any = None, deletes: Any = None, *, at: Any = None) -> Patch:
        """Compute an update, including all reads, without installing it. The patch says how much memory it needs."""
        with self._changing:
            now = State(self.revision, list(self.indexes), self.overlay, self.row_count, self.unique)
        return prepare(self, now, upserts, deletes, at)

    def install(self, patch: Patch, commit: Callable[[], tuple[Manifest, Hold]] | None = None) -> Change:
        """Make a prepared update visible, between reads, after all listeners have agreed to it.

        Listeners hold copies of pages or rows. If one refuses, its error is raised and nothing changes. Reads nothing.

        Parameters
        ----------
        patch
            What `prepare` returned.
        commit
            Called after all have agreed: writes the update as a version, and returns its manifest and a hold on it. If
            it raises, R and all listeners are unchanged. Without ``commit`` the update is in memory only.
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
        """Ask ``listener`` for agreement before each update, and notify it afterwards, for as long as it lives."""
        self._listeners.add(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Stop notifying ``listener``."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Close the files."""
        self.closed = True
        for device in (self.device, *self._leaves):
            device.close()
        for held in filter(None, (self._held, self._shown)):
            held.close()

    def _show(self, manifest: Manifest, held: Hold) -> None:
        """Switch to another version, whose rows R has, or has once the current update is installed."""
        if self._shown is not None:
            self._shown.close()
        self.manifest, self._shown = manifest, held

    def _become(self, fresh: OpenRelation) -> None:
        """Take over everything that another object has open. The other object must not be used afterwards."""
        OpenRelation.close(self)
        own = {name: vars(self)[name] for name in ("_listeners", "_installing", "_changing")}
        vars(self).update(vars(fresh) | own | {"revision": self.revision + 1})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        order = "in its own order" if not self.clustered else "by key" if self.times is None else "by key and time"
        return (
            f"Relation({self.path}, version {self.version}: {format_count(self.row_count)} rows {order}, "
            f"{format_count(self.page_count)} pages of {format_bytes(self.page_bytes)}, "
            f"{len(self.indexes)} shards, key {', '.join(self.key.names)})"
        )
