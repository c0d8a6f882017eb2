"""A case run: R is built, updated and read, and joined with the stream by each join of the case."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream
import semistream.joins
from differential.cases import Case, Side
from differential.judging import Key, Numbers, Reference, Truth, judge
from forced_filters import forced_filters
from packed_builds import packed_builds
from semistream.core.errors import (
    BudgetTooSmallError,
    KeyTypeError,
    RelationBuildError,
    SemistreamError,
    UpdateRefusedError,
)
from semistream.relation.relation import Relation
from semistream.relation.rows.row_cells import RowLimitError

__all__ = ["Refused", "run"]

_MOST_PAGE = 1 << 17
_MOST_IDLE_TURNS = 20_000


class Refused(Exception):
    """The library says that it does not do this; in a way that is for people."""


def run(case: Case, root: Path | None = None) -> None:
    """Run a case; raise if anything is wrong, or `Refused` if the library refuses it with an error of its own."""
    folder = Path(
        tempfile.mkdtemp(prefix="semistream-fuzz-", dir=root or ("/dev/shm" if Path("/dev/shm").is_dir() else None))
    )
    try:
        with forced_filters(case.seed % 7) if case.seed % 2 else nullcontext():
            _build(case, folder / "r")
            running = _Run(case, folder / "r")
            for algorithm, options in case.joins:
                running.join(algorithm, options)
            running.store()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build(case: Case, path: Path) -> None:
    names = [f"k{at}" for at in range(len(case.key))]
    size = case.build["page_size"]
    options = {name: value for name, value in case.build.items() if name != "packed"}
    while True:
        try:
            with (
                nullcontext() if case.build["packed"] is None else packed_builds(case.build["packed"]),
                Relation.build([side.batch for side in case.master], path, names, **{**options, "page_size": size}),
            ):
                return
        except RelationBuildError as error:
            if "bytes" not in str(error) or size >= _MOST_PAGE:
                raise Refused(str(error)) from error
            size *= 2  # a row wider than a page
        except SemistreamError as error:
            raise Refused(str(error)) from error


class _Run:
    """A case whose R is built; what is right is worked out once for all joins."""

    def __init__(self, case: Case, path: Path) -> None:
        self._case = case
        self._path = path
        sides = [*case.master, *(side for side, _ in case.updates.values())]
        self._master = Reference([side.batch for side in sides], "row")
        self._stream = [Reference([side.batch], "position") for side in case.stream]
        self._pairs: dict[Any, tuple[Numbers, Numbers]] = {}

    def _right(self, truth: Truth, at: int, how: str) -> tuple[Numbers, Numbers]:
        known = truth.updates, at, how
        if known not in self._pairs:
            self._pairs[known] = truth.pairs(self._case.stream[at], how)
        return self._pairs[known]

    def join(self, algorithm: str, options: dict[str, Any]) -> None:
        case, how = self._case, options["how"]
        on = [f"k{at}" for at in range(len(case.key))]
        truth = Truth(case.master)
        schema = case.stream[0].batch.schema
        kind = semistream.joins.find(algorithm)
        with Relation.open(self._path) as relation:
            try:
                least = kind.minimum_memory(relation, schema, on=on)
            except KeyTypeError as error:
                if all(column.ours == column.theirs for column in case.key):
                    raise
                raise Refused(str(error)) from error
            given = {"schema": schema} if options["schema"] else {}
            join = kind(relation, on=on, how=how, memory=int(least * options["factor"]), **given)
            for at, side in enumerate(case.stream):
                try:
                    found = self._results(join, side)
                except BudgetTooSmallError as error:  # R has grown before the first tuple came
                    assert truth.updates
                    assert kind.minimum_memory(relation, schema, on=on) > join.budget.total
                    raise Refused(str(error)) from error
                join.check()
                assert join.pending == 0
                judge(found, self._right(truth, at, how), self._stream[at], self._master, f"{algorithm} ({how})")
                if at in case.updates:
                    self._apply(relation, truth, at)
            if join.bounded:
                assert join.budget.peak <= join.budget.total

    def _results(self, join: Any, side: Side) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        idle, taken = 0, 0
        while taken < side.batch.num_rows:
            try:
                more = join.offer(side.batch.slice(taken))
            except RowLimitError as error:
                raise Refused(str(error)) from error  # a row longer than all of the memory
            taken += more
            idle = 0 if more else idle + 1
            assert idle < _MOST_IDLE_TURNS, f"{join.id} takes nothing"
            if taken < side.batch.num_rows:
                found.extend(join.step())
        found.extend(join.drain())
        return found

    def _apply(self, relation: Relation, truth: Truth, at: int) -> None:
        side, gone = self._case.updates[at]
        try:
            relation.apply(side.batch, self._deletes(gone))
        except (UpdateRefusedError, RelationBuildError, BudgetTooSmallError):
            return  # no memory for it, or rows too wide: nothing has changed then
        truth.update(at, side, gone)

    def _deletes(self, gone: tuple[Key, ...]) -> pa.Table | None:
        if not gone:
            return None
        kinds = self._case.key
        columns = [kind.array([keys[at] for keys in gone], kind.ours) for at, kind in enumerate(kinds)]
        return pa.table(columns, names=[f"k{at}" for at in range(len(kinds))])

    def store(self) -> None:
        """Commit the updates as versions; read R whole, compacted too."""
        truth = Truth(self._case.master)
        self._compare(truth)
        for at, (side, gone) in self._case.updates.items():
            try:
                semistream.update(self._path, upserts=side.batch, deletes=self._deletes(gone))
            except RelationBuildError:
                continue
            truth.update(at, side, gone)
            self._compare(truth)
            self._join_stored(truth)
        if self._case.updates:
            semistream.compact(self._path)
            self._compare(truth)
            self._join_stored(truth)

    def _join_stored(self, truth: Truth) -> None:
        """Join the newest version, whose filter must know the keys that updates have added."""
        case, on = self._case, [f"k{at}" for at in range(len(self._case.key))]
        with Relation.open(self._path) as relation:
            least = semistream.joins.find("adaptivejoin").minimum_memory(relation, case.stream[0].batch.schema, on=on)
            join = semistream.create("adaptivejoin", relation, on=on, how="left", memory=3 * least)
            for at, side in enumerate(case.stream[:2]):
                found, what = self._results(join, side), "adaptivejoin (left) of what is stored"
                judge(found, truth.pairs(side, "left"), self._stream[at], self._master, what)

    def _compare(self, truth: Truth) -> None:
        with Relation.open(self._path) as relation:
            table = relation.to_table()
        numbers = table["row"].combine_chunks().to_numpy(zero_copy_only=False)
        wanted = truth.numbers
        assert sorted(numbers.tolist()) == wanted, f"R has {len(numbers)} rows, and {len(wanted)} are right"
        self._master.compare(table, numbers, "R as it is stored")
