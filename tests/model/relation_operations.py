"""Operations on R: build, update in memory and on disk, open, compact, vacuum, and faults amid these."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import semistream
from model.data import Contents, Shape, changed, draw_shape, least_page
from model.watched import Handle, InjectedError, check_contents, shard_of
from packed_builds import packed_builds
from semistream.core.errors import (
    BrokenJoinError,
    CommitConflictError,
    RelationBuildError,
    SemistreamError,
    UnsupportedJoinError,
)
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation

__all__ = ["RelationOperations"]

_MOST_HANDLES = 3
_MOST_VERSIONS = 6


class FaultyListener:
    """Refuses an update, or agrees to it and fails when it is told what became of it."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.failures = 0

    def prepare_update(self, patch: Patch) -> FaultyListener:
        self._fail_in("prepare")
        return self

    def commit(self, change: Change) -> None:
        self._fail_in("commit")

    def cancel(self) -> None:
        self._fail_in("cancel")

    def failed(self, error: BaseException) -> None:
        self.failures += 1

    def _fail_in(self, hook: str) -> None:
        if self.hook == hook:
            raise InjectedError(hook)


class RelationOperations:
    """What is done to R."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "build": 2, "open_handle": 6, "close_handle": 3, "apply": 14, "refused_apply": 3, "faulty_listener": 4,
        "faulty_apply": 4, "upsert": 10, "commit_by_handle": 8, "refused_upsert": 1, "compact": 2, "vacuum": 2,
        "read_shards": 2, "compare": 5,
    }  # fmt: skip

    path: Path
    shape: Shape
    least_page: int
    universe: int
    unique: bool
    serial: int
    versions: dict[int, Contents]
    shards_of: dict[int, int]
    clustered_of: dict[int, bool]
    handles: list[Handle]
    touched: list[Handle]
    warm: dict[Any, Any]

    def say(self, *what: object) -> None: ...

    # -- making and opening -------------------------------------------------------------------------------

    def build(self, rng: Random) -> None:
        """Build R, or build it anew in its place, with other shards and pages."""
        first = not self.versions
        if first:
            self.shape = draw_shape(rng)
            self.least_page = least_page(self.shape)
            self.universe = rng.choice([5, 40, 150, 150, 300])
            self.unique = rng.random() < 0.5
        elif len(self.versions) > _MOST_VERSIONS:
            return
        shards, clustered = rng.randint(1, 5), rng.random() < 0.92 or self.shape.history
        keys = rng.sample(range(self.universe), rng.randint(0, self.universe))
        contents = {k: self._new_rows(rng) for k in keys}
        size = rng.choice([self.least_page, self.least_page, 2 * self.least_page, 8192])
        fill = rng.choice([1.0, 1.0, 0.8, 0.5])
        memory = rng.choice(["512MB", "64KB"]) if rng.random() < 0.1 else "512MB"
        salt = rng.randrange(4) if rng.random() < 0.4 else None
        if salt is not None:
            size = max(size, 2 * self.least_page)  # escaped values take more bytes
        times = {"valid_from": "since", "valid_to": "until"} if self.shape.history else {}
        self.say(self.shape, f"{len(keys)} of {self.universe} keys, {shards=}, {clustered=}, {size=}, {salt=}")
        with nullcontext() if salt is None else packed_builds(salt):
            relation = Relation.build(
                self.shape.listed(contents), self.path, list(self.shape.key.names), page_size=size, fill=fill,
                clustered=clustered, shards=shards, overwrite=not first, memory=memory,
                **times,
            )  # fmt: skip
        with relation:
            check_contents(relation, self.shape, contents)
        self._committed(relation.version, contents, shards, clustered)

    def open_handle(self, rng: Random) -> None:
        """Open a version, the newest or an older one, all of it or some of its shards."""
        if not self.versions or len(self.handles) >= _MOST_HANDLES:
            return
        newest = max(self.versions)
        version = newest if rng.random() < 0.7 else rng.choice(list(self.versions))
        count = self.shards_of[version]
        shards = None
        if rng.random() < 0.3:
            shards = tuple(sorted(rng.sample(range(count), rng.randint(1, count))))
        relation = Relation.open(self.path, version=None if version == newest else version, shards=shards)
        assert relation.version == version
        self.say(f"{version=} {shards=}")
        contents = self._part(relation, self.versions[version], count, shards)
        handle = Handle(relation, self.shape, contents, shards)
        handle.check()
        self.handles.append(handle)

    def close_handle(self, rng: Random) -> None:
        if len(self.handles) > 1:
            self.handles.pop(rng.randrange(len(self.handles))).close()

    # -- updates in memory --------------------------------------------------------------------------------

    def apply(self, rng: Random) -> None:
        """Change R in memory while joins hold tuples: all see it, or it is refused and nothing has happened."""
        if (handle := self._updatable(rng)) is not None:
            self._apply(handle, *self._draw_update(rng, handle))

    def refused_apply(self, rng: Random) -> None:
        """An update that cannot be: rows wider than a page, or a column too few."""
        if (handle := self._updatable(rng)) is None:
            return
        before = handle.relation.revision
        with pytest.raises(SemistreamError):
            handle.relation.apply(self._impossible(rng, handle.relation.page_bytes))
        assert handle.relation.revision == before

    def faulty_listener(self, rng: Random) -> None:
        """Somebody who is told of updates fails. An update that is refused leaves no trace; joins are all told."""
        if (handle := self._updatable(rng)) is None:
            return
        listener = FaultyListener(rng.choice(["prepare", "prepare", "commit", "cancel"]))
        self.say(listener.hook, "of", handle)
        handle.relation.subscribe(listener)
        upserts, deletes, changes = self._draw_update(rng, handle)
        before = handle.relation.revision
        try:
            handle.relation.apply(upserts, deletes)
        except (InjectedError, SemistreamError):
            assert handle.relation.revision == before, "an update was refused, and is there"
        else:
            assert listener.hook != "prepare", "a refusal was passed over"
            assert listener.failures == (listener.hook == "commit")
            handle.history.append(changed(handle.contents, changes))
        finally:
            handle.relation.unsubscribe(listener)

    def faulty_apply(self, rng: Random) -> None:
        """The disk fails amid an update: a join that could not be told is lost, R and the other joins are not."""
        if (handle := self._updatable(rng)) is None:
            return
        self.say(handle)
        for join in handle.joins:
            if join.threaded:
                join.drain()  # or it fails sooner or later, and not here
        handle.reads_until_fault = rng.randint(0, 3)
        upserts, deletes, changes = self._draw_update(rng, handle)
        before = handle.relation.revision
        try:
            handle.relation.apply(upserts, deletes)
        except SemistreamError:
            pass
        finally:
            handle.reads_until_fault = None
        if handle.relation.revision != before:
            handle.history.append(changed(handle.contents, changes))
        for watched in [join for join in handle.joins if join.join.broken is not None]:
            with pytest.raises(BrokenJoinError):
                watched.join.offer(self.shape.batch([1], 0))
            watched.retire()
            handle.joins.remove(watched)

    def _apply(self, handle: Handle, upserts: Any, deletes: Any, changes: Contents) -> None:
        before = handle.relation.revision
        try:
            handle.relation.apply(upserts, deletes)
        except SemistreamError:
            assert handle.relation.revision == before, "an update was refused, and is there"
            self.say("refused")
        else:
            assert handle.relation.revision == before + 1
            handle.history.append(changed(handle.contents, changes))

    # -- versions on disk ---------------------------------------------------------------------------------

    def upsert(self, rng: Random) -> None:
        """Commit a version with some keys changed."""
        if not self.versions or len(self.versions) > _MOST_VERSIONS:
            return
        newest = max(self.versions)
        upserts, deletes, changes = self._draw_update(rng, None)
        if not self.clustered_of[newest]:
            with pytest.raises(UnsupportedJoinError):
                semistream.update(self.path, upserts=upserts, deletes=deletes)
            return
        number = semistream.update(self.path, upserts=upserts, deletes=deletes)
        assert number == newest + 1
        self._committed(number, changed(self.versions[newest], changes), self.shards_of[newest], True)

    def commit_by_handle(self, rng: Random) -> None:
        """Commit a version through an open relation, which moves to it with all of its joins, or say why not."""
        if len(self.versions) > _MOST_VERSIONS or (handle := self._updatable(rng)) is None:
            return
        relation, newest = handle.relation, max(self.versions)
        before, attached = (relation.version, relation.revision), bool(relation._listeners)
        compacts = rng.random() < 0.3
        if compacts:
            changes: Contents = {}
            work = relation.compact
        else:
            upserts, deletes, changes = self._draw_update(rng, handle)
            work = partial(relation.update, upserts=upserts, deletes=deletes)
        whole = not relation._uncommitted and len(relation.open_shards) == relation.shard_count
        if not whole or (attached and before[0] != newest):
            # joins are asked about an update, even an empty one, before the commit is tried
            with pytest.raises(CommitConflictError if whole and compacts else SemistreamError):
                work()
            assert (relation.version, relation.revision) == before
            return
        try:
            number = work()
        except SemistreamError as error:
            self.say("refused:", type(error).__name__)
            assert (relation.version, relation.revision) == before
            assert attached or (changes and not self.clustered_of[newest]), "refused without a reason"
            self._compare_stored(newest)
            return
        assert relation.version == number == newest + 1
        contents = changed(self.versions[newest], changes)
        self._committed(number, contents, self.shards_of[newest], self.clustered_of[newest])
        if attached:
            assert before[0] == newest
            if relation.revision != before[1]:
                handle.history.append(contents)
        else:
            handle.history, handle.shards = [contents], None
            handle.watch_device()
        handle.check()

    def refused_upsert(self, rng: Random) -> None:
        """A version that cannot be made is not there."""
        if not self.versions or not self.clustered_of[max(self.versions)]:
            return
        with pytest.raises(RelationBuildError):
            semistream.upsert(self.path, self._impossible(rng, 8192))
        self._compare_stored(max(self.versions))

    def compact(self, rng: Random) -> None:
        """Write R anew; contents, shards and order stay."""
        if not self.versions or len(self.versions) > _MOST_VERSIONS:
            return
        newest = max(self.versions)
        with Relation.open(self.path) as relation:
            packed = relation.packing is not None and rng.random() < 0.8
        with packed_builds(rng.randrange(4)) if packed else nullcontext():
            number = semistream.compact(self.path)
        assert number == newest + 1
        self._committed(number, self.versions[newest], self.shards_of[newest], self.clustered_of[newest])

    def vacuum(self, rng: Random) -> None:
        """Remove versions; those kept can be opened, and what is open can still be read."""
        if not self.versions:
            return
        kept = {version for version in self.versions if rng.random() < 0.3}
        semistream.vacuum(self.path, keep=kept, older_than=0.0)
        left = {version.number for version in semistream.history(self.path)}
        assert {max(self.versions), *kept} <= left <= set(self.versions)
        for version in set(self.versions) - left:
            del self.versions[version], self.shards_of[version], self.clustered_of[version]
        for version in sorted(left):
            self._compare_stored(version)

    def compare(self, rng: Random) -> None:
        """Read everything there is of something."""
        if self.handles and rng.random() < 0.6:
            rng.choice(self.handles).check()
        elif self.versions:
            self._compare_stored(rng.choice(list(self.versions)))

    def read_shards(self, rng: Random) -> None:
        """Read each shard by itself, as tasks of a cluster do; together they are R, and no row is in two."""
        if not self.versions:
            return
        version = rng.choice(list(self.versions))
        count, contents = self.shards_of[version], self.versions[version]
        for shard in range(count):
            with Relation.open(self.path, version=version, shards=[shard]) as relation:
                check_contents(relation, self.shape, self._part(relation, contents, count, (shard,)))
                assert not list(find_faults(relation))

    # -- inside -------------------------------------------------------------------------------------------

    def _compare_stored(self, version: int) -> None:
        with Relation.open(self.path, version=version) as relation:
            check_contents(relation, self.shape, self.versions[version])
            faults = list(find_faults(relation))
            assert not faults, faults

    def _committed(self, number: int, contents: Contents, shards: int, clustered: bool) -> None:
        self.versions[number] = contents
        self.shards_of[number] = shards
        self.clustered_of[number] = clustered
        self._compare_stored(number)

    def _updatable(self, rng: Random) -> Handle | None:
        handles = [handle for handle in self.handles if handle.relation.clustered]
        if not handles:
            return None
        handle = rng.choice(handles)
        self.touched.append(handle)
        if rng.random() < 0.8:
            for join in handle.joins:
                join.finish_turn()  # amid a turn all updates are refused
        return handle

    def _part(self, relation: Relation, contents: Contents, count: int, shards: tuple[int, ...] | None) -> Contents:
        """Return what some shards hold of R."""
        if shards is None:
            return contents
        home = shard_of(relation, self.shape, list(contents), count)
        return {k: rows for k, rows in contents.items() if home[k] in shards}

    def _new_rows(self, rng: Random) -> tuple[int, ...]:
        count = 1 if self.unique or rng.random() < 0.6 else rng.choice([2, 3, 3, 9, 9, 40])
        self.serial += count
        return tuple(range(self.serial - count, self.serial))

    def _keys_of(self, handle: Handle | None) -> list[int]:
        """Return keys that R may hold, or the shards that are open of it."""
        keys = list(range(self.universe + 5))
        if handle is not None and handle.shards is not None:
            home = shard_of(handle.relation, self.shape, keys, handle.relation.shard_count)
            keys = [k for k in keys if home[k] in handle.shards]
        return keys

    def _draw_update(self, rng: Random, handle: Handle | None) -> tuple[Any, Any, Contents]:
        """Return rows to upsert, keys to delete, and the change they make."""
        keys = self._keys_of(handle)
        most = len(keys) if rng.random() < 0.1 else min(len(keys), rng.choice([1, 2, 6, 6, 30]))
        upserted = rng.sample(keys, rng.randint(0, most))
        deleted = rng.sample(keys, rng.randint(0, most))
        self.say(
            f"upsert {upserted} delete {deleted}" if most < 12 else f"{len(upserted)} upserts {len(deleted)} deletes"
        )
        if self.unique and rng.random() < 0.02:
            self.unique = False
        changes: Contents = dict.fromkeys(deleted, ()) | {k: self._new_rows(rng) for k in upserted}
        pairs: list[tuple[int | None, int]] = [(k, row) for k in upserted for row in changes[k]]
        rng.shuffle(pairs)
        if rng.random() < 0.1:
            self.serial += 1
            pairs.append((None, self.serial))  # without a key it is no part of R
        upserts = self.shape.rows(pairs) if pairs or rng.random() < 0.2 else None
        deletes: Any = None
        if deleted or rng.random() < 0.2:
            deletes = self.shape.key_table(deleted)
            if len(self.shape.key.names) == 1 and rng.random() < 0.5:
                deletes = deletes.column(0).combine_chunks()
        return upserts, deletes, changes

    def _impossible(self, rng: Random, page_bytes: int) -> pa.Table:
        """Return rows that no update of R can have."""
        rows = self.shape.rows([(k, self.serial) for k in rng.sample(range(self.universe), min(3, self.universe))])
        if not self.shape.longest or rng.random() < 0.3:
            return rows.drop_columns(["row"])
        wide = pa.array(["x" * (32 * page_bytes if k == 1 else 3) for k in range(1, rows.num_rows + 1)], pa.string())
        return rows.set_column(rows.schema.get_field_index("text"), "text", wide)
