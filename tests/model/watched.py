"""Relations and joins with a record beside them of what they must say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from model.data import Contents, Shape, begin_of, changed, end_of, text_of, valid_at
from semistream.core.errors import SemistreamError
from semistream.joins.interface.join import Join
from semistream.relation.devices.device import DeviceError, DeviceProfile
from semistream.relation.relation import Relation

__all__ = ["Handle", "InjectedError", "WatchedJoin"]

_MOST_IDLE_TURNS = 3000
# Measuring a device takes longer than a hundred operations.
_PROFILE = DeviceProfile(1e-4, 1e-5, 2e4, 1e9, 16, False)


class InjectedError(Exception):
    """Raised by the test inside the library."""


class Handle:
    """An open relation, and all that it held since it was opened: an entry more for each update in memory."""

    def __init__(self, relation: Relation, shape: Shape, contents: Contents, shards: tuple[int, ...] | None) -> None:
        self.relation = relation
        self.shape = shape
        self.history: list[Contents] = [contents]
        self.shards = shards
        self.joins: list[WatchedJoin] = []
        self.reads_until_fault: int | None = None
        self.watch_device()

    def watch_device(self) -> None:
        """Let reads fail when they are to, also of what R was opened with again."""
        device = self.relation.device
        device._profile = _PROFILE
        device.read = self._faulty(device.read)  # type: ignore[method-assign]
        device.ring = self._faulty(device.ring)  # type: ignore[method-assign]

    def _faulty(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Return a way to read that fails when it is time."""

        def faulty(*given: Any) -> Any:
            if self.reads_until_fault is not None:
                self.reads_until_fault -= 1
                if self.reads_until_fault < 0:
                    raise DeviceError("injected: the disk does not answer")
            return read(*given)

        return faulty

    @property
    def contents(self) -> Contents:
        return self.history[-1]

    def check(self) -> None:
        """Compare all of R with what it must hold."""
        check_contents(self.relation, self.shape, self.contents)

    def __repr__(self) -> str:
        return f"R of version {self.relation.version} shards {self.shards}"

    def close(self) -> None:
        for join in self.joins:
            join.retire()
        self.joins.clear()
        self.relation.close()


def check_contents(relation: Relation, shape: Shape, contents: Contents) -> None:
    relation.overlay.check()
    found = relation.to_table()
    wanted = {
        row: (*shape.key.of(k), *_text(row, shape), *_times(row, shape)) for k, rows in contents.items() for row in rows
    }
    names = [*shape.key.names, *(["text"] if shape.longest else []), *(["since", "until"] if shape.history else [])]
    rows = found["row"].to_pylist()
    assert relation.row_count == len(wanted), f"R says {relation.row_count} rows, and holds {len(wanted)}"
    assert len(rows) == len(wanted), f"R has {len(rows)} rows instead of {len(wanted)}"
    for row, *values in zip(rows, *(found[name].to_pylist() for name in names), strict=True):
        assert wanted.get(row) == tuple(values), f"row {row} is {values}, not {wanted.get(row)}"
    assert len(set(rows)) == len(rows), "a row of R is there twice"
    if relation.unique:
        assert all(len(rows) == 1 for rows in contents.values()), "R says that its keys are unique"


def _text(row: int, shape: Shape) -> tuple[str | None, ...]:
    return (text_of(row, shape.longest),) if shape.longest else ()


def _times(row: int, shape: Shape) -> tuple[int | None, ...]:
    return (begin_of(row), end_of(row)) if shape.history else ()


class WatchedJoin:
    """A join, the tuples it was given, and the results it gave for them.

    A tuple may see any state that R had between its offer and the moment that it is known to have left, but one state
    only. When nothing is pending, all tuples have left.
    """

    def __init__(self, join: Join, handle: Handle, warm: dict[Any, Any] | None = None, *, as_of: bool = False) -> None:
        self.join = join
        self.handle = handle
        self.warm = warm
        self.as_of = as_of
        self.given: dict[int, tuple[int | None, int, int | None]] = {}
        """Position → key, the first state of R that the tuple may see, and its time."""
        self.found: dict[int, list[int | None]] = {}
        self.updates: list[tuple[Any, Contents]] = []
        """SSIJ's own updates that are not known to be installed."""
        self.offered = 0
        self.opened_with = handle.history[-1]
        self.turn: Any = None
        """A turn that was begun and not finished."""

    def __repr__(self) -> str:
        return f"{self.join.id} #{self.handle.joins.index(self) if self in self.handle.joins else '?'} of {self.handle}"

    def offer(self, keys: list[int | None], position: int) -> int:
        shape, now = self.handle.shape, self.handle.contents
        times = [shape.time_of(position + at, () if k is None else now.get(k, ())) for at, k in enumerate(keys)]
        taken = self.join.offer(shape.batch(keys, position, times))
        assert 0 <= taken <= len(keys)
        state = len(self.handle.history) - 1
        for at in range(taken):
            self.given[position + at] = (keys[at], state, times[at])
        self.offered += taken
        return taken

    @property
    def threaded(self) -> bool:
        """Whether it reads while nobody asks it to."""
        return bool(getattr(self.join, "_threads", False))

    def feed(self, keys: list[int | None], position: int) -> None:
        """Offer all of the tuples, with turns in between whenever the join takes no more."""
        idle = 0
        while keys:
            taken = self.offer(keys, position)
            position, keys = position + taken, keys[taken:]
            if keys:
                idle = 0 if taken else idle + 1
                assert idle < _MOST_IDLE_TURNS, f"{self.join.id} takes no tuples, {self.join.pending} pending"
                self.step()

    def step(self) -> None:
        self.finish_turn()
        for batch in self.join.step():
            self.receive(batch)
        self.follow_updates()

    def begin_turn(self) -> None:
        """Run a turn up to its first result only."""
        self.finish_turn()
        self.turn = self.join.step()
        self._advance()

    def finish_turn(self) -> None:
        while self.turn is not None:
            self._advance()
        self.follow_updates()

    def _advance(self) -> None:
        batch = next(self.turn, None)
        if batch is None:
            self.turn = None
        else:
            self.receive(batch)

    def drain(self) -> None:
        """Step until nothing is pending; all tuples are judged then."""
        self.finish_turn()
        idle, before = 0, self.join.pending
        step = self.join.step

        def watched() -> Any:
            nonlocal idle, before
            yield from step()
            idle, before = (idle + 1 if self.join.pending >= before else 0), self.join.pending
            assert idle < _MOST_IDLE_TURNS, f"{self.join.id} turns without end, {self.join.pending} pending"

        self.join.step = watched  # type: ignore[method-assign]
        try:
            for batch in self.join.drain():
                self.receive(batch)
        finally:
            del self.join.step
        self.follow_updates()
        self.judge()

    def receive(self, batch: pa.RecordBatch) -> None:
        shape = self.handle.shape
        assert batch.schema.equals(self.join.output_schema)
        columns = {name: batch[name].to_pylist() for name in batch.schema.names}
        for at, position in enumerate(columns["position"]):
            assert position in self.given, f"a result for tuple {position}, which is not there"
            k = self.given[position][0]
            row = columns["row"][at]
            if k is not None:
                assert tuple(columns[name][at] for name in shape.key.names) == shape.key.of(k)
            if shape.longest_note:
                assert columns["note"][at] == text_of(position, shape.longest_note), (
                    f"tuple {position} has another note"
                )
            if shape.longest:
                wanted = None if row is None else text_of(row, shape.longest)
                assert columns["text"][at] == wanted, f"row {row} has the text {columns['text'][at]!r}, not {wanted!r}"
            self.found.setdefault(position, []).append(row)

    def judge(self) -> None:
        """Assert that each tuple has the rows of one state of R."""
        assert self.join.pending == 0
        stats = self.join.stats
        assert stats.rows_in == stats.rows_done == self.offered, (
            f"{self.join.id} was offered {self.offered} tuples and says {stats.rows_in} came, {stats.rows_done} left"
        )
        for position, (k, _, _) in self.given.items():
            found = Counter(self.found.get(position, ()))
            states = self._states(position)
            assert any(found == self._right(rows) for rows in states), (
                f"{self.join.id} ({self.join.how}): tuple {position} with key {k} has rows {dict(found)}, "
                f"and R had {states} since it came"
            )
        self.given.clear()
        self.found.clear()

    def _states(self, position: int) -> list[tuple[int, ...]]:
        """Return the rows that match a tuple in each state of R that it may see."""
        k, since, at = self.given[position]
        states = [state.get(k, ()) if k is not None else () for state in self.handle.history[since:]]
        return [valid_at(rows, at) for rows in states] if self.as_of else states

    def _right(self, rows: tuple[int, ...]) -> Counter[int | None]:
        return Counter(rows or ((None,) if self.join.how == "left" else ()))

    def check(self) -> None:
        """Assert invariants between turns, and that no result is one too many."""
        assert self.join.broken is None, f"{self.join.id} could not follow an update: {self.join.broken!r}"
        if self.turn is None:
            self.join.check()
        if self.join.bounded:
            assert self.join.budget.peak <= self.join.budget.total
        for position, rows in self.found.items():
            k, found, states = self.given[position][0], Counter(rows), self._states(position)
            assert any(found <= self._right(rows) for rows in states), (
                f"{self.join.id} ({self.join.how}): tuple {position} with key {k} has rows {dict(found)} so far, "
                f"and R had {states} since it came"
            )

    def follow_updates(self) -> None:
        """See which of SSIJ's own updates were installed."""
        while self.updates and self.updates[0][0].done():
            done, changes = self.updates.pop(0)
            if done.exception() is None:
                self.handle.history.append(changed(self.handle.contents, changes))
            else:
                assert isinstance(done.exception(), (SemistreamError, InjectedError)), done.exception()

    def retire(self) -> None:
        """Have no more to do with the join."""
        self.follow_updates()
        self.turn = None
        self.handle.relation.unsubscribe(self.join)


def shard_of(relation: Relation, shape: Shape, keys: list[int], count: int) -> dict[int, int]:
    """Return the shard of each key."""
    if not keys:
        return {}
    encoded, _ = relation.key.encode(pa.record_batch(shape.keys(keys), names=list(shape.key.names)))
    return dict(zip(keys, np.asarray(relation.key.shards(encoded, count)).tolist(), strict=True))
