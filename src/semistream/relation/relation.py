"""R on disk: built, opened, changed version by version, vacuumed and repaired."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from semistream.core.errors import SemistreamError
from semistream.relation import builder
from semistream.relation.committing import commit_compacted, commit_index, commit_update, commit_without_index
from semistream.relation.moving_relation import MovingRelation
from semistream.relation.pages.shard_writer import PAGE_BYTES
from semistream.relation.row_lookups import RowLookups, open_lookups
from semistream.relation.rows.arrow_input import read_whole
from semistream.relation.storage.manifest import Manifest, latest
from semistream.relation.storage.secondary_index import Columns
from semistream.relation.versions.holds import Hold, hold_manifest
from semistream.relation.versions.vacuum import vacuum
from semistream.relation.versions.version_history import Version, history

if TYPE_CHECKING:
    from semistream.relation.damage.repair import Repaired
    from semistream.relation.damage.repair_source import Source

__all__ = ["Relation"]


class Relation(MovingRelation):
    """A table far bigger than memory, in pages that are found by key and read in runs.

    Created by `build` and `open`. Memory: the index (9 bytes per page, or 25 after updates), pages that changed while
    joins were attached, and rows that `lookup` caches.

    `upsert`, `delete`, `update` and `compact` each commit one version and return its number. Afterwards this object
    shows that version:

    * With no join attached, R is opened again: no changed page is held in memory, and page numbers may differ. If
      another writer committed first, the change is applied to that writer's version.
    * With joins attached, the joins must agree first, as for `apply`. A join that has no memory for the update refuses
      it before anything is written. A waiting tuple sees R either before or after the update. The changed pages stay in
      memory, inside the joins' budgets, until R is closed. If another writer committed first, `CommitConflictError` is
      raised and nothing has changed.

    Other objects that have R open, in this process or elsewhere, keep the version they opened; see `refresh`.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> products = pa.table({"id": [3, 1, 2], "name": ["pear", "apple", "fig"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = Relation.build(products, f"{folder}/products", key="id")
    ...     version = relation.upsert(pa.table({"id": [2, 4], "name": ["date", "plum"]}))
    ...     version, relation.to_table()["name"].to_pylist()
    (2, ['apple', 'date', 'pear', 'plum'])
    """

    @classmethod
    def build(
        cls,
        data: Any,
        path: str | os.PathLike[str],
        key: str | Sequence[str],
        *,
        page_size: int | str = PAGE_BYTES,
        fill: float = 1.0,
        clustered: bool = True,
        shards: int = 1,
        memory: int | str = "512MB",
        overwrite: bool = False,
        unique: bool = False,
        indexes: Iterable[Columns] = (),
        valid_from: str | None = None,
        valid_to: str | None = None,
        encoding: Literal["auto", "plain"] = "auto",
    ) -> Relation:
        """Write a relation and open it. The data is sorted within ``memory``, and each page is written once.

        Parameters
        ----------
        data
            A pyarrow Table, RecordBatches, or anything with ``__arrow_c_stream__``. It need not fit in memory.
        path
            A new or empty directory. It becomes a relation atomically, at the end.
        key
            Name of the key column, or several names. Rows with a NULL key are left out: nothing can match them.
        page_size
            Bytes of a page. Small pages waste less of a random read. Large pages need a smaller index.
        fill
            Fraction of each page that is filled. A lower fill leaves room for updates, but makes R longer to read.
        clustered
            If False, keep the given order and write a separate index; for joins that need R sorted by frequency.
        shards
            Number of parts, by hash of the key. Each shard can be joined by another task of a cluster.
        memory
            Memory for sorting. Data beyond that is spilled next to the relation.
        overwrite
            Replace the relation at ``path`` by a new version.
        unique
            Raise an error if a key has several rows.
        indexes
            Columns of secondary indexes; see `add_index`.
        valid_from
            Makes R a history: the column, a timestamp, date or integer, from which on a row is valid. A key has a row
            for each version, and ``as_of=`` of a join finds the one that was valid. By default ``__START_AT``.
        valid_to
            The column, of the same type, before which a row is valid, by default ``__END_AT``. NULL, or no such column,
            means that the key's next row ends it.
        encoding
            ``"auto"`` packs the columns whose values take fewer bytes that way: values that occur often, similar texts,
            and numbers of a narrow range. More rows then fit into a page and into a cache. It applies from 1 MiB of
            rows, and earlier releases cannot read packed rows. ``"plain"`` stores all values as they are.
        """
        builder.build(
            data, path, key, page_size=page_size, fill=fill, clustered=clustered,
            shards=shards, memory=memory, overwrite=overwrite, unique=unique, indexes=indexes,
            valid_from=valid_from, valid_to=valid_to, encoding=encoding,
        )  # fmt: skip
        return cls.open(path)

    # -- look-ups -----------------------------------------------------------------------------------------

    _own_lookups: RowLookups | None = None

    def lookup(
        self, keys: Any, columns: Sequence[str] | None = None, *, found: str | None = None, many: bool = False
    ) -> pa.RecordBatch:
        """Return R's columns for each key, in the order of the keys. See `semistream.lookups.Lookups.get`.

        Rows are cached in at most 64 MB, for all calls of this object. `lookups` has another budget.

        Examples
        --------
        >>> import pyarrow as pa, tempfile
        >>> products = pa.table({"id": [3, 1, 2], "name": ["pear", "apple", "fig"], "price": [40, 30, None]})
        >>> with tempfile.TemporaryDirectory() as folder, Relation.build(products, f"{folder}/r", key="id") as relation:
        ...     relation.lookup([2, 9, 1, 2], columns=["price", "name"], found="known").to_pydict()
        {'price': [None, None, 30, None], 'name': ['fig', None, 'apple', 'fig'], 'known': [True, False, True, True]}
        """
        return self._lookups().get(keys, columns, found=found, many=many)

    async def alookup(
        self, keys: Any, columns: Sequence[str] | None = None, *, found: str | None = None, many: bool = False
    ) -> pa.RecordBatch:
        """Do the same as `lookup`; the event loop goes on while pages are read."""
        return await self._lookups().aget(keys, columns, found=found, many=many)

    def lookups(self, memory: int | float | str = "64MB") -> RowLookups:
        """Open look-ups with their own cache of rows; ``memory`` is all that they hold. Close them before R."""
        with self._installing:  # or R could move before they follow it
            return open_lookups(self, memory)

    def _lookups(self) -> RowLookups:
        with self._installing:
            if self._own_lookups is None:
                self._own_lookups = self.lookups()
            return self._own_lookups

    def close(self) -> None:
        """Close the files, after look-ups and moves to another version that other threads have begun."""
        with self._installing, contextlib.ExitStack() as waiting:
            for lookups in self._movable():
                waiting.enter_context(lookups.moving())
            super().close()

    # -- versions -----------------------------------------------------------------------------------------

    def upsert(self, data: Any, *, at: Any = None, evolve: bool = False) -> int:
        """Insert keys, or replace all rows of existing keys, in a new version; return its number.

        Parameters
        ----------
        data
            Rows of R, in any form that `build` accepts. They replace all rows of the keys that occur here.
            Changed pages are computed in memory. For updates larger than memory use `semistream.spark.upsert`.
        at
            For a history: the time from which the rows are valid, as text, a date, a datetime or a number. The current
            row of each key ends then. Leave out the columns of times. A key with a later row is refused.
        evolve
            Add columns that R lacks, and widen types, in the same version; see `evolve`. Existing rows have NULL in
            added columns. By default rows with other columns than R's are refused.
        """
        return self.update(upserts=data, at=at, evolve=evolve)

    def delete(self, keys: Any, *, at: Any = None) -> int:
        """Remove keys, an Arrow array or anything with the key columns, in a new version; return its number.

        With ``at``, in a history, the current rows end at that time, and nothing is removed; see `upsert`.
        """
        return self.update(deletes=keys, at=at)

    def update(self, *, upserts: Any = None, deletes: Any = None, at: Any = None, evolve: bool = False) -> int:
        """Delete, then upsert, in one version; return its number. See `upsert` and `delete`."""
        path = self._changeable("update")
        upserts, deletes = read_whole(upserts), read_whole(deletes)  # may be read again
        if not self._joins():
            return self._move(lambda: commit_update(path, upserts, deletes, at=at, evolve=evolve))
        if evolve:
            raise self._joins_hold(path)

        def commit() -> tuple[Manifest, Hold]:
            committed = commit_update(path, upserts, deletes, at=at, follows=self.version)
            return hold_manifest(path, committed.version)

        while True:
            patch = self.prepare(upserts, deletes, at=at)
            with self._installing:
                if patch.of_revision == self.revision:  # else another thread was first
                    self.install(patch, commit)
                    return self.version

    def compact(self) -> int:
        """Rewrite R as if freshly built, without changed pages, as a new version; return its number.

        How columns are packed is chosen again, unless R was built with ``encoding="plain"``. Old versions stay
        readable. With joins attached, pages are still read from the files that are open, which have the same rows.
        """
        return self._with_equal_rows(commit_compacted, "compact")

    def add_index(self, columns: Columns) -> int:
        """Add a secondary index in a new version; return its number. Rows may then be found by these columns.

        An index is a copy of R's rows in the order of ``columns``: a join through it is as fast as a join on the key.
        It takes as much space as R, and every later version of R also updates its indexes: an update, delete, compact,
        a followed commit or a Spark job. A version has R and all indexes with the same rows, or does not exist.

        Open it with ``by=columns``, or give ``by`` to a join. Columns may have several rows per value. Rows with a NULL
        are left out of the index.

        Examples
        --------
        >>> import pyarrow as pa, tempfile, semistream
        >>> people = pa.table({"id": [1, 2, 3], "email": ["c@x", "a@x", "b@x"]})
        >>> visits = pa.record_batch({"email": ["a@x", "z@x"]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     relation = Relation.build(people, f"{folder}/people", key="id", indexes=["email"])
        ...     version = relation.upsert(pa.table({"id": [3], "email": ["z@x"]}))
        ...     with semistream.create("adaptivejoin", relation, on="email", by="email") as join:
        ...         pa.Table.from_batches(join.process([visits])).to_pydict()
        {'email': ['a@x', 'z@x'], 'id': [2, 3]}
        """
        return self._with_equal_rows(commit_index, "add_index", columns)

    def drop_index(self, columns: Columns) -> int:
        """Remove a secondary index in a new version; return its number. Older versions keep it."""
        return self._with_equal_rows(commit_without_index, "drop_index", columns)

    def by(self, columns: Columns) -> Relation:
        """Open this version again, with the columns of a secondary index as its key. Close it like any relation."""
        path = self._stored("by")
        if self._uncommitted:
            raise SemistreamError(
                f"an index has only committed rows, and {self._uncommitted} updates are in memory only; write them "
                "with upsert and delete"
            )
        return self.open(path, version=self.version, **{**self.options, "by": columns})

    @property
    def secondary_indexes(self) -> list[tuple[str, ...]]:
        """The columns of each secondary index of this version."""
        return [] if self.manifest is None else [index.key for index in self.manifest.indexes]

    def refresh(self) -> int:
        """Move to the newest version, which another writer may have committed; return its number.

        This raises an error while joins are attached, because joins hold pages of their version. Create new joins on
        another `Relation.open` instead.
        """
        path = self._changeable("refresh")
        newest = latest(path)
        if newest == self.version and not self.overlay.ids.size:
            return newest
        if joins := self._joins():
            raise SemistreamError(
                f"{len(joins)} joins hold pages of version {self.version} of {path}; close them, or open the "
                "relation again for new joins: the present ones continue with their version"
            )
        return self._move()

    def history(self) -> list[Version]:
        """Return all versions that can still be opened, oldest first."""
        return history(self._stored("history"))

    def vacuum(self, *, keep: Iterable[int] = (), older_than: float = 3600.0, idle_days: float = 30.0) -> list[str]:
        """Remove versions that are no longer needed; return the names of removed files. See `semistream.vacuum`.

        The version that this object shows is kept.
        """
        return vacuum(self._stored("vacuum"), keep=keep, older_than=older_than, idle_days=idle_days)

    def repair(
        self, source: Source | None = None, *, copy: str | os.PathLike[str] | None = None, trust: bool = False
    ) -> list[Repaired]:
        """Make all versions readable again, in place; return what was repaired. See `semistream.repair`.

        This object then reads the repaired pages. If the newest version had to be built again from ``source``, this
        object moves to the new version, unless joins are attached.
        """
        from semistream.relation.damage.repair import repair  # which joins do not need

        repaired = repair(self._stored("repair"), source, copy=copy, trust=trust)
        if not (self._joins() or self._uncommitted):
            self.refresh()
        return repaired

    # -- inside -------------------------------------------------------------------------------------------

    def _with_equal_rows(self, commit: Callable[..., Manifest], what: str, *arguments: Any) -> int:
        """Commit a version with the same rows. Joins that are attached continue to read the files that are open."""
        path = self._changeable(what)
        if not self._joins():
            return self._move(lambda: commit(path, *arguments))
        with self._installing:
            self._show(*hold_manifest(path, commit(path, *arguments, follows=self.version).version))
        return self.version
