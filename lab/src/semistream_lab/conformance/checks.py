"""The conformance suite: checks that every registered join must pass.

`checks` yields the checks of one algorithm. Each is a callable with a name, and raises ``AssertionError`` if the join
fails. To test a new join, register it.

Examples
--------
>>> for check in checks("hybridjoin"):
...     if check.name == "goes on after a drain":
...         check()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import BudgetTooSmallError, KeyColumnError, KeyTypeError, UnsupportedJoinError
from semistream.joins import find
from semistream.joins.interface.join import How, Join
from semistream.relation.rows.row_cells import RowLimitError
from semistream_lab.conformance.cases import CASES, Case, case
from semistream_lab.conformance.expected import Outcome, assert_same_rows, held_bytes, in_batches, in_turns, run

__all__ = ["Check", "checks"]

_BATCH_ROWS = (1, 2, 7, 49, 50, 51)
_BUDGETS: tuple[float, ...] = (1.0, 1.07, 1.3, 3.7, 30.0)
# Small arrays of state, such as cursors, need no reservation.
_SMALL_CHANGE = 1024
_HISTORIES = tuple(name for name, options in CASES.items() if "valid_from" in options)

Kind = type[Join]


@dataclass(frozen=True)
class Check:
    """One requirement for a join."""

    name: str
    algorithm: str
    _run: Callable[[Kind], None]

    def __call__(self) -> None:
        """Raise AssertionError unless the join meets the requirement."""
        self._run(find(self.algorithm))

    def __repr__(self) -> str:
        return self.name


def checks(algorithm: str) -> Iterator[Check]:
    """Yield the checks that the join of this id must pass."""
    kind = find(algorithm)
    for name, check in _all_checks(kind):
        yield Check(name, algorithm, check)


def _all_checks(kind: Kind) -> Iterator[tuple[str, Callable[[Kind], None]]]:
    for name in _with_histories(kind, *(name for name in CASES if name not in _HISTORIES)):
        for how in _HOWS:
            yield f"{name}, {how}", partial(_joins, name=name, how=how)
    for rows in _BATCH_ROWS:
        yield f"batches of {rows}", partial(_joins_batches, rows=rows)
    for more in (-1, 0, 1):
        yield f"batches of a page and {more}", partial(_joins_batches, more_than_page=more)
    if kind.bounded:
        for factor in _BUDGETS:
            yield f"{factor} times the least memory", partial(_joins_within, factor=factor)
        yield "one byte less than the least", _refuses_less
        yield "arrays within the reservations", _reserves_what_it_holds
        yield "a row larger than all memory", _refuses_the_impossible
    yield "invariants between turns", _keeps_invariants
    yield "goes on after a drain", _goes_on
    yield "micro-batches of one tuple", partial(_goes_on, rows=1)
    yield "nothing offered", _does_nothing
    yield "batches without rows", _skips_empty_batches
    yield "only NULL keys", partial(_joins_only, null=True)
    yield "only absent keys", partial(_joins_only, null=False)
    yield "rows larger than the stream buffer", _serves_giants
    yield "rows that grow", _serves_growing_rows
    yield "rows that shrink", partial(_serves_growing_rows, backwards=True)
    yield "the result's columns", _names_columns
    yield "the same result twice", _repeats_itself
    yield "arguments that cannot be", _refuses_nonsense


_HOWS: tuple[How, How] = ("inner", "left")


def _create(kind: Kind, of: Case, how: How = "left", factor: float = 2.0, **options: Any) -> Join:
    """Create a join with ``factor`` times its minimum memory."""
    return kind(of.open(), how=how, memory=int(_least(kind, of) * factor), **_given(of), **options)


def _least(kind: Kind, of: Case, schema: pa.Schema | None = None) -> int:
    return kind.minimum_memory(of.relation, of.stream.schema if schema is None else schema, **_given(of))


def _given(of: Case) -> dict[str, Any]:
    return {"on": of.on} if of.as_of is None else {"on": of.on, "as_of": of.as_of}


def _with_histories(kind: Kind, *names: str) -> tuple[str, ...]:
    """Return names of cases, and those of histories if the join supports them."""
    return (*names, *_HISTORIES) if "as_of" in kind.conditions else names


def _judge(outcome: Outcome, of: Case, how: How, stream: pa.Table | None = None) -> None:
    """Assert that the result is correct, no tuple is left, and the statistics are consistent."""
    join, stats = outcome.join, outcome.stats
    tuples = of.stream if stream is None else stream
    assert_same_rows(outcome.table, of.answer(how, stream), f"{join.id} ({how}, {of.name})")
    assert join.pending == 0, f"{join.pending} tuples are left"
    assert stats.rows_in == stats.rows_done == tuples.num_rows, (stats.rows_in, stats.rows_done, tuples.num_rows)
    assert stats.rows_out == outcome.table.num_rows, (stats.rows_out, outcome.table.num_rows)
    assert stats.unmatched == of.partnerless(tuples), (stats.unmatched, of.partnerless(tuples))
    needed = of.on if of.as_of is None else (*of.on, of.as_of)
    null = sum(None in key for key in zip(*(tuples.column(name).to_pylist() for name in needed), strict=True))
    assert stats.null_keys == null, (stats.null_keys, null)
    assert stats.appended == stats.evicted, f"{stats.appended} tuples were put into the table, {stats.evicted} left it"
    assert 0 <= stats.cache_hits <= stats.rows_done
    assert all(batch.num_rows for batch in outcome.batches), "a batch without rows was yielded"
    join.check()
    _within_budget(join)


def _within_budget(join: Join) -> None:
    if join.bounded:
        assert join.budget.peak <= join.budget.total, f"held {join.budget.peak} B of {join.budget.total} B"


def _joins(kind: Kind, name: str, how: How) -> None:
    of = case(name)
    _judge(run(_create(kind, of, how), in_batches(of.stream, 100)), of, how)


def _joins_batches(kind: Kind, rows: int = 0, more_than_page: int = 0) -> None:
    for name in _with_histories(kind, "fixed rows", "repeated"):
        of = case(name)
        size = rows or max(1, of.relation.layout.capacity(of.relation.page_bytes) + more_than_page)
        _judge(run(_create(kind, of), in_batches(of.stream, size)), of, "left")


def _joins_within(kind: Kind, factor: float) -> None:
    for name in _with_histories(kind, "unique", "large pages", "scattered", "packed"):
        of = case(name)
        # pass the schema: the minimum memory depends on it, and on nothing else of the stream
        join = _create(kind, of, factor=factor, schema=of.stream.schema)
        _judge(run(join, in_batches(of.stream, 64), audit=factor < 1.1), of, "left")


def _refuses_less(kind: Kind) -> None:
    for name in _with_histories(kind, "unique", "large pages", "many pages", "scattered", "sharded", "packed"):
        of = case(name)
        least = _least(kind, of)
        kind(of.open(), memory=least, schema=of.stream.schema, **_given(of))
        less = partial(kind, of.open(), memory=least - 1, schema=of.stream.schema, **_given(of))
        refusal = _refused(BudgetTooSmallError, f"{least:,}", less)
        assert f"{least - 1:,}" in str(refusal), f"the value, {least - 1:,} B, is not in: {refusal}"


def _reserves_what_it_holds(kind: Kind) -> None:
    for name in _with_histories(kind, "repeated", "scattered", "fixed rows", "packed"):
        of = case(name)
        for factor in (1.0, 3.0, 40.0):
            join = _create(kind, of, factor=factor)
            for batch in in_batches(of.stream, 50):
                at = 0
                while at < batch.num_rows:
                    at += join.offer(batch.slice(at))
                    _holds_no_more(join)
                    for _ in join.step():
                        pass
                    _holds_no_more(join)
            for _ in join.drain():
                pass
            _holds_no_more(join)


def _holds_no_more(join: Join) -> None:
    held = held_bytes(join) + (join.relation.index_bytes if join.uses_index else 0)
    parts = join.budget.parts()
    assert held <= sum(parts.values()) + _SMALL_CHANGE, f"arrays of {held} B, reserved {sum(parts.values())} B: {parts}"
    _within_budget(join)


def _keeps_invariants(kind: Kind) -> None:
    for name in _with_histories(kind, "unique", "repeated", "scattered shards", "empty", "packed, repeated"):
        of = case(name)
        _judge(run(_create(kind, of, factor=1.2), in_batches(of.stream, 33), audit=True), of, "left")


def _goes_on(kind: Kind, rows: int = 120) -> None:
    for of in map(case, _with_histories(kind, "sharded")):
        join = _create(kind, of)
        for batch in in_batches(of.stream.slice(0, 40 * rows), rows):
            tuples = pa.Table.from_batches([batch])
            results = pa.Table.from_batches([*in_turns(join, batch), *join.drain()], join.output_schema)
            assert join.pending == 0, f"{join.pending} tuples are left after a drain"
            assert_same_rows(results, of.answer("left", tuples), "a micro-batch")
            assert list(join.drain()) == []
        stats = join.stats
        assert stats.rows_in == stats.rows_done == min(40 * rows, of.stream.num_rows)


def _does_nothing(kind: Kind) -> None:
    of = case("unique")
    for schema in (None, of.stream.schema):
        join = _create(kind, of, schema=schema)
        assert list(join.step()) == []
        assert list(join.process([])) == []
        assert list(join.drain()) == []
        join.check()
        assert (join.pending, join.stats.rows_in, join.stats.rows_out) == (0, 0, 0)


def _skips_empty_batches(kind: Kind) -> None:
    of = case("repeated")
    nothing = in_batches(of.stream.slice(0, 0))
    batches = [*nothing]
    for batch in in_batches(of.stream, 90):
        batches += [batch, *nothing]
    _judge(run(_create(kind, of, "inner"), batches), of, "inner")


def _joins_only(kind: Kind, null: bool) -> None:
    of = case("unique")
    key = of.stream.column(of.on[0])
    only = of.stream.filter(pc.is_null(key) if null else pc.greater(key, 10**6))
    tuples = pa.concat_tables([only] * 40)
    for how in _HOWS:
        join = _create(kind, of, how, factor=1.0)
        join.offer(in_batches(only)[0].slice(0, 0))  # reserves the memory
        results = []
        for batch in join.process(in_batches(tuples, 70)):
            results.append(batch)
            if kind.bounded:
                _holds_no_more(join)
        _judge(Outcome(join, results), of, how, tuples)


def _serves_giants(kind: Kind) -> None:
    of = case("repeated")
    for how in _HOWS:
        join = _create(kind, of, how, factor=3.0, schema=of.stream.schema)
        size = join.budget.total // 2 if kind.bounded else 300_000
        notes = ["long " * (size // 5) if row % 40 == 7 else "short" for row in range(200)]
        tuples = _noted(of.stream.slice(0, 200), notes)
        _judge(run(join, in_batches(tuples, 30), audit=True), of, how, tuples)


def _refuses_the_impossible(kind: Kind) -> None:
    """Only the row that is larger than all memory is refused. The rows before and after it are joined once."""
    of = case("repeated")
    join = _create(kind, of, schema=of.stream.schema)
    notes = ["x" * (join.budget.total + 1 if row == 20 else 3) for row in range(40)]
    tuples = _noted(of.stream.slice(0, 40), notes)
    results: list[pa.RecordBatch] = []
    batch, at = in_batches(tuples, 40)[0], 0
    while at < 20:
        at += join.offer(batch.slice(at))
        results += join.step()
    results += join.drain()
    _refused(RowLimitError, f"{join.budget.total:,} B", lambda: join.offer(batch.slice(20)))
    results += [*join.process([batch.slice(21)])]
    _judge(Outcome(join, results), of, "left", pa.concat_tables([tuples.slice(0, 20), tuples.slice(21)]))


def _noted(stream: pa.Table, notes: list[str]) -> pa.Table:
    return stream.set_column(stream.schema.get_field_index("note"), "note", pa.array(notes, pa.string()))


def _serves_growing_rows(kind: Kind, backwards: bool = False) -> None:
    """Join rows that are much longer (or shorter) than the first ones, which determined the memory layout."""
    of = case("unique")
    rows = of.stream.num_rows
    lengths = [2 if row < rows // 2 else 400 for row in range(rows)]
    notes = pa.array(["x" * length for length in (reversed(lengths) if backwards else lengths)], pa.string())
    tuples = of.stream.set_column(of.stream.schema.get_field_index("note"), "note", notes)
    join = _create(kind, of, factor=2.5)
    _judge(run(join, in_batches(tuples, 50), audit=True), of, "left", tuples)


def _names_columns(kind: Kind) -> None:
    of = case("unique")
    value_names = [name for name in of.master.schema.names if name not in of.key]
    for suffix in ("_right", "_of_r"):
        join = _create(kind, of, suffix=suffix, schema=of.stream.schema)
        names = [name + suffix if name in of.stream.schema.names else name for name in value_names]
        assert join.output_schema.names == [*of.stream.schema.names, *names], join.output_schema.names
        assert all(join.output_schema.field(name).nullable for name in names)
        outcome = run(join, in_batches(of.stream))
        assert all(batch.schema.equals(join.output_schema) for batch in outcome.batches)
        assert_same_rows(outcome.table, of.answer("left", suffix=suffix))
    twice = of.stream.append_column("amount_right", of.stream.column("amount"))
    _refused(KeyColumnError, "amount_right", lambda: _create(kind, of, schema=twice.schema))


def _repeats_itself(kind: Kind) -> None:
    of = case("repeated")
    first, second = (run(_create(kind, of), in_batches(of.stream, 77)).table for _ in range(2))
    if kind.deterministic:
        assert first.equals(second), "the same stream gave rows in another order"
    assert_same_rows(first, second, "the second run")


def _refuses_nonsense(kind: Kind) -> None:
    of = case("unique")
    outer: Literal["left"] = "outer"  # type: ignore[assignment]
    _refused(UnsupportedJoinError, "outer", lambda: kind(of.open(), on=of.on, how=outer))
    _refused(ValueError, "lots", lambda: kind(of.open(), on=of.on, memory="lots"))
    _refused(KeyColumnError, "nowhere", lambda: kind(of.open(), on="nowhere", schema=of.stream.schema))
    _refused(KeyTypeError, "note", lambda: kind(of.open(), on="note", schema=of.stream.schema))
    _refused(KeyColumnError, "2", lambda: kind(of.open(), on=["product", "amount"], schema=of.stream.schema))
    late = kind(of.open(), on="nowhere", memory=10 * _least(kind, of))
    _refused(KeyColumnError, "nowhere", lambda: late.offer(in_batches(of.stream)[0]))


def _refused(error: type[Exception], named: str, action: Callable[[], object]) -> Exception:
    """Assert that an action raises an error whose message contains ``named``. Return the error."""
    caught: Exception | None = None
    try:
        action()
    except error as raised:
        caught = raised
    assert caught is not None, f"no {error.__name__} that names {named!r}"
    assert named in str(caught), f"{named!r} is not named in: {caught}"
    return caught
