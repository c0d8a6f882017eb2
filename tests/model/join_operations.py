"""Operations on joins: open them, offer tuples, take turns, drain, and faults amid these."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import numpy as np

import semistream.joins
from model.data import Contents, Shape
from model.watched import Handle, WatchedJoin, shard_of
from semistream.core.errors import BudgetTooSmallError, SemistreamError
from semistream.relation.relation import Relation

__all__ = ["JoinOperations"]

_MOST_JOINS = 4
_WARM = {"cmeshjoin", "cachejoin", "front+inlj", "front+x_hybridjoin", "front+ssij"}


def _algorithms() -> list[str]:
    return semistream.joins.algorithms()


class JoinOperations:
    """What is done with joins."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "open_join": 22, "drop_join": 10, "offer": 80, "step": 60, "begin_turn": 8, "drain": 30, "feed": 40,
        "faulty_step": 4, "ssij_update": 4, "join_shards": 2,
    }  # fmt: skip

    shape: Shape
    universe: int
    position: int
    handles: list[Handle]
    touched: list[Handle]
    versions: dict[int, Contents]
    shards_of: dict[int, int]
    warm: dict[Any, Any]

    def say(self, *what: object) -> None: ...

    def open_join(self, rng: Random) -> None:
        """Open a join of any algorithm, with memory from the least that it takes up to plenty."""
        handles = [handle for handle in self.handles if len(handle.joins) < _MOST_JOINS]
        if not handles:
            return
        handle = rng.choice(handles)
        handle.joins.append(self._open_join(rng, handle))

    def drop_join(self, rng: Random) -> None:
        """Forget a join, tuples and all; sometimes only when it is drained, and then what it has cached stays warm."""
        if (watched := self._pick(rng)) is None:
            return
        handle = watched.handle
        if rng.random() < 0.7:
            watched.drain()
            if watched.warm is not None and len(handle.history) == 1:
                self.warm[handle.relation.path, handle.relation.version, handle.shards] = watched.warm
        watched.retire()
        handle.joins.remove(watched)

    def offer(self, rng: Random) -> None:
        if (watched := self._pick(rng)) is not None:
            keys = self._draw_keys(rng, watched.handle)
            try:
                self.position += watched.offer(keys, self.position)
            except BudgetTooSmallError:
                self._give_up(watched)

    def feed(self, rng: Random) -> None:
        """Offer a batch wholly, with turns in between."""
        if (watched := self._pick(rng)) is not None:
            keys = self._draw_keys(rng, watched.handle)
            watched.finish_turn()
            self.position += len(keys)
            try:
                watched.feed(keys, self.position - len(keys))
            except BudgetTooSmallError:
                self._give_up(watched)

    def step(self, rng: Random) -> None:
        if (watched := self._pick(rng)) is not None:
            for _ in range(rng.randint(1, 3)):
                watched.step()

    def begin_turn(self, rng: Random) -> None:
        """Leave a turn at its first result; other operations come before it goes on."""
        if (watched := self._pick(rng)) is not None:
            watched.begin_turn()

    def drain(self, rng: Random) -> None:
        if (watched := self._pick(rng)) is not None:
            watched.drain()

    def faulty_step(self, rng: Random) -> None:
        """The disk fails amid a turn: that join is lost, and nothing else is."""
        if (watched := self._pick(rng)) is None:
            return
        watched.finish_turn()
        handle = watched.handle
        for join in handle.joins:
            if join.threaded and join is not watched:
                join.drain()
        handle.reads_until_fault = rng.randint(0, 2)
        try:
            if watched.threaded or rng.random() < 0.5:
                watched.drain()
            else:
                watched.step()
        except SemistreamError:
            watched.retire()
            handle.joins.remove(watched)
        finally:
            handle.reads_until_fault = None

    def ssij_update(self, rng: Random) -> None:
        """Hand an update to SSIJ, which has it installed by a turn of its own."""
        own = [join for handle in self.handles if handle.relation.clustered for join in handle.joins
               if join.join.id == "ssij"]  # fmt: skip
        if own:
            watched = rng.choice(own)
            upserts, deletes, changes = self._draw_update(rng, watched.handle)  # type: ignore[attr-defined]
            watched.updates.append((watched.join.update(upserts, deletes), changes))  # type: ignore[attr-defined]

    def join_shards(self, rng: Random) -> None:
        """Join one stream with each shard alone, as Spark's tasks do: each sees the tuples of its shard only."""
        if not self.versions:
            return
        version = rng.choice(list(self.versions))
        count, contents = self.shards_of[version], self.versions[version]
        keys: list[int | None] = [rng.randrange(self.universe + 5) for _ in range(40)]
        algorithm, how = rng.choice(_algorithms()), rng.choice(["inner", "left"])
        for shard in range(count):
            with Relation.open(self.path, version=version, shards=[shard]) as relation:  # type: ignore[attr-defined]
                home = shard_of(relation, self.shape, [k for k in keys if k is not None], count)
                handle = Handle(relation, self.shape, contents, (shard,))
                as_of = self._as_of(algorithm)
                join = semistream.joins.create(
                    algorithm, relation, on=list(self.shape.key.names), how=how, memory="1MB", **as_of
                )
                watched = WatchedJoin(join, handle, as_of=bool(as_of))
                mine = [k for k in keys if k is not None and home[k] == shard]
                watched.feed(mine, 0)
                watched.drain()

    # -- inside -------------------------------------------------------------------------------------------

    def _pick(self, rng: Random) -> WatchedJoin | None:
        joins = [join for handle in self.handles for join in handle.joins]
        picked = rng.choice(joins) if joins else None
        if picked is not None:
            self.touched.append(picked.handle)
            self.say(picked)
        return picked

    def _give_up(self, watched: WatchedJoin) -> None:
        """Accept that R has grown since the join was opened with memory for less, and before its first tuple."""
        if watched.opened_with is watched.handle.history[-1] or watched.offered:
            raise
        watched.retire()
        watched.handle.joins.remove(watched)

    def _open_join(self, rng: Random, handle: Handle) -> WatchedJoin:
        algorithm = rng.choice(_algorithms())
        if self.shape.history and rng.random() < 0.5:
            algorithm = rng.choice([name for name in _algorithms() if self._as_of(name)])
        kind, shape, as_of = semistream.joins.find(algorithm), self.shape, self._as_of(algorithm)
        options: dict[str, Any] = {"on": list(shape.key.names), "how": rng.choice(["inner", "left"]), **as_of}
        schema = shape.stream_schema
        if rng.random() < 0.6:
            options["schema"] = schema
        if algorithm in ("p_cachejoin", "op_cachejoin"):
            options["threads"] = rng.random() < 0.7
        arrays: dict[Any, Any] | None = None
        if algorithm in _WARM and len(handle.history) == 1 and rng.random() < 0.5:
            arrays = self.warm.pop((handle.relation.path, handle.relation.version, handle.shards), {})
            options["arrays"] = _kept_in(arrays)
        least = kind.minimum_memory(handle.relation, schema, on=options["on"], **as_of)
        memory = int(least * rng.choice([1.0, 1.0, 1.05, 1.3, 2.5]))
        memory = rng.choice([memory, memory, 60_000, 200_000, 2_000_000])
        memory = max(memory, least)
        self.say(
            algorithm,
            f"{memory=} {least=}",
            {k: v for k, v in options.items() if k != "schema"},
            "schema" in options,
            handle,
        )
        try:
            join = kind(handle.relation, memory=memory, **options)
        except BudgetTooSmallError as error:
            raise AssertionError(f"{algorithm} takes {least} B at least, it says, and refuses {memory} B") from error
        return WatchedJoin(join, handle, arrays, as_of=bool(as_of))

    def _as_of(self, algorithm: str) -> dict[str, Any]:
        """Return the option with which a join finds the rows of a history that are valid at the time of a tuple."""
        supported = "as_of" in semistream.joins.find(algorithm).conditions
        return {"as_of": "at"} if self.shape.history and supported else {}

    def _draw_keys(self, rng: Random, handle: Handle) -> list[int | None]:
        """Draw keys of stream tuples: some far more often than others, some absent, some NULL."""
        count = rng.choice([0, 1, 2, 7, 20, 50, 51, 120])
        universe, offset = self.universe + 5, rng.randrange(self.universe + 5)
        keys: list[int | None] = [(offset + int(universe * rng.random() ** 3)) % universe for _ in range(count)]
        if rng.random() < 0.4:
            keys = [None if rng.random() < 0.1 else k for k in keys]
        if rng.random() < 0.1 and keys:
            keys = keys[:1] * len(keys)
        self.say(f"{len(keys)} tuples")
        return keys


def _kept_in(arrays: dict[Any, Any]) -> Any:
    """Return a source of arrays that are kept in a dictionary, as Spark's tasks keep them in files."""

    def source(layout: str) -> Any:
        if arrays.get("layout") != layout:
            arrays.clear()
            arrays["layout"] = layout

        def give(name: str, count: int, dtype: Any) -> Any:
            return arrays.setdefault(name, np.zeros(count, dtype))

        return give

    return source
