"""Updates of a history with ``at=``: in memory, on disk, and through an open relation; some are refused."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import pytest

import semistream
from model.data import Contents, begin_of, changed, changed_at
from model.relation_operations import RelationOperations
from model.watched import Handle
from semistream.core.errors import RelationBuildError, SemistreamError

__all__ = ["HistoryOperations"]

_MOST_VERSIONS = 6


class HistoryOperations(RelationOperations):
    """What is done to R from a moment on; if R is no history, it is refused."""

    WEIGHTS: ClassVar[dict[str, int]] = {"apply_at": 20, "upsert_at": 10, "commit_at": 8}

    def apply_at(self, rng: Random) -> None:
        """Change R in memory from a moment on, while joins hold tuples."""
        if (handle := self._updatable(rng)) is None:
            return
        upserts, deletes, at, changes = self._draw_update_at(rng, handle)
        relation, before = handle.relation, handle.relation.revision
        try:
            relation.install(relation.prepare(upserts, deletes, at=at))
        except SemistreamError as error:
            assert relation.revision == before, "an update was refused, and is there"
            self._judge_refusal(error, changes)
        else:
            assert changes is not None, "an update at an earlier time was not refused"
            assert relation.revision == before + 1
            handle.history.append(changed(handle.contents, changes))
            handle.check()

    def upsert_at(self, rng: Random) -> None:
        """Commit a version in which some keys have changed from a moment on."""
        if not self.versions or len(self.versions) > _MOST_VERSIONS:
            return
        newest = max(self.versions)
        if not self.clustered_of[newest]:
            return
        upserts, deletes, at, changes = self._draw_update_at(rng, None)
        if changes is None:
            with pytest.raises(RelationBuildError) as refused:
                semistream.update(self.path, upserts=upserts, deletes=deletes, at=at)
            self._judge_refusal(refused.value, changes)
            self._compare_stored(newest)
            return
        number = semistream.update(self.path, upserts=upserts, deletes=deletes, at=at)
        assert number == newest + 1
        self._committed(number, changed(self.versions[newest], changes), self.shards_of[newest], True)

    def commit_at(self, rng: Random) -> None:
        """Commit such a version through an open relation, which moves to it with all of its joins."""
        if len(self.versions) > _MOST_VERSIONS or (handle := self._updatable(rng)) is None:
            return
        relation, newest = handle.relation, max(self.versions)
        if relation._uncommitted or len(relation.open_shards) < relation.shard_count or relation.version != newest:
            return  # see commit_by_handle
        upserts, deletes, at, changes = self._draw_update_at(rng, handle)
        before, attached = (relation.version, relation.revision), bool(relation._listeners)
        try:
            if deletes is None:
                number = relation.upsert(upserts, at=at)
            elif upserts is None:
                number = relation.delete(deletes, at=at)
            else:
                number = relation.update(upserts=upserts, deletes=deletes, at=at)
        except SemistreamError as error:
            assert (relation.version, relation.revision) == before
            self._judge_refusal(error, changes)
            assert attached or changes is None, "refused without a reason"
            self._compare_stored(newest)
            return
        assert changes is not None, "an update at an earlier time was not refused"
        assert relation.version == number == newest + 1
        contents = changed(self.versions[newest], changes)
        self._committed(number, contents, self.shards_of[newest], self.clustered_of[newest])
        if attached:
            handle.history.append(contents)
        else:
            handle.history, handle.shards = [contents], None
            handle.watch_device()
        handle.check()

    # -- inside -------------------------------------------------------------------------------------------

    def _judge_refusal(self, error: SemistreamError, changes: Contents | None) -> None:
        """Assert that an update is refused for its time only if it must be; there may be no memory for any."""
        self.say("refused:", type(error).__name__)
        if not self.shape.history:
            assert "needs a history" in str(error), error
        elif changes is not None:
            assert not isinstance(error, RelationBuildError), error
        else:
            assert "is earlier than the begin of" in str(error), error

    def _draw_update_at(self, rng: Random, handle: Handle | None) -> tuple[Any, Any, int, Contents | None]:
        """Return rows to upsert, keys to delete, the moment, and the change they make; no change if it is refused."""
        contents = self.versions[max(self.versions)] if handle is None else handle.contents
        keys = self._keys_of(handle)
        count = min(len(keys), rng.choice([1, 2, 6, 30]))
        upserted, deleted = (rng.sample(keys, rng.randint(0, count)) for _ in range(2))
        new = {}
        for k in upserted:
            self.serial += 1
            new[k] = self.serial - 1
        touched = {*upserted, *deleted}
        newest = [begin_of(row) for k in touched for row in contents.get(k, ())]
        at = max(newest, default=rng.randrange(50)) + rng.choice([0, 0, 1, 2, 3, 9, -1])
        self.say(f"upsert {new} delete {deleted} {at=}")
        after = {k: changed_at(contents.get(k, ()), at, new.get(k)) for k in touched}
        changes = {k: rows for k, rows in after.items() if rows is not None}
        rows = self.shape.rows([*new.items()])
        if self.shape.history:
            rows = rows.drop_columns(["since", "until"])
        upserts = rows if new or rng.random() < 0.2 else None
        deletes = self.shape.key_table(deleted) if deleted or upserts is None or rng.random() < 0.2 else None
        return upserts, deletes, at, changes if self.shape.history and len(changes) == len(after) else None
