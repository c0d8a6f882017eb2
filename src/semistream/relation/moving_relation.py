"""An open version of R that can move to another one: joins and look-ups that are attached must agree first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import SemistreamError
from semistream.relation.changes.update_agreement import Listener, MovableListener
from semistream.relation.evolving import ColumnChanges, commit_evolved
from semistream.relation.open_relation import OpenRelation
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place

__all__ = ["MovingRelation"]


class MovingRelation(OpenRelation):
    """Base of `Relation`: whether it may move, moving it, and changes of its columns."""

    def evolve(
        self,
        *,
        add: Mapping[str, pa.DataType] | pa.Schema | None = None,
        drop: str | Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, pa.DataType] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> int:
        """Change R's columns in a new version, without writing pages; return its number.

        Open readers and running queries keep the columns they started with. Joins must not be attached: they hold rows.

        Parameters
        ----------
        add
            New columns, with their types. They come last.
        drop, rename, widen
            Columns to remove; new names; and new types that hold all values of the old type, such as int64 for int32,
            as listed in `semistream.relation.rows.widening`. Names are those before the change. Key columns cannot
            change.
        defaults
            Values of added columns in rows that R already has, instead of NULL.

        Examples
        --------
        >>> import pyarrow as pa, tempfile
        >>> from semistream import Relation
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     relation = Relation.build(pa.table({"id": [1], "name": ["fig"]}), f"{folder}/r", key="id")
        ...     version = relation.evolve(add={"stock": pa.int32()}, rename={"name": "title"}, defaults={"stock": 0})
        ...     relation.to_table().to_pydict()
        {'id': [1], 'title': ['fig'], 'stock': [0]}
        """
        path = self._changeable("evolve")
        if self._joins():
            raise self._joins_hold(path)
        new = {} if add is None else {field.name: field.type for field in add} if isinstance(add, pa.Schema) else add
        changes = ColumnChanges(new, listed(drop), rename or {}, widen or {}, defaults or {})
        return self._move(lambda: commit_evolved(path, changes))

    def _stored(self, what: str) -> Place:
        if self.path is None or self.manifest is None:
            raise SemistreamError(
                f"{what} works on files, but this relation has none; build one from its rows with Relation.build"
            )
        return self.path

    def _changeable(self, what: str) -> Place:
        """Return the path if this object may move to another version."""
        path = self._stored(what)
        if "shown_as" in self.options:
            raise SemistreamError(
                f"{what} changes R in its own columns, but {path} was opened with those of another version; open it "
                "without shown_as="
            )
        if self.stored.by is not None and what != "refresh":
            raise SemistreamError(
                f"{what} changes R itself, but this is its index on {', '.join(self.key.names)}; open {path} without by"
            )
        if self._uncommitted:
            raise SemistreamError(
                f"{what} would lose {self._uncommitted} updates that apply made only in memory; open {path} again, and "
                "repeat these updates with upsert and delete"
            )
        if len(self.open_shards) < self.shard_count:
            raise SemistreamError(
                f"{what} needs all of R, but only {len(self.open_shards)} of {self.shard_count} shards of {path} are "
                "open; open it without shards="
            )
        return path

    def _move(self, commit: Callable[[], Manifest] | None = None) -> int:
        """Show the version that ``commit`` writes, by default the newest, from its files; return its number.

        Other threads may do the same: this object then stays at the later version, and stays closed if it was closed.
        """
        assert self.path is not None
        before, closed = self.manifest, self.closed
        fresh = self.open(self.path, version=None if commit is None else commit().version, **self.options)
        with self._installing, contextlib.ExitStack() as waiting:
            overtaken = self.manifest is not before and self.version > fresh.version
            if overtaken or self.closed is not closed:
                fresh.close()
                return fresh.version
            for lookups in self._movable():
                waiting.enter_context(lookups.moving())
            with self._changing:
                self._become(fresh)
        return fresh.version

    def _movable(self) -> list[MovableListener]:
        """Return the look-ups, which can follow R to another version."""
        return [one for one in self._listeners if isinstance(one, MovableListener)]

    def _joins_hold(self, path: Place) -> SemistreamError:
        return SemistreamError(
            f"{len(self._joins())} joins hold rows of {path} with its present columns; close them first, or evolve the "
            "relation through another Relation.open: these joins then continue with their version"
        )

    def _joins(self) -> list[Listener]:
        """Return the joins, which hold pages of their version."""
        return [one for one in self._listeners if not isinstance(one, MovableListener)]
